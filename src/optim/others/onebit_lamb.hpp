#pragma once
/// \file onebit_lamb.hpp
/// 1-bit LAMB (Li et al., *1-bit LAMB: Communication Efficient Large-Scale Large-Batch Training with LAMB's Convergence
/// Speed*, 2021). LAMB gives each tensor a learning rate of its own. After T_w the variance is frozen, the momentum is
/// averaged compressed, and each tensor's learning rate is that of the warm-up times a factor.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/others/tensor_reduction.hpp"
#include "optim/variance_monitor.hpp"

namespace onebit::optim {

KOKKOS_INLINE_FUNCTION double clamp(double value, double low, double high) {
  return value < low ? low : value > high ? high : value;
}
KOKKOS_INLINE_FUNCTION double square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

/// DeepSpeed's defaults of `coeff_beta`, `factor_min`, `factor_max` and `factor_threshold`.
inline constexpr double lamb_beta = 0.9, lamb_least_factor = 0.5, lamb_greatest_factor = 4, lamb_factor_change = 0.1;

/// `onebit_lamb`; docs/reference/algorithms/successors.md has the symbols.
template <class Exec>
class OnebitLamb : public Algorithm<Exec> {
public:
  explicit OnebitLamb(const Setup<Exec>& setup)
      : m_setup(setup),
        m_monitor(setup.input),
        m_updates(setup.input),
        m_sum(setup.tensors.size()),
        m_reduction(setup.tensors),
        m_tensor_of(setup.tensors),
        m_momentum("OneBit::optim::momentum", setup.tensors.size()),
        m_variance("OneBit::optim::variance", setup.tensors.size()),
        m_rates(setup.input, setup.tensors),
        m_average("OneBit::optim::lamb_average", setup.tensors.tensors().size()),
        m_factor("OneBit::optim::lamb_factor", setup.tensors.tensors().size()),
        m_coefficient("OneBit::optim::lamb_coefficient", setup.tensors.tensors().size()),
        m_scale("OneBit::optim::lamb_scale", setup.tensors.tensors().size()),
        m_norms("OneBit::optim::lamb_norms", setup.tensors.tensors().size()),
        m_direction_norms("OneBit::optim::lamb_direction_norms", setup.tensors.tensors().size()) {}

  comm::BucketAverage<Exec>* begin(const StepContext& /*context*/) override {
    return m_monitor.is_frozen() ? nullptr : m_setup.gradient_buckets;
  }

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    return m_monitor.is_frozen() ? frozen_step(exec, x, g, context, times) : dense_step(exec, x, g, context, times);
  }

  void state(Archive<Exec>& archive) override {
    archive.vector("momentum", m_momentum);
    archive.vector("variance", m_variance);
    m_monitor.state_with_freeze(archive, "state/compresses");
    m_updates.state(archive);
    archive_numbers(archive, "state/lamb_average", m_average);
    archive_numbers(archive, "state/lamb_factor", m_factor);
    archive_numbers(archive, "state/lamb_scale", m_scale);
    if (!m_monitor.is_frozen()) return;
    if (!m_compressed_average) m_compressed_average.emplace(m_setup);
    m_compressed_average->state(archive);
    if (archive.restores())
      m_fresh_variance = make_uninitialized<Exec, float>("OneBit::optim::fresh_variance", m_variance.extent(0));
    archive.vector("fresh_variance", m_fresh_variance);
  }

  // The parts of a step; public only because a device lambda may not stand in a private member function.

  /// m ← β1 m + (1−β1) ĝ; v ← β2 v + (1−β2) ĝ². \returns ‖v‖₁
  double update_moments(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g) {
    const auto m = m_momentum;
    const auto v = m_variance;
    return m_sum(
        exec, "OneBit::optim::lamb_moments", KOKKOS_LAMBDA(std::size_t i) {
          const float gradient = update.gradient_factor * g(i);
          m(i) = update.momentum(m(i), gradient);
          v(i) = update.variance(v(i), gradient);
          return v(i);
        });
  }

  /// m_direction_norms(l) ← ‖r_l‖² of the direction r = m / (√v + η) + λ x
  void compute_direction_norms(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& x) {
    const auto m = m_momentum;
    const auto v = m_variance;
    const auto rates = m_rates;
    m_reduction.sums(
        exec, "OneBit::optim::lamb_direction_norm", m_direction_norms,
        KOKKOS_LAMBDA(std::size_t i) { return square(update.direction(x(i), m(i), v(i), rates(i))); });
  }

