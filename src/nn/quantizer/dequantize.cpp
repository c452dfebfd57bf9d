#include "nn/quantizer/dequantize.hpp"

namespace onebit::nn {

template <class Exec, class Real>
void dequantize(const Exec& exec, const QuantizedGradient<Exec, Real>& gradient, GroupAxis axis,
                MatrixRef<Exec, Real> matrix) {
  Kokkos::deep_copy(exec, matrix, Real(0));
  if (gradient.kept == 0) return;
  const int bits = static_cast<int>(gradient.planes.size()), columns = gradient.planes[0].columns;
  Kokkos::Array<linalg::BitMatrix<Exec>, 8> planes;
  for (int p = 0; p < bits; ++p) planes[p] = gradient.planes[p];
  const auto line = gradient.line;
  const auto scale = gradient.scale, offset = gradient.offset;
  const bool rows = axis == GroupAxis::rows;
  for_each_row(
      exec, "OneBit::nn::dequantize", gradient.kept, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int k) {
        team.for_each(columns, [&](int e) {
          int sum = 0;
          for (int p = 0; p < bits; ++p) sum += planes[p](k, e) ? 1 << p : -(1 << p);
          const Real value = scale(k) * static_cast<Real>(sum) + offset(k);
          if (rows)
            matrix(line(k), e) = value;
          else
            matrix(e, line(k)) = value;
        });
      });
}

template <class Exec, class Real>
double drawn_error(const Exec& exec, const QuantizedGradient<Exec, Real>& quantized, GroupAxis axis,
                   const ScaledGradient<Exec, Real>& gradient) {
  const int rows = gradient.rows(), columns = gradient.columns();
  const Matrix<Exec, Real> matrix("OneBit::nn::dequantized", rows, columns);
  const Vector<Exec, double> sums("OneBit::nn::drawn_errors", rows);
  dequantize<Exec, Real>(exec, quantized, axis, matrix);
  for_each_row(
      exec, "OneBit::nn::drawn_errors", rows, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const double sum = team.sum(columns, [&](int j) {
          const double error = static_cast<double>(matrix(r, j)) - static_cast<double>(gradient(r, j));
          return error * error;
        });
        team.once([&] { sums(r) = sum; });
      });
  const auto host_sums = Kokkos::create_mirror_view(sums);
  Kokkos::deep_copy(exec, host_sums, sums);
  fence(exec, "OneBit::nn::drawn_errors");
  double total = 0;
  for (int r = 0; r < rows; ++r) total += host_sums(r);
  return total;
}

#define ONEBIT_INSTANTIATE(Exec, Real)                                                                           \
  template void dequantize(const Exec&, const QuantizedGradient<Exec, Real>&, GroupAxis, MatrixRef<Exec, Real>); \
  template double drawn_error(const Exec&, const QuantizedGradient<Exec, Real>&, GroupAxis,                      \
                              const ScaledGradient<Exec, Real>&);
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
