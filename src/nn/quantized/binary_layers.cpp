#include "nn/quantized/binary_layers.hpp"

#include <algorithm>
#include <string>
#include <type_traits>

#include "base/error.hpp"
#include "base/system/stream.hpp"
#include "linalg/packing.hpp"
#include "nn/column_sums.hpp"

namespace onebit::nn {
namespace {

/// matrix(r, c) ← the sign of bit (first + r, c).
template <class Exec, class Real>
void write_signs(const Exec& exec, const linalg::BitMatrix<Exec>& bits, int first, MatrixRef<Exec, Real> matrix) {
  const int columns = bits.columns;
  for_each_row(
      exec, "OneBit::nn::write_signs", matrix.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(columns, [&](int c) { matrix(r, c) = bits(first + r, c) ? Real(1) : Real(-1); });
      });
}

/// Rows [first, first + count) of a matrix.
template <class Exec, class Real>
MatrixRef<Exec, Real> some_rows(const MatrixRef<Exec, Real>& matrix, int first, int count) {
  return MatrixRef<Exec, Real>(matrix.data() + first * matrix.extent(1), count, matrix.extent(1));
}
template <class Exec>
linalg::BitMatrix<Exec> some_rows(const linalg::BitMatrix<Exec>& bits, int first, int count) {
  const std::size_t stride = bits.words.extent(1);
  linalg::BitMatrix<Exec> part;
  part.words = Matrix<Exec, std::uint32_t>(bits.words.data() + first * stride, count, stride);
  part.rows = count;
  part.columns = bits.columns;
  return part;
}

/// to ← from where inside(r, c), else 0; to += that if `add`.
template <class Exec, class Real, class Inside>
void write_where(const Exec& exec, MatrixRef<Exec, Real> from, const Inside& inside, bool add,
                 MatrixRef<Exec, Real> to) {
  const int columns = from.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::straight_through", from.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(columns, [&](int c) {
          const Real value = inside(r, c) ? from(r, c) : Real(0);
          to(r, c) = add ? to(r, c) + value : value;
        });
      });
}

/// Stores y and the sums that it is made of.
template <class Exec, class Real>
struct StoreOutput {
  VectorRef<Exec, const Real> gamma;
  Matrix<Exec, std::int16_t> sums;
  bool streamed;
  MatrixRef<Exec, Real> output;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(int i, int j, int sum) const {
    sums(i, j) = static_cast<std::int16_t>(sum);
    output(i, j) = static_cast<Real>(sum) * gamma(j);
  }

  /// The same of `count` columns from j on, on the host.
  void row(int i, int j, int count, const int* products) const {
    Real values[linalg::tile_columns];
    std::int16_t kept[linalg::tile_columns];
    const Real* const factors = &gamma(j);
    ONEBIT_IVDEP
    for (int c = 0; c < count; ++c) {
      kept[c] = static_cast<std::int16_t>(products[c]);
      values[c] = static_cast<Real>(products[c]) * factors[c];
    }
    stream::copy(&sums(i, j), kept, sizeof *kept * count, streamed);
    stream::copy(&output(i, j), values, sizeof *values * count, streamed);
  }
  void finish_rows() const { stream::finish(); }
};

/// What is kept of an element of x: its sign, and whether the straight-through estimator passes its gradient.
template <class Real>
struct InputCodes {
  const Real* input;
  std::size_t stride;

  KOKKOS_FORCEINLINE_FUNCTION unsigned operator()(int r, int c) const {
    const Real x = input[r * stride + c];
    return (linalg::is_positive(x) ? 1u : 0u) | (is_inside(x) ? 2u : 0u);
  }
#ifdef __AVX512F__
  template <class T = Real, class = std::enable_if_t<std::is_same_v<T, float>>>
  void bits(int r, int c, std::uint64_t* planes) const {
    linalg::compare_64(input + r * stride + c, planes, planes + 1);
  }
#endif
};

/// Where |x| < 1, by the bits that the forward pass kept.
template <class Exec>
struct InsideByBits {
  linalg::BitMatrix<Exec> bits;

