/// \file eight_bit_layers.cpp
/// See eight_bit_layers.hpp. src/CMakeLists.txt compiles this file without fused multiply-adds.

#include "nn/quantized/eight_bit_layers.hpp"

#include <algorithm>
#include <string>

#include "nn/rows.hpp"

namespace onebit::nn {
namespace {

constexpr int largest_code = 127;

/// q of u = x/s. NaN, in rows whose scale is NaN, gives any code.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION std::int8_t code_of(Real u) {
  const Real rounded = u + (u < Real(0) ? Real(-0.5) : Real(0.5));  // the conversion cuts it towards 0
  const Real low = rounded > Real(-largest_code) ? rounded : Real(-largest_code);
  return static_cast<std::int8_t>(static_cast<int>(low < Real(largest_code) ? low : Real(largest_code)));
}

template <class Exec, class Real>
void quantize_rows(const Exec& exec, MatrixRef<Exec, const Real> from, const EightBitRows<Exec, Real>& to) {
  const int columns = from.extent_int(1);
  const auto codes = to.codes;
  const auto scales = to.scales;
  for_each_row(
      exec, "OneBit::nn::quantize_rows", from.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const Real largest = team.max(columns, [&](int c) { return from(r, c) < Real(0) ? -from(r, c) : from(r, c); });
        const Real not_finite = team.sum(columns, [&](int c) { return from(r, c) * Real(0); });
        const Real quotient = Real(largest_code) / largest;
        const Real factor = quotient - quotient == Real(0) ? quotient : Real(0);
        team.for_each(columns, [&](int c) { codes(r, c) = code_of(from(r, c) * factor); });
        team.once([&] { scales(r) = (factor > Real(0) ? largest / Real(largest_code) : Real(0)) + not_finite; });
      });
}

/// matrix ← the codes of rows, in Real; if `scaled`, what they stand for.
template <class Exec, class Real>
void write(const Exec& exec, const EightBitRows<Exec, Real>& rows, bool scaled, MatrixRef<Exec, Real> matrix) {
  const int columns = matrix.extent_int(1);
  const auto codes = rows.codes;
  const auto scales = rows.scales;
  for_each_row(
      exec, "OneBit::nn::write_codes", matrix.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const Real scale = scaled ? scales(r) : Real(1);
        team.for_each(columns, [&](int c) { matrix(r, c) = scale * static_cast<Real>(codes(r, c)); });
      });
}

/// sums(i, j) ← s_i s_j sums(i, j).
template <class Exec, class Real>
void scale_sums(const Exec& exec, const Vector<Exec, Real>& of_rows, const Vector<Exec, Real>& of_columns,
                MatrixRef<Exec, Real> sums) {
  const int columns = sums.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::scale_sums", sums.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int i) {
        const Real scale = of_rows(i);
        team.for_each(columns, [&](int j) { sums(i, j) = scale * sums(i, j) * of_columns(j); });
      });
}

/// A matrix with the rows' extents at the begin of a buffer.
template <class Exec, class Real>
MatrixRef<Exec, Real> matrix_of(const EightBitRows<Exec, Real>& rows, const Vector<Exec, Real>& buffer) {
  return MatrixRef<Exec, Real>(buffer.data(), rows.codes.extent(0), rows.codes.extent(1));
}

}  // namespace

template <class Exec, class Real>
EightBitLayers<Exec, Real>::EightBitLayers(const Quantization& quantization, const std::vector<DenseExtents>& layers)
    : Base(quantization, layers), m_layers(layers.size()) {
  const auto label = [](const char* name) { return std::string("OneBit::nn::EightBitLayers::") + name; };
  const auto kept = [&](int r, int c) {
    return EightBitRows<Exec, Real>{
        onebit::Matrix<Exec, std::int8_t>(Kokkos::view_alloc(label("codes"), Kokkos::WithoutInitializing), r, c),
        make_uninitialized<Exec, Real>(label("scales"), r)};
  };
  std::size_t largest_input = 0, largest_weight = 0;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const DenseExtents& of = layers[l];
    if (of.outputs == 0) continue;
    m_layers[l] = {kept(of.rows, of.inputs), kept(of.outputs, of.inputs)};
    largest_input = std::max(largest_input, m_layers[l].input.codes.size());
    largest_weight = std::max(largest_weight, m_layers[l].weight.codes.size());
  }
  m_input = make_uninitialized<Exec, Real>(label("input"), largest_input);
  m_weight = make_uninitialized<Exec, Real>(label("weight"), largest_weight);
}

template <class Exec, class Real>
void EightBitLayers<Exec, Real>::forward(const Exec& exec, Product& product, int layer, ConstMatrix input,
                                         const Parameters& parameters, Matrix output) {
  const Region region("OneBit::nn::eight_bit_forward");
  const Kept& kept = m_layers[layer];
  quantize_rows<Exec, Real>(exec, input, kept.input);
  quantize_rows<Exec, Real>(exec, parameters.weight, kept.weight);
  const Matrix x = matrix_of(kept.input, m_input), weight = matrix_of(kept.weight, m_weight);
  write<Exec, Real>(exec, kept.input, false, x);
  write<Exec, Real>(exec, kept.weight, false, weight);
  product(exec, linalg::Transpose::no, linalg::Transpose::yes, Real(1), x, weight, Real(0), output);
  scale_sums<Exec, Real>(exec, kept.input.scales, kept.weight.scales, output);
}

template <class Exec, class Real>
void EightBitLayers<Exec, Real>::backward_input(const Exec& exec, const QuantizerKey& key, Product& product,
                                                ConstMatrix d_output, const Parameters& parameters, bool add,
                                                Matrix d_input) {
  const Region region("OneBit::nn::eight_bit_backward_input");
  const Kept& kept = m_layers[key.layer];
  const Matrix weight = matrix_of(kept.weight, m_weight);
  write<Exec, Real>(exec, kept.weight, true, weight);
  product(exec, linalg::Transpose::no, linalg::Transpose::no, Real(1),
          this->m_gradient.in_real(exec, key, d_output, parameters.gamma), weight, Real(add ? 1 : 0), d_input);
}

template <class Exec, class Real>
void EightBitLayers<Exec, Real>::backward_parameters(const Exec& exec, const QuantizerKey& key, Product& product,
                                                     ConstMatrix d_output, const Parameters& parameters, bool add,
                                                     Vector /*scratch*/, Matrix d_weight, Vector /*d_gamma*/) {
  const Region region("OneBit::nn::eight_bit_backward_parameters");
  const Kept& kept = m_layers[key.layer];
  const Matrix x = matrix_of(kept.input, m_input);
  write<Exec, Real>(exec, kept.input, true, x);
  product(exec, linalg::Transpose::yes, linalg::Transpose::no, Real(1),
          this->m_gradient.in_real(exec, key, d_output, parameters.gamma), x, Real(add ? 1 : 0), d_weight);
}

#define ONEBIT_INSTANTIATE(Exec, Real) template class EightBitLayers<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
