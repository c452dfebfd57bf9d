#pragma once
/// \file clipping.hpp
/// Gradient clipping: `optimizer.clip` multiplies gradients by clip / norm where norm > clip.

#include <cmath>

#include "base/device/parallel.hpp"
#include "config/input.hpp"

namespace onebit::optim {

/// The factor that clips gradients of this norm.
inline float clip_factor(const config::Input& input, double norm) {
  const double clip = input.optimizer.clip;
  return clip > 0 && norm > clip ? static_cast<float>(clip / norm) : 1.0f;
}

/// ‖vector‖₂²; fences. \param sum made for this length
template <class Exec>
double square_norm(const Exec& exec, const OrderedSum<Exec>& sum, const Vector<Exec, float>& vector);

/// ‖vector‖₂; fences. \param sum made for this length
template <class Exec>
double l2_norm(const Exec& exec, const OrderedSum<Exec>& sum, const Vector<Exec, float>& vector) {
  return std::sqrt(square_norm(exec, sum, vector));
}

/// ‖g‖₂ where the input clips, else 0.
template <class Exec>
double norm_to_clip(const Exec& exec, const config::Input& input, const OrderedSum<Exec>& sum,
                    const Vector<Exec, float>& g) {
  return input.optimizer.clip > 0 ? l2_norm(exec, sum, g) : 0;
}

/// vector ← factor · vector; fences.
template <class Exec>
void scale(const Exec& exec, float factor, const Vector<Exec, float>& vector);

}  // namespace onebit::optim
