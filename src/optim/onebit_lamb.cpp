/// \file onebit_lamb.cpp
/// See onebit_lamb.hpp.

#include "optim/onebit_lamb.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace onebit::optim {
namespace {

/// The update's direction before the learning rate: m / (√v + η) + λ x, with bias corrections (1 without).
struct Direction {
  float epsilon, weight_decay, momentum_correction, variance_correction;

  KOKKOS_FUNCTION float denominator(float v) const { return math::sqrt(v * variance_correction) + epsilon; }
  KOKKOS_FUNCTION float preconditioned(float m, float v) const { return m * momentum_correction / denominator(v); }
  /// \param decays 1 where weight decay applies, else 0
  KOKKOS_FUNCTION float operator()(float x, float m, float v, float decays) const {
    return preconditioned(m, v) + decays * weight_decay * x;
  }
};

Direction make_direction(const config::Input& input, long corrected_step) {
  const auto& in = input.optimizer;
  const auto correction = [&](double beta) {
    return in.bias_correction ? static_cast<float>(1.0 / (1.0 - std::pow(beta, static_cast<double>(corrected_step))))
                              : 1.0f;
  };
  return {static_cast<float>(in.epsilon), static_cast<float>(in.weight_decay), correction(in.beta1),
          correction(in.beta2)};
}

/// One number for each tensor.
template <class Exec>
void archive_numbers(Archive<Exec>& archive, const char* name, const Vector<Exec, double>& numbers) {
  const auto host = Kokkos::create_mirror_view(numbers);
  Kokkos::deep_copy(host, numbers);
  std::vector<double> copy(host.data(), host.data() + host.extent(0));
  archive.numbers(name, copy);
  archive.check_length(name, copy, host.extent(0));
  std::copy(copy.begin(), copy.end(), host.data());
  if (archive.restores()) Kokkos::deep_copy(numbers, host);
}

KOKKOS_INLINE_FUNCTION double clamp(double value, double low, double high) {
  return value < low ? low : value > high ? high : value;
}
KOKKOS_INLINE_FUNCTION double square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

}  // namespace

template <class Exec>
TensorReduction<Exec>::TensorReduction(const TensorTable& tensors) {
  std::vector<std::size_t> piece_begins, tensor_begins;
  for (const Tensor& tensor : tensors.tensors()) {
    tensor_begins.push_back(piece_begins.size());
    for (std::size_t begin = 0; begin < tensor.size(); begin += piece_length)
      piece_begins.push_back(tensor.offset + begin);
  }
  tensor_begins.push_back(piece_begins.size());
  m_pieces = Vector<Exec, double>("OneBit::optim::tensor_pieces", piece_begins.size());
  piece_begins.push_back(tensors.size());
  m_piece_begins = copy_to_device<Exec>("OneBit::optim::piece_begins", piece_begins);
  m_tensor_begins = copy_to_device<Exec>("OneBit::optim::tensor_begins", tensor_begins);
}

template <class Exec>
TensorOf<Exec>::TensorOf(const TensorTable& tensors) {
  std::vector<std::size_t> all_ends;
  std::vector<std::uint32_t> firsts;
  for (const Tensor& tensor : tensors.tensors()) {
    all_ends.push_back(tensor.offset + tensor.size());
    while (firsts.size() * piece_length < all_ends.back())
      firsts.push_back(static_cast<std::uint32_t>(all_ends.size() - 1));
  }
  ends = copy_to_device<Exec>("OneBit::optim::tensor_ends", all_ends);
  block_first = copy_to_device<Exec>("OneBit::optim::block_first", firsts);
}

template <class Exec>
OnebitLamb<Exec>::OnebitLamb(const Setup<Exec>& setup)
    : m_setup(setup),
      m_monitor(setup.input),
      m_sum(setup.tensors.size()),
      m_reduction(setup.tensors),
      m_tensor_of(setup.tensors),
      m_momentum("OneBit::optim::momentum", setup.tensors.size()),
      m_variance("OneBit::optim::variance", setup.tensors.size()),
      m_decays(decay_bits<Exec>(setup.tensors)),
      m_average("OneBit::optim::lamb_average", setup.tensors.tensors().size()),
      m_factor("OneBit::optim::lamb_factor", setup.tensors.tensors().size()),
      m_coefficient("OneBit::optim::lamb_coefficient", setup.tensors.tensors().size()),
      m_scale("OneBit::optim::lamb_scale", setup.tensors.tensors().size()),
      m_left("OneBit::optim::lamb_left", setup.tensors.tensors().size()),
      m_right("OneBit::optim::lamb_right", setup.tensors.tensors().size()) {}

template <class Exec>
StepState OnebitLamb<Exec>::step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                                 const StepContext& context, PhaseTimes& times) {
  return m_frozen_at > 0 ? frozen_step(exec, x, g, context, times) : dense_step(exec, x, g, context, times);
}