  /// c_l = ‖x_l‖ / ‖r_l‖, clipped; c̄_l ← β_c c̄_l + (1−β_c) c_l
  void learn_coefficients(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& x) {
    m_reduction.sums(
        exec, "OneBit::optim::lamb_norm", m_norms, KOKKOS_LAMBDA(std::size_t i) { return square(x(i)); });
    compute_direction_norms(exec, update, x);
    const double low = m_setup.input.lamb.min_coefficient, high = m_setup.input.lamb.max_coefficient;
    const auto norms = m_norms;
    const auto direction_norms = m_direction_norms;
    const auto average = m_average;
    const auto coefficient = m_coefficient;
    for_each(
        exec, "OneBit::optim::lamb_coefficients", coefficient.extent(0), KOKKOS_LAMBDA(std::size_t l) {
          coefficient(l) = 1;
          if (norms(l) > 0 && direction_norms(l) > 0) {
            coefficient(l) = clamp(math::sqrt(norms(l) / direction_norms(l)), low, high);
            average(l) = lamb_beta * average(l) + (1 - lamb_beta) * coefficient(l);
          }
        });
  }

  /// x_l ← x_l − f γ c_l r_l with the group's f; after T_w f_l c̄_l takes the place of c_l.
  void descend(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& x) {
    const auto m = m_momentum;
    const auto v = m_variance;
    const auto tensor_of = m_tensor_of;
    const auto coefficient = m_coefficient;
    for_each_with_rate(
        exec, "OneBit::optim::lamb_update", x.extent(0), m_rates, KOKKOS_LAMBDA(std::size_t i, const Rate& rate) {
          const float lr = rate.lr_factor * update.lr * static_cast<float>(coefficient(tensor_of(i)));
          x(i) -= lr * update.direction(x(i), m(i), v(i), rate);
        });
    fence(exec, "OneBit::optim::lamb_update");
  }

  /// At T_w: w = v, f_l = 1, and a_l = mean over tensors of rms(m_l), divided by rms(m_l).
  void freeze(const Exec& exec) {
    m_compressed_average.emplace(m_setup);
    m_fresh_variance = make_uninitialized<Exec, float>("OneBit::optim::fresh_variance", m_variance.extent(0));
    Kokkos::deep_copy(exec, m_fresh_variance, m_variance);
    Kokkos::deep_copy(exec, m_factor, 1.0);

    const auto m = m_momentum;
    m_reduction.sums(
        exec, "OneBit::optim::lamb_momentum_norm", m_norms, KOKKOS_LAMBDA(std::size_t i) { return square(m(i)); });
    const auto scales = Kokkos::create_mirror_view(m_scale);
    const auto squares = Kokkos::create_mirror_view(m_norms);
    Kokkos::deep_copy(exec, squares, m_norms);
    fence(exec, "OneBit::optim::lamb_freeze");
    const auto& tensors = m_setup.tensors.tensors();
    double mean = 0;
    for (std::size_t l = 0; l < tensors.size(); ++l) {
      scales(l) = std::sqrt(squares(l) / static_cast<double>(tensors[l].size()));
      mean += scales(l) / static_cast<double>(tensors.size());
    }
    // a_l m must be a float: a_l up to 2^64 leaves half of a float's range of exponents to m.
    constexpr double smallest_rms = std::numeric_limits<float>::min(), greatest_scale = 0x1p64;
    for (std::size_t l = 0; l < tensors.size(); ++l) {
      const double rms = scales(l);
      scales(l) = rms >= smallest_rms && mean <= greatest_scale * rms ? mean / rms : 1;
    }
    Kokkos::deep_copy(exec, m_scale, scales);
    fence(exec, "OneBit::optim::lamb_freeze");
  }