  KOKKOS_FORCEINLINE_FUNCTION bool operator()(int r, int c) const { return bits(r, c); }
  /// passes(c) ← that of column first + c for `count` ≤ 32 columns. \param first a multiple of 32
  void find(int r, int first, int, std::int32_t* passes) const {
    const std::uint32_t word = bits.words(r, first / linalg::word_bits);
    ONEBIT_IVDEP
    for (int c = 0; c < linalg::word_bits; ++c) passes[c] = static_cast<std::int32_t>(word >> c & 1u);
  }
};

/// Where |W| < 1.
template <class Exec, class Real>
struct InsideByValue {
  MatrixRef<Exec, const Real> weight;

  KOKKOS_FORCEINLINE_FUNCTION bool operator()(int r, int c) const { return is_inside(weight(r, c)); }
  void find(int r, int first, int count, std::int32_t* passes) const {
    const Real* const row = &weight(r, first);
    ONEBIT_IVDEP
    for (int c = 0; c < count; ++c) passes[c] = is_inside(row[c]) ? 1 : 0;
  }
};

/// Everywhere: for the gradient of an unfolded input.
struct InsideAlways {
  KOKKOS_FORCEINLINE_FUNCTION bool operator()(int, int) const { return true; }
  void find(int, int, int count, std::int32_t* passes) const {
    for (int c = 0; c < count; ++c) passes[c] = 1;
  }
};

/// Stores a product ĝ · t of a quantised gradient ĝ and signs t. Its rows or columns become rows; the straight-through
/// estimator makes elements 0.
template <class Exec, class Real, class Inside>
struct StoreGradient {
  Vector<Exec, int> line;
  int first_line;  ///< that becomes row 0
  Vector<Exec, Real> scale, offset;
  Vector<Exec, int> sums;  ///< of each row of signs
  Inside inside;
  bool add, streamed;
  MatrixRef<Exec, Real> to;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(int i, int k, int sum) const {
    const Real value = scale(i) * static_cast<Real>(sum) + offset(i) * static_cast<Real>(sums(k));
    const int r = line(i) - first_line;
    const Real passed = inside(r, k) ? value : Real(0);
    to(r, k) = add ? to(r, k) + passed : passed;
  }

  /// The same of `count` columns from k on, on the host, where compilers do not vectorise a test of single bits.
  void row(int i, int k, int count, const int* products) const {
    const Real factor = scale(i), term = offset(i);
    const int r = line(i) - first_line;
    for (int first = 0; first < count; first += linalg::word_bits) {
      const int length = count - first < linalg::word_bits ? count - first : linalg::word_bits;
      std::int32_t passes[linalg::word_bits];
      inside.find(r, k + first, length, passes);
      const int *const product = products + first, *const sign_sum = &sums(k + first);
      Real* const result = &to(r, k + first);
      const auto value = [&](int c) {
        const Real all = factor * static_cast<Real>(product[c]) + term * static_cast<Real>(sign_sum[c]);
        return passes[c] != 0 ? all : Real(0);
      };
      if (add) {
        ONEBIT_IVDEP
        for (int c = 0; c < length; ++c) result[c] += value(c);
      } else if (streamed) {
        Real values[linalg::word_bits];
        ONEBIT_IVDEP
        for (int c = 0; c < length; ++c) values[c] = value(c);
        stream::copy(result, values, sizeof(Real) * length);
      } else {
        ONEBIT_IVDEP
        for (int c = 0; c < length; ++c) result[c] = value(c);
      }
    }
  }
  void finish_rows() const { stream::finish(); }
};

/// Whether a result goes past the caches of a host.
template <class Exec, class Real>
bool is_streamed(const MatrixRef<Exec, Real>& matrix) {
  return is_host<Exec> && matrix.size() * sizeof(Real) >= least_streamed;
}

/// The rows before, between and after the kept ones.
template <class Exec>
struct RowGaps {
  Vector<Exec, int> kept;  ///< ascending
  int first;               ///< what row 0 is called in `kept`
  int rows;

