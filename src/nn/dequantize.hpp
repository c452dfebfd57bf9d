#pragma once
/// \file dequantize.hpp
/// A quantised gradient in Real, for products of dequantised factors and for tests.

#include "nn/gradient_quantizer.hpp"

namespace onebit::nn {

/// matrix (N, D) ← ĝ; 0 in groups that were pruned. \param axis that the gradient was quantised along
template <class Exec, class Real>
void dequantize(const Exec& exec, const QuantizedGradient<Exec, Real>& gradient, GroupAxis axis,
                MatrixRef<Exec, Real> matrix) {
  Kokkos::deep_copy(exec, matrix, Real(0));
  if (gradient.kept == 0) return;
  const int bits = static_cast<int>(gradient.planes.size()), columns = gradient.planes[0].columns;
  Kokkos::Array<linalg::BitMatrix<Exec>, 8> planes;
  for (int p = 0; p < bits; ++p) planes[p] = gradient.planes[p];
  const auto group = gradient.group;
  const auto scale = gradient.scale, offset = gradient.offset;
  const bool rows = axis == GroupAxis::rows;
  for_each_row(
      exec, "OneBit::nn::dequantize", gradient.kept, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int k) {
        team.for_each(columns, [&](int e) {
          int sum = 0;
          for (int p = 0; p < bits; ++p) sum += planes[p](k, e) ? 1 << p : -(1 << p);
          const Real value = scale(k) * static_cast<Real>(sum) + offset(k);
          if (rows)
            matrix(group(k), e) = value;
          else
            matrix(e, group(k)) = value;
        });
      });
}

}  // namespace onebit::nn
