#pragma once
/// \file quadratic.hpp
/// A noisy convex quadratic with known optimum, for checks of theory: f(x) = ½ Σ_j h_j (x_j − 1)², with h_j spaced
/// log-evenly over [1/condition, 1], and x₀ = 0. A sample's gradient is ∇f(x) plus σ times standard normal noise.

#include <cmath>

#include "base/device/parallel.hpp"
#include "base/random.hpp"
#include "workload/workload.hpp"

namespace onebit::workload {

/// h_j, from 1 at j = 0 to 1/condition at j = d − 1.
struct Curvature {
  float log_condition;
  float scale;  ///< 1 / (d − 1)
  KOKKOS_FUNCTION float operator()(std::size_t j) const {
    return math::exp(-log_condition * static_cast<float>(j) * scale);
  }
};

inline Footprint quadratic_footprint(const config::Input& input) {
  Footprint footprint{{}, 0, {"quadratic.dimension"}};
  footprint.tensors.add("x", {static_cast<std::size_t>(input.quadratic.dimension)}, true);
  return footprint;
}

/// See the top of the file.
template <class Exec>
class Quadratic : public Workload<Exec> {
public:
  Quadratic(const config::Input& input, const Share& share)
      : m_footprint(check_memory(input, quadratic_footprint(input), share)),
        m_key(stream_key(input.run.seed, Stream::noise)),
        m_batch(input.train.batch),
        m_samples(input.train.batch / share.ranks),
        m_first_sample(share.rank * m_samples),
        m_noise(static_cast<float>(input.quadratic.noise)) {
    const std::size_t d = input.quadratic.dimension;
    m_curvature = {static_cast<float>(std::log(input.quadratic.condition)),
                   d > 1 ? 1.0f / static_cast<float>(d - 1) : 0.0f};
  }

  const TensorTable& tensors() const override { return m_footprint.tensors; }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override { Kokkos::deep_copy(exec, x, 0.0f); }

  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientReady&) override {
    const Region region("OneBit::workload::quadratic");
    Stopwatch watch;
    const Curvature h = m_curvature;
    const std::uint64_t key = m_key, counter = static_cast<std::uint64_t>(step);
    const int samples = m_samples, first_sample = m_first_sample;
    const float noise = m_noise;
    for_each(
        exec, "OneBit::workload::quadratic", x.extent(0), KOKKOS_LAMBDA(std::size_t j) {
          float sum = 0;
          if (noise > 0) {
            for (int sample = 0; sample < samples; ++sample) {
              const Philox4 words = philox(key, j, counter << 32 | static_cast<std::uint32_t>(first_sample + sample));
              sum += normal(words.word[0], words.word[1]);
            }
          }
          g(j) = h(j) * (x(j) - 1.0f) + noise * sum / static_cast<float>(samples);
        });
    fence(exec, "OneBit::workload::quadratic");
    times.add(Phase::backward, watch.restart());
    const double loss = value(exec, x);
    times.add(Phase::forward, watch.seconds());
    return loss;
  }

  LossSum validation_loss(const Exec& exec, const Vector<Exec, float>& x,
                          const std::function<bool()>& /*goes_on*/) override {
    return {value(exec, x), 1};
  }
  double tokens_per_step() const override { return m_batch; }

  /// f(x), without noise.
  double value(const Exec& exec, const Vector<Exec, float>& x) const {
    return OrderedSum<Exec>(x.extent(0))(exec, "OneBit::workload::quadratic_value", Term{m_curvature, x});
  }

  /// ½ h_j (x_j − 1)².
  struct Term {
    Curvature h;
    Vector<Exec, float> x;

    KOKKOS_FUNCTION double operator()(std::size_t j) const {
      const double distance = x(j) - 1.0f;
      return 0.5 * h(j) * distance * distance;
    }
  };

private:
  Footprint m_footprint;
  std::uint64_t m_key;
  int m_batch;         ///< samples of one step over all ranks
  int m_samples;       ///< of this rank
  int m_first_sample;  ///< of this rank, within the batch
  float m_noise;       ///< σ
  Curvature m_curvature;
};

}  // namespace onebit::workload