  int count() const { return kept.extent_int(0) + 1; }
  KOKKOS_FORCEINLINE_FUNCTION int begin(int gap) const { return gap == 0 ? 0 : kept(gap - 1) - first + 1; }
  KOKKOS_FORCEINLINE_FUNCTION int end(int gap) const { return gap == kept.extent_int(0) ? rows : kept(gap) - first; }
};

/// matrix ← 0 in all rows but the kept ones. \param kept ascending \param first what row 0 is called in `kept`
template <class Exec, class Real>
void clear_other_rows(const Exec& exec, const Vector<Exec, int>& kept, int first, MatrixRef<Exec, Real> matrix) {
  const char* const label = "OneBit::nn::clear_pruned";
  const RowGaps<Exec> gaps{kept, first, matrix.extent_int(0)};
  const int columns = matrix.extent_int(1);
  if constexpr (is_host<Exec>) {
    if (is_streamed(matrix)) {
      Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(exec, 0, gaps.count()), [=](int gap) {
        const int first = gaps.begin(gap), count = gaps.end(gap) - first;
        if (count == 0) return;
        stream::clear(&matrix(first, 0), sizeof(Real) * count * columns);
        stream::finish();
      });
      return;
    }
  }
  for_each_row(
      exec, label, gaps.count(), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int gap) {
        for (int r = gaps.begin(gap); r < gaps.end(gap); ++r) team.for_each(columns, [&](int c) { matrix(r, c) = 0; });
      });
}

/// to(r, k) ← Σ_j ĝ_rj t_kj for each row k of the signs t and each kept row or column first + r of a quantised gradient
/// ĝ, and 0 for the others; but 0 where `inside` passes nothing. += if `add`.
/// \param sums scratch, at least as long as t has rows
template <class Exec, class Real, class Inside>
void multiply_by_signs(const Exec& exec, linalg::BinaryProduct<Exec>& product,
                       const QuantizedGradient<Exec, Real>& gradient, int first, const linalg::BitMatrix<Exec>& signs,
                       const Vector<Exec, int>& sums, const Inside& inside, bool add, MatrixRef<Exec, Real> to) {
  if (!add && gradient.kept < gradient.lines) clear_other_rows(exec, gradient.line, first, to);
  linalg::sign_sums(exec, signs, sums);
  product(exec, gradient.planes, signs,
          StoreGradient<Exec, Real, Inside>{gradient.line, first, gradient.scale, gradient.offset, sums, inside, add,
                                            is_streamed(to), to});
}

/// What is kept of lines [first, first + count) of a gradient.
template <class Exec, class Real>
QuantizedGradient<Exec, Real> some_lines(const QuantizedGradient<Exec, Real>& gradient, int first, int count) {
  const int begin = gradient.kept_before(first), end = gradient.kept_before(first + count);
  const auto kept = std::make_pair(begin, end);
  QuantizedGradient<Exec, Real> part;
  for (const linalg::BitMatrix<Exec>& plane : gradient.planes)
    part.planes.push_back(some_rows(plane, begin, end - begin));
  part.line = Kokkos::subview(gradient.line, kept);
  part.scale = Kokkos::subview(gradient.scale, kept);
  part.offset = Kokkos::subview(gradient.offset, kept);
  part.kept = end - begin;
  part.lines = count;
  return part;
}

}  // namespace