template <class Exec>
StepState OnebitLamb<Exec>::dense_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                                       const StepContext& context, PhaseTimes& times) {
  const Region region("OneBit::optim::dense_step");
  if (!context.averaged) comm::average(exec, m_setup.transport, m_setup.ranks, g, times);

  const Stopwatch watch;
  const auto& in = m_setup.input.optimizer;
  const float gradient_factor = clip_factor(m_setup.input, in.clip > 0 ? l2_norm(exec, m_sum, g) : 0);
  const float beta1 = static_cast<float>(in.beta1), one_minus_beta1 = static_cast<float>(1.0 - in.beta1);
  const float beta2 = static_cast<float>(in.beta2), one_minus_beta2 = static_cast<float>(1.0 - in.beta2);
  const auto m = m_momentum;
  const auto v = m_variance;
  m_variance_l1 = m_sum(
      exec, "OneBit::optim::lamb_moments", KOKKOS_LAMBDA(std::size_t i) {
        const float gradient = gradient_factor * g(i);
        m(i) = beta1 * m(i) + one_minus_beta1 * gradient;
        v(i) = beta2 * v(i) + one_minus_beta2 * gradient * gradient;
        return v(i);
      });

  const Direction direction = make_direction(m_setup.input, context.step);
  const auto decays = m_decays;
  m_reduction.sums(
      exec, "OneBit::optim::lamb_norm", m_left, KOKKOS_LAMBDA(std::size_t i) { return square(x(i)); });
  m_reduction.sums(
      exec, "OneBit::optim::lamb_update_norm", m_right, KOKKOS_LAMBDA(std::size_t i) {
        return square(direction(x(i), m(i), v(i), static_cast<float>(bit(decays.data(), i))));
      });
  const double low = m_setup.input.lamb.min_coefficient, high = m_setup.input.lamb.max_coefficient;
  const double beta = m_setup.input.lamb.coefficient_beta;
  const auto norms = m_left;
  const auto update_norms = m_right;
  const auto average = m_average;
  const auto coefficient = m_coefficient;
  for_each(
      exec, "OneBit::optim::lamb_coefficients", coefficient.extent(0), KOKKOS_LAMBDA(std::size_t l) {
        coefficient(l) = 1;
        if (norms(l) > 0 && update_norms(l) > 0) {
          coefficient(l) = clamp(math::sqrt(norms(l) / update_norms(l)), low, high);
          average(l) = beta * average(l) + (1 - beta) * coefficient(l);
        }
      });
  update(exec, x, context);

  StepState state;
  if (m_monitor.record(context.step, m_variance_l1)) {
    m_frozen_at = context.step;
    state.frozen_by = m_monitor.reason();
    freeze(exec);
  }
  times.add(Phase::update, watch.seconds());
  state.variance_l1 = m_variance_l1;
  state.variance_ratio = m_monitor.ratio();
  state.frozen_at = m_frozen_at;
  return state;
}

template <class Exec>
void OnebitLamb<Exec>::freeze(const Exec& exec) {
  m_compressed_allreduce.emplace(make_compressed_allreduce(m_setup));
  m_fresh_variance = make_uninitialized<Exec, float>("OneBit::optim::fresh_variance", m_variance.extent(0));
  Kokkos::deep_copy(exec, m_fresh_variance, m_variance);
  Kokkos::deep_copy(exec, m_factor, 1.0);

  // a_l, by the host: once a run.
  const auto m = m_momentum;
  m_reduction.sums(
      exec, "OneBit::optim::lamb_momentum_norm", m_left, KOKKOS_LAMBDA(std::size_t i) { return square(m(i)); });
  const auto scales = Kokkos::create_mirror_view(m_scale);
  const auto squares = Kokkos::create_mirror_view(m_left);
  Kokkos::deep_copy(exec, squares, m_left);
  fence(exec, "OneBit::optim::lamb_freeze");
  const auto& tensors = m_setup.tensors.tensors();
  double mean = 0;
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    scales(l) = std::sqrt(squares(l) / static_cast<double>(tensors[l].size()));
    mean += scales(l) / static_cast<double>(tensors.size());
  }
  // A float holds a_l and a_l m: up to 2^64, half of its exponents are left to the momentum.
  constexpr double smallest_rms = std::numeric_limits<float>::min(), greatest_scale = 0x1p64;
  for (std::size_t l = 0; l < tensors.size(); ++l) {
    const double rms = scales(l);
    scales(l) = rms >= smallest_rms && mean <= greatest_scale * rms ? mean / rms : 1;
  }
  Kokkos::deep_copy(exec, m_scale, scales);
  fence(exec, "OneBit::optim::lamb_freeze");
}

