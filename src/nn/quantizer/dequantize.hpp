#pragma once
/// \file dequantize.hpp
/// A quantised gradient in Real, for products of dequantised factors, its error and tests.

#include "nn/quantizer/gradient_quantizer.hpp"

namespace onebit::nn {

/// matrix (N, D) ← ĝ; 0 in groups that were pruned. \param axis that the gradient was quantised along
template <class Exec, class Real>
void dequantize(const Exec& exec, const QuantizedGradient<Exec, Real>& gradient, GroupAxis axis,
                MatrixRef<Exec, Real> matrix);

/// ‖Q − G‖² of one draw, in double. Waits. \param axis that the gradient was quantised along
template <class Exec, class Real>
double drawn_error(const Exec& exec, const QuantizedGradient<Exec, Real>& quantized, GroupAxis axis,
                   const ScaledGradient<Exec, Real>& gradient);

}  // namespace onebit::nn
