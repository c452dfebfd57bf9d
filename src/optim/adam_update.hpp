#pragma once
/// \file adam_update.hpp
/// Adam's update of one element, which its relatives share, and the passes over the parameters that consist of it.
/// `onebit bench kernels` measures these passes.

#include <cmath>

#include "optim/algorithm.hpp"
#include "optim/rates/clipping.hpp"
#include "optim/rates/rates.hpp"

namespace onebit::optim {

/// The numbers of one step's update, in the precision of the kernels.
struct AdamUpdate {
  float beta1, beta2, epsilon, lr;
  float one_minus_beta1, one_minus_beta2;          ///< rounded once: 1 − 0.999f is wrong in its fifth digit
  float gradient_factor;                           ///< of clipping
  float momentum_correction, variance_correction;  ///< 1/(1−β1ᵗ), 1/(1−β2ᵗ); 1 without bias correction
  bool zeros_rest;                                 ///< elements with v = 0 do not move

  /// The shares of m and of an unclipped gradient in the next m.
  compress::MomentumShares momentum_shares() const { return {beta1, one_minus_beta1, gradient_factor}; }
  /// β1 m + (1−β1) g
  KOKKOS_FUNCTION float momentum(float m, float g) const { return beta1 * m + one_minus_beta1 * g; }
  /// β2 v + (1−β2) g²
  KOKKOS_FUNCTION float variance(float v, float g) const { return beta2 * v + one_minus_beta2 * g * g; }
  /// √v + η
  KOKKOS_FUNCTION float denominator(float v) const { return math::sqrt(v * variance_correction) + epsilon; }
  /// u / (√v + η); 0 where v = 0, if such elements rest. They have had no gradient, so their u is what a compressor
  /// made of zeros.
  KOKKOS_FUNCTION float quotient(float u, float v) const {
    const float moved = u / denominator(v);  // before the choice, so that loops are vectorised
    return zeros_rest && v == 0 ? 0.0f : moved;
  }
  /// m / (√v + η)
  KOKKOS_FUNCTION float preconditioned(float m, float v) const { return quotient(m * momentum_correction, v); }
  /// m / (√v + η) + λ x
  KOKKOS_FUNCTION float direction(float x, float m, float v, const Rate& rate) const {
    return preconditioned(m, v) + rate.weight_decay * x;
  }
  /// x − f γ (m / (√v + η) + λ x)
  KOKKOS_FUNCTION float apply(float x, float m, float v, const Rate& rate) const {
    return x - rate.lr_factor * lr * direction(x, m, v, rate);
  }
};

/// 1/(1−βᵗ), or 1 without bias correction. \param steps t; 0 for an average that nothing entered, which stays as it is
inline double bias_correction(const config::Input& input, double beta, double steps) {
  return input.optimizer.bias_correction && steps > 0 ? 1.0 / (1.0 - std::pow(beta, steps)) : 1.0;
}

/// \param norm of the gradient, by which it is clipped
/// \param momentum_steps, variance_steps t of the bias corrections; infinite for none
inline AdamUpdate make_adam_update(const config::Input& input, const StepContext& context, double norm,
                                   double momentum_steps, double variance_steps) {
  const auto& in = input.optimizer;
  AdamUpdate update{};
  update.beta1 = static_cast<float>(in.beta1);
  update.beta2 = static_cast<float>(in.beta2);
  update.one_minus_beta1 = static_cast<float>(1.0 - in.beta1);
  update.one_minus_beta2 = static_cast<float>(1.0 - in.beta2);
  update.epsilon = static_cast<float>(in.epsilon);
  update.lr = static_cast<float>(context.lr);
  update.gradient_factor = clip_factor(input, norm);
  update.momentum_correction = static_cast<float>(bias_correction(input, in.beta1, momentum_steps));
  update.variance_correction = static_cast<float>(bias_correction(input, in.beta2, variance_steps));
  return update;
}

/// Makes the updates of an algorithm that updates m and v in the same steps, and counts t of their bias corrections. A
/// skipped step does not count.
class AdamUpdates {
public:
  explicit AdamUpdates(const config::Input& input) : m_input(input) {}

  /// The update of a step that updates m and v. \param norm of the gradient, by which it is clipped
  AdamUpdate next(const StepContext& context, double norm) {
    ++m_count;
    return make(context, norm);
  }
  /// The update of a step that leaves v as it is, after T_w: t stays as it is, too.
  AdamUpdate frozen(const StepContext& context) const {
    AdamUpdate update = make(context, std::sqrt(context.mean_square_norm));
    update.zeros_rest = true;
    return update;
  }

  /// Saves or restores t and t₀. \throws InputError for numbers that are none of steps
  void state(NumberArchive& archive) {
    archive.number("state/variance_updates", m_count);
    archive.number("state/earlier_steps", m_earlier_steps);
    if (!(m_earlier_steps >= 0)) throw archive.unusable("state/earlier_steps");
  }

private:
  AdamUpdate make(const StepContext& context, double norm) const {
    const double t = m_count;
    return make_adam_update(m_input, context, norm, t, t + m_earlier_steps);
  }

  const config::Input& m_input;
  long m_count = 0;            ///< t
  double m_earlier_steps = 0;  ///< t₀ of v from an earlier run (`freeze.from`); infinite where unknown
};

/// m ← β1 m + (1−β1) g; v ← β2 v + (1−β2) g²; x ← x − f γ (m / (√v + η) + λ x). Does not fence.
template <class Exec>
void update_all(const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates, const Vector<Exec, float>& g,
                const Vector<Exec, float>& m, const Vector<Exec, float>& v, const Vector<Exec, float>& x);

/// m ← β1 m + (1−β1) g. Does not fence.
template <class Exec>
void update_momentum(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g,
                     const Vector<Exec, float>& m);

/// x ← x − f γ (m / (√v + η) + λ x). Does not fence.
template <class Exec>
void update_parameters(const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates,
                       const Vector<Exec, float>& m, const Vector<Exec, float>& v, const Vector<Exec, float>& x);

/// The same with m decoded from messages.
template <class Exec>
void update_parameters(const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates,
                       const compress::AnyDecoder<Exec>& m, const Vector<Exec, float>& v, const Vector<Exec, float>& x);

/// ‖v‖₁ of a variance; fences. \param sum made for this length
template <class Exec>
double variance_l1(const Exec& exec, const OrderedSum<Exec>& sum, const Vector<Exec, float>& v);

}  // namespace onebit::optim
