#pragma once
/// \file adam_update.hpp
/// The arithmetic of one element that Adam and its relatives share, with the numbers of one step.

#include <cmath>

#include "optim/parts.hpp"

namespace onebit::optim {

/// The numbers of one update, as the kernels take them.
struct AdamUpdate {
  float beta1, beta2, epsilon, weight_decay, lr;
  float one_minus_beta1, one_minus_beta2;          ///< rounded once: 1 − 0.999f is wrong in its fifth digit
  float gradient_factor;                           ///< of clipping
  float momentum_correction, variance_correction;  ///< 1/(1−β1ᵗ), 1/(1−β2ᵗ); 1 without bias correction

  /// β1 m + (1−β1) g
  KOKKOS_FUNCTION float momentum(float m, float g) const { return beta1 * m + one_minus_beta1 * g; }
  /// β2 v + (1−β2) g²
  KOKKOS_FUNCTION float variance(float v, float g) const { return beta2 * v + one_minus_beta2 * g * g; }
  /// x − γ (m / (√v + η) + λ x). \param decays 1 where weight decay applies, else 0: a factor, which vectorises
  KOKKOS_FUNCTION float apply(float x, float m, float v, float decays) const {
    const float direction = m * momentum_correction / (math::sqrt(v * variance_correction) + epsilon);
    return x - lr * (direction + decays * weight_decay * x);
  }
};

/// \param corrected_step t of the bias corrections
/// \param norm gradient norm that clipping goes by
inline AdamUpdate make_adam_update(const config::Input& input, const StepContext& context, long corrected_step,
                                   double norm) {
  const auto& in = input.optimizer;
  AdamUpdate update{};
  update.beta1 = static_cast<float>(in.beta1);
  update.beta2 = static_cast<float>(in.beta2);
  update.one_minus_beta1 = static_cast<float>(1.0 - in.beta1);
  update.one_minus_beta2 = static_cast<float>(1.0 - in.beta2);
  update.epsilon = static_cast<float>(in.epsilon);
  update.weight_decay = static_cast<float>(in.weight_decay);
  update.lr = static_cast<float>(context.lr);
  update.gradient_factor = clip_factor(input, norm);
  const auto correction = [&](double beta) {
    return in.bias_correction && corrected_step > 0
               ? static_cast<float>(1.0 / (1.0 - std::pow(beta, static_cast<double>(corrected_step))))
               : 1.0f;
  };
  update.momentum_correction = correction(in.beta1);
  update.variance_correction = correction(in.beta2);
  return update;
}

}  // namespace onebit::optim