template <class Exec, class Real>
BinaryLayers<Exec, Real>::BinaryLayers(const Quantization& quantization, const std::vector<DenseExtents>& layers)
    : Base(quantization, layers),
      m_has_bits(quantization.kind == QuantizationKind::scq || quantization.kind == QuantizationKind::fqt),
      m_layers(layers.size()) {
  int K = 0;
  std::size_t largest_weight = 0, largest_block = 0;
  bool unfolds = false;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const int inputs = layers[l].inputs, outputs = layers[l].outputs, rows = layers[l].rows;
    const bool unfolded = layers[l].rows_per_block > 0;
    if (outputs == 0) continue;
    if (inputs > most_binary_inputs)
      throw InputError(
          "model.quantization",
          "a 1-bit layer of " + std::to_string(inputs) + " inputs; it may have " + std::to_string(most_binary_inputs),
          "exclude the layer, or make the model narrower");
    const auto bits = [](const char* name, int r, int c) {
      return linalg::BitMatrix<Exec>(std::string("OneBit::nn::BinaryLayers::") + name, r, c);
    };
    m_layers[l] = {
        bits("input", rows, inputs),
        bits("input_columns", inputs, rows),
        unfolded ? linalg::BitMatrix<Exec>() : bits("inside", rows, inputs),
        bits("weight", outputs, inputs),
        bits("weight_columns", inputs, outputs),
        onebit::Matrix<Exec, std::int16_t>(
            Kokkos::view_alloc("OneBit::nn::BinaryLayers::sums", Kokkos::WithoutInitializing), rows, outputs),
        unfolded ? layers[l].rows_per_block : rows};
    unfolds = unfolds || unfolded;
    K = std::max(K, inputs);
    largest_weight = std::max(largest_weight, static_cast<std::size_t>(inputs) * outputs);
    largest_block = std::max(largest_block, static_cast<std::size_t>(inputs) * m_layers[l].rows_per_block);
  }
  const auto buffer = [](const char* name, std::size_t length) {
    return make_uninitialized<Exec, Real>(std::string("OneBit::nn::BinaryLayers::") + name, length);
  };
  const bool multiplies_in_real = !m_has_bits || quantization.gradients_after > 0;
  if (m_has_bits) m_sign_sums = make_uninitialized<Exec, int>("OneBit::nn::BinaryLayers::sign_sums", K);
  if (multiplies_in_real) m_signs = buffer("signs", std::max(largest_block, largest_weight));
  if (multiplies_in_real || unfolds) m_result = buffer("result", std::max(largest_block, largest_weight));
}

template <class Exec, class Real>
void BinaryLayers<Exec, Real>::forward(const Exec& exec, Product& /*product*/, int layer, ConstMatrix input,
                                       const Parameters& parameters, Matrix output) {
  const Region region("OneBit::nn::binary_forward");
  const Kept& kept = m_layers[layer];
  linalg::pack(exec, "OneBit::nn::pack_input", input.extent_int(0), input.extent_int(1),
               InputCodes<Real>{input.data(), input.extent(1)}, {kept.input, kept.inside}, {kept.input_columns});
  multiply(exec, layer, parameters, output);
}

template <class Exec, class Real>
void BinaryLayers<Exec, Real>::multiply(const Exec& exec, int layer, const Parameters& parameters, Matrix output) {
  const Kept& kept = m_layers[layer];
  linalg::pack_signs<Exec, Real>(exec, parameters.weight, &kept.weight, &kept.weight_columns);
  m_product(exec, {kept.input}, kept.weight,
            StoreOutput<Exec, Real>{parameters.gamma, kept.sums, is_streamed(output), output});
}

template <class Exec, class Real>
auto BinaryLayers<Exec, Real>::signs(const Exec& exec, const linalg::BitMatrix<Exec>& bits, int first, int count)
    -> ConstMatrix {
  const Matrix signs(m_signs.data(), count, bits.columns);
  write_signs<Exec, Real>(exec, bits, first, signs);
  return signs;
}

template <class Exec, class Real>
void BinaryLayers<Exec, Real>::backward_input(const Exec& exec, const QuantizerKey& key, Product& product,
                                              ConstMatrix d_output, const Parameters& parameters, bool add,
                                              Matrix d_input) {
  const Region region("OneBit::nn::binary_backward_input");
  const Kept& kept = m_layers[key.layer];
  const InsideByBits<Exec> inside{kept.inside};
  if (multiplies_bits(key)) {
    multiply_by_signs(exec, m_product,
                      this->m_gradient.quantized(exec, GroupAxis::rows, key, d_output, parameters.gamma), 0,
                      kept.weight_columns, m_sign_sums, inside, add, d_input);
  } else {
    const Matrix result(m_result.data(), d_input.extent(0), d_input.extent(1));
    product(exec, linalg::Transpose::no, linalg::Transpose::no, Real(1),
            this->m_gradient.in_real(exec, key, d_output, parameters.gamma),
            signs(exec, kept.weight, 0, kept.weight.rows), Real(0), result);
    write_where<Exec, Real>(exec, result, inside, add, d_input);
  }
}

