/// \file quadratic.cpp
/// See quadratic.hpp.

#include "workload/quadratic.hpp"

#include <cmath>

#include "base/parallel.hpp"
#include "base/random.hpp"

namespace onebit::workload {
namespace {

/// h_j, from 1 at j = 0 to 1/condition at j = d − 1.
struct Curvature {
  float log_condition;
  float scale;  ///< 1 / (d − 1)
  KOKKOS_FUNCTION float operator()(std::size_t j) const {
    return math::exp(-log_condition * static_cast<float>(j) * scale);
  }
};

Curvature curvature(float log_condition, std::size_t dimension) {
  return {log_condition, dimension > 1 ? 1.0f / static_cast<float>(dimension - 1) : 0.0f};
}

}  // namespace

template <class Exec>
Quadratic<Exec>::Quadratic(const config::Input& input, Share share)
    : m_key(stream_key(input.run.seed, Stream::noise)),
      m_batch(input.train.batch),
      m_samples(input.train.batch / share.ranks),
      m_first_sample(share.rank * m_samples),
      m_noise(static_cast<float>(input.quadratic.noise)),
      m_log_condition(static_cast<float>(std::log(input.quadratic.condition))) {
  check_memory(input, {"quadratic.dimension"}, input.quadratic.dimension, 0, share);
  m_tensors.add("x", {static_cast<std::size_t>(input.quadratic.dimension)}, true);
}

template <class Exec>
void Quadratic<Exec>::initialize(const Exec& exec, const Vector<Exec, float>& x) {
  Kokkos::deep_copy(exec, x, 0.0f);
}

template <class Exec>
double Quadratic<Exec>::gradient(const Exec& exec, const Vector<Exec, float>& x, long step,
                                 const Vector<Exec, float>& g, PhaseTimes& times, const GradientProgress&) {
  const Region region("OneBit::workload::quadratic");
  const Stopwatch watch;
  const Curvature h = curvature(m_log_condition, x.extent(0));
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
  times.add(Phase::backward, watch.seconds());
  return value(exec, x);
}

template <class Exec>
LossSum Quadratic<Exec>::validation_loss(const Exec& exec, const Vector<Exec, float>& x) {
  return {value(exec, x), 1};
}

template <class Exec>
double Quadratic<Exec>::value(const Exec& exec, const Vector<Exec, float>& x) const {
  const Curvature h = curvature(m_log_condition, x.extent(0));
  return OrderedSum<Exec>(x.extent(0))(
      exec, "OneBit::workload::quadratic_value", KOKKOS_LAMBDA(std::size_t j) {
        const double distance = x(j) - 1.0f;
        return 0.5 * h(j) * distance * distance;
      });
}

#define ONEBIT_INSTANTIATE(Exec) template class Quadratic<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