  /// g ← a (β1 m + (1−β1) g), this rank's momentum in the scales of the tensors
  void scale_local_momentum(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g) {
    const auto m = m_momentum;
    const auto tensor_of = m_tensor_of;
    const auto scale = m_scale;
    for_each(
        exec, "OneBit::optim::lamb_local_momentum", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
          const float a = static_cast<float>(scale(tensor_of(i)));
          g(i) = a * update.momentum(m(i), update.gradient_factor * g(i));
        });
    fence(exec, "OneBit::optim::lamb_local_momentum");
  }

  /// m_l ← average_l / a_l; w ← β2 w + (1−β2) g̃² with the average gradient g̃ = (m − β1 m⁻) / (1−β1);
  /// m_coefficient(l) ← max_j (√v_j + η) / (√w_j + η)
  void update_fresh_variance(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& average) {
    const auto m = m_momentum;
    const auto v = m_variance;
    const auto w = m_fresh_variance;
    const auto tensor_of = m_tensor_of;
    const auto scale = m_scale;
    m_reduction.maxima(
        exec, "OneBit::optim::lamb_fresh_variance", m_coefficient, KOKKOS_LAMBDA(std::size_t i) {
          const float momentum = average(i) / static_cast<float>(scale(tensor_of(i)));
          const float gradient = (momentum - update.beta1 * m(i)) / update.one_minus_beta1;
          m(i) = momentum;
          w(i) = update.variance(w(i), gradient);
          return static_cast<double>(update.denominator(v(i)) / update.denominator(w(i)));
        });
  }

  /// f_l from that maximum; m_coefficient(l) ← f_l c̄_l
  void update_factors(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& x) {
    const bool decay = m_rates.decays();
    if (decay) {
      const auto m = m_momentum;
      const auto v = m_variance;
      m_reduction.sums(
          exec, "OneBit::optim::lamb_preconditioned_norm", m_norms,
          KOKKOS_LAMBDA(std::size_t i) { return square(update.preconditioned(m(i), v(i))); });
      compute_direction_norms(exec, update, x);
    }
    const auto factor = m_factor;
    const auto preconditioned_norms = m_norms;
    const auto direction_norms = m_direction_norms;
    const auto coefficient = m_coefficient;
    const auto average = m_average;
    for_each(
        exec, "OneBit::optim::lamb_factors", coefficient.extent(0), KOKKOS_LAMBDA(std::size_t l) {
          double f = coefficient(l);
          if (decay && direction_norms(l) > 0) {
            const double rho = clamp(math::sqrt(preconditioned_norms(l) / direction_norms(l)), 0, 1);
            f = rho * f + (1 - rho);
          }
          f = clamp(f, lamb_least_factor, lamb_greatest_factor);
          factor(l) = clamp(f, factor(l) * (1 - lamb_factor_change), factor(l) * (1 + lamb_factor_change));
          coefficient(l) = factor(l) * average(l);
        });
  }

private:
  StepState dense_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                       const StepContext& context, PhaseTimes& times) {
    const Region region("OneBit::optim::dense_step");
    if (!context.averaged) m_setup.average(exec, g, times);

    const Stopwatch watch;
    const AdamUpdate update = m_updates.next(context, norm_to_clip(exec, m_setup.input, m_sum, g));
    const double variance_l1 = update_moments(exec, update, g);
    learn_coefficients(exec, update, x);
    descend(exec, update, x);

    const StepState state = m_monitor.record(context.step, variance_l1);
    if (m_monitor.is_frozen()) freeze(exec);
    times.add(Phase::update, watch.seconds());
    return state;
  }

  StepState frozen_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                        const StepContext& context, PhaseTimes& times) {
    const Region region("OneBit::optim::frozen_step");
    Stopwatch watch;
    const AdamUpdate update = m_updates.frozen(context);
    scale_local_momentum(exec, update, g);
    times.add(Phase::compress, watch.seconds());

    (*m_compressed_average)(exec, g, times);

    watch.restart();
    update_fresh_variance(exec, update, g);
    update_factors(exec, update, x);
    descend(exec, update, x);
    times.add(Phase::update, watch.seconds());

    StepState state = m_monitor.report_frozen();
    m_compressed_average->report(exec, state);
    return state;
  }

  Setup<Exec> m_setup;
  VarianceMonitor m_monitor;
  AdamUpdates m_updates;
  OrderedSum<Exec> m_sum;
  TensorReduction<Exec> m_reduction;
  TensorOf<Exec> m_tensor_of;
  Vector<Exec, float> m_momentum, m_variance;
  Vector<Exec, float> m_fresh_variance;  ///< (d) w; made at T_w
  Rates<Exec> m_rates;
  // One element for each tensor:
  Vector<Exec, double> m_average;                     ///< c̄_l
  Vector<Exec, double> m_factor;                      ///< f_l
  Vector<Exec, double> m_coefficient;                 ///< c_l; after T_w f_l c̄_l
  Vector<Exec, double> m_scale;                       ///< a_l
  Vector<Exec, double> m_norms, m_direction_norms;    ///< scratch: squares of norms
  std::optional<Average<Exec>> m_compressed_average;  ///< made at T_w, residuals 0
};

}  // namespace onebit::optim