template <class Exec, class Real>
void BinaryLayers<Exec, Real>::backward_unfolded(const Exec& exec, const QuantizerKey& key, Product& product,
                                                 ConstMatrix d_output, const Parameters& parameters,
                                                 const std::function<void(int, ConstMatrix)>& fold) {
  const Region region("OneBit::nn::binary_backward_unfolded");
  const Kept& kept = m_layers[key.layer];
  const int rows = d_output.extent_int(0), columns = kept.weight.columns;
  const auto for_each_block = [&](const auto& write) {
    for (int first = 0; first < rows; first += kept.rows_per_block) {
      const int count = std::min(kept.rows_per_block, rows - first);
      const Matrix d_unfolded(m_result.data(), count, columns);
      write(first, count, d_unfolded);
      fold(first, d_unfolded);
    }
  };
  if (multiplies_bits(key)) {
    const auto& gradient = this->m_gradient.quantized(exec, GroupAxis::rows, key, d_output, parameters.gamma);
    for_each_block([&](int first, int count, const Matrix& d_unfolded) {
      multiply_by_signs(exec, m_product, some_lines(gradient, first, count), first, kept.weight_columns, m_sign_sums,
                        InsideAlways(), false, d_unfolded);
    });
  } else {
    const ConstMatrix gradient = this->m_gradient.in_real(exec, key, d_output, parameters.gamma);
    const ConstMatrix weight = signs(exec, kept.weight, 0, kept.weight.rows);
    for_each_block([&](int first, int count, const Matrix& d_unfolded) {
      product(exec, linalg::Transpose::no, linalg::Transpose::no, Real(1),
              some_rows<Exec, const Real>(gradient, first, count), weight, Real(0), d_unfolded);
    });
  }
}

template <class Exec, class Real>
void BinaryLayers<Exec, Real>::backward_parameters(const Exec& exec, const QuantizerKey& key, Product& product,
                                                   ConstMatrix d_output, const Parameters& parameters, bool add,
                                                   Vector scratch, Matrix d_weight, Vector d_gamma) {
  const Region region("OneBit::nn::binary_backward_parameters");
  const Kept& kept = m_layers[key.layer];
  const InsideByValue<Exec, Real> inside{parameters.weight};
  const auto sums = kept.sums;
  sum_columns(
      exec, "OneBit::nn::gamma_backward", d_output.extent_int(0), d_output.extent_int(1),
      KOKKOS_LAMBDA(int i, int j) { return d_output(i, j) * static_cast<Real>(sums(i, j)); },
      KOKKOS_LAMBDA(int, int, Real term) { return term; }, scratch, d_gamma);
  if (multiplies_bits(key)) {
    multiply_by_signs(exec, m_product,
                      this->m_gradient.quantized(exec, GroupAxis::columns, key, d_output, parameters.gamma), 0,
                      kept.input_columns, m_sign_sums, inside, add, d_weight);
  } else {
    const ConstMatrix gradient = this->m_gradient.in_real(exec, key, d_output, parameters.gamma);
    const Matrix result(m_result.data(), d_weight.extent(0), d_weight.extent(1));
    for (int first = 0, rows = d_output.extent_int(0); first < rows; first += kept.rows_per_block) {
      const int count = std::min(kept.rows_per_block, rows - first);
      product(exec, linalg::Transpose::yes, linalg::Transpose::no, Real(1),
              some_rows<Exec, const Real>(gradient, first, count), signs(exec, kept.input, first, count),
              Real(first > 0 ? 1 : 0), result);
    }
    write_where<Exec, Real>(exec, result, inside, add, d_weight);
  }
}

#define ONEBIT_INSTANTIATE(Exec, Real) template class BinaryLayers<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