template <class Exec>
StepState OnebitLamb<Exec>::frozen_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                                        const StepContext& context, PhaseTimes& times) {
  const Region region("OneBit::optim::frozen_step");
  Stopwatch watch;
  const auto& in = m_setup.input.optimizer;
  const float gradient_factor = clip_factor(m_setup.input, std::sqrt(context.mean_square_norm));
  const float beta1 = static_cast<float>(in.beta1), one_minus_beta1 = static_cast<float>(1.0 - in.beta1);
  const float beta2 = static_cast<float>(in.beta2), one_minus_beta2 = static_cast<float>(1.0 - in.beta2);
  const auto m = m_momentum;
  const auto average = g;  // the gradient's memory holds a m_i and then its average
  const auto tensor_of = m_tensor_of;
  const auto scale = m_scale;
  for_each(
      exec, "OneBit::optim::lamb_local_momentum", m.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        const float a = static_cast<float>(scale(tensor_of(i)));
        average(i) = a * (beta1 * m(i) + one_minus_beta1 * (gradient_factor * g(i)));
      });
  fence(exec, "OneBit::optim::lamb_local_momentum");
  times.add(Phase::compress, watch.seconds());

  (*m_compressed_allreduce)(exec, average, times);

  watch.restart();
  const Direction direction = make_direction(m_setup.input, m_frozen_at);
  const auto v = m_variance;
  const auto w = m_fresh_variance;
  m_reduction.maxima(
      exec, "OneBit::optim::lamb_fresh_variance", m_coefficient, KOKKOS_LAMBDA(std::size_t i) {
        const float momentum = average(i) / static_cast<float>(scale(tensor_of(i)));
        const float gradient = (momentum - beta1 * m(i)) / one_minus_beta1;
        m(i) = momentum;
        w(i) = beta2 * w(i) + one_minus_beta2 * gradient * gradient;
        return static_cast<double>(direction.denominator(v(i)) / direction.denominator(w(i)));
      });

  // With weight decay, the share of the direction that the variance divides.
  const bool decay = in.weight_decay > 0;
  const auto decays = m_decays;
  if (decay) {
    m_reduction.sums(
        exec, "OneBit::optim::lamb_momentum_norm", m_left,
        KOKKOS_LAMBDA(std::size_t i) { return square(direction.preconditioned(m(i), v(i))); });
    m_reduction.sums(
        exec, "OneBit::optim::lamb_update_norm", m_right, KOKKOS_LAMBDA(std::size_t i) {
          return square(direction(x(i), m(i), v(i), static_cast<float>(bit(decays.data(), i))));
        });
  }
  const auto& lamb = m_setup.input.lamb;
  const double factor_min = lamb.factor_min, factor_max = lamb.factor_max, threshold = lamb.factor_threshold;
  const auto factor = m_factor;
  const auto preconditioned_norms = m_left;
  const auto update_norms = m_right;
  const auto coefficient = m_coefficient;
  const auto frozen_average = m_average;
  for_each(
      exec, "OneBit::optim::lamb_factors", coefficient.extent(0), KOKKOS_LAMBDA(std::size_t l) {
        double f = coefficient(l);
        if (decay && update_norms(l) > 0) {
          const double share = clamp(math::sqrt(preconditioned_norms(l) / update_norms(l)), 0, 1);
          f = share * f + (1 - share);
        }
        f = clamp(f, factor_min, factor_max);
        factor(l) = clamp(f, factor(l) * (1 - threshold), factor(l) * (1 + threshold));
        coefficient(l) = factor(l) * frozen_average(l);
      });
  update(exec, x, context);
  times.add(Phase::update, watch.seconds());

  StepState state;
  state.variance_l1 = m_variance_l1;
  state.variance_ratio = 1;
  state.frozen_at = m_frozen_at;
  report_residuals(exec, *m_compressed_allreduce, state);
  return state;
}

template <class Exec>
void OnebitLamb<Exec>::update(const Exec& exec, const Vector<Exec, float>& x, const StepContext& context) {
  const Direction direction =
      make_direction(m_setup.input, m_frozen_at > 0 ? std::min(context.step, m_frozen_at) : context.step);
  const float lr = static_cast<float>(context.lr);
  const auto m = m_momentum;
  const auto v = m_variance;
  const auto tensor_of = m_tensor_of;
  const auto coefficient = m_coefficient;
  for_each_with_decay(
      exec, "OneBit::optim::lamb_update", x.extent(0), m_decays, KOKKOS_LAMBDA(std::size_t i, float decaying) {
        const float rate = lr * static_cast<float>(coefficient(tensor_of(i)));
        x(i) -= rate * direction(x(i), m(i), v(i), decaying);
      });
  fence(exec, "OneBit::optim::lamb_update");
}

template <class Exec>
void OnebitLamb<Exec>::state(Archive<Exec>& archive) {
  archive.vector("momentum", m_momentum);
  archive.vector("variance", m_variance);
  m_monitor.state(archive);
  archive.number("state/variance_l1", m_variance_l1);
  archive.number("state/frozen_at", m_frozen_at);
  archive_numbers(archive, "state/lamb_average", m_average);
  archive_numbers(archive, "state/lamb_factor", m_factor);
  archive_numbers(archive, "state/lamb_scale", m_scale);
  archive_residuals(archive, m_setup, m_compressed_allreduce);
  if (m_frozen_at == 0) return;
  if (archive.restores())
    m_fresh_variance = make_uninitialized<Exec, float>("OneBit::optim::fresh_variance", m_variance.extent(0));
  archive.vector("fresh_variance", m_fresh_variance);
}

#define ONEBIT_INSTANTIATE(Exec)        \
  template struct TensorOf<Exec>;       \
  template class TensorReduction<Exec>; \
  template class OnebitLamb<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
