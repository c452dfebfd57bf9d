#pragma once
/// \file synthetic.hpp
/// No model: the gradient is the same in every step. So a step costs `workload.compute_time_ms`, and its real exchange
/// and update. For experiments on networks with models that are too large to compute on the machine.

#include "base/device/parallel.hpp"
#include "base/random.hpp"
#include "workload/workload.hpp"

namespace onebit::workload {

/// BERT-Large's proportions: a layer has 12.6 of 336 million parameters, a third of them in the attention.
inline TensorTable synthetic_tensors(std::size_t parameters) {
  constexpr std::size_t layers = 24;
  const std::size_t layer = parameters * 3 / 80, bias = layer / 1000, attention = layer / 3;
  TensorTable tensors;
  tensors.add("embedding.weight", {parameters - layers * layer}, true);
  for (std::size_t k = 0; layer > 0 && k < layers; ++k) {
    const std::string name = "layer." + std::to_string(k);
    if (attention > 0) tensors.add(name + ".attention.weight", {attention}, true);
    tensors.add(name + ".feed_forward.weight", {layer - attention - bias}, true);
    if (bias > 0) tensors.add(name + ".bias", {bias}, false);
  }
  return tensors;
}

/// With the gradient that each step copies.
inline Footprint synthetic_footprint(const config::Input& input) {
  const std::size_t parameters = input.workload.parameters;
  return {synthetic_tensors(parameters), static_cast<double>(sizeof(float)) * parameters, {"workload.parameters"}};
}

/// The gradient of rank i is standard normal noise drawn by (seed, i). The tensors have the proportions of a
/// transformer's, an embedding and 24 layers. They are complete from the last to the first. The loss is 0.
template <class Exec>
class Synthetic : public Workload<Exec> {
public:
  Synthetic(const Exec& exec, const config::Input& input, const Share& share)
      : m_footprint(synthetic_footprint(input)), m_batch(input.train.batch) {
    check_memory(input, m_footprint, share);
    m_gradient = make_uninitialized<Exec, float>("OneBit::workload::synthetic", tensors().size());
    draw(exec, static_cast<std::uint64_t>(input.run.seed), static_cast<std::uint64_t>(share.rank));
  }

  const TensorTable& tensors() const override { return m_footprint.tensors; }
  double bytes() const override { return m_footprint.bytes; }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override { Kokkos::deep_copy(exec, x, 0.0f); }

  double gradient(const Exec& exec, const Vector<Exec, float>&, long, const Vector<Exec, float>& g, PhaseTimes& times,
                  const GradientReady& ready_from) override {
    const Region region("OneBit::workload::synthetic");
    Stopwatch watch;
    const auto& tensors = this->tensors().tensors();
    times.add(Phase::forward, watch.restart());
    for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
      const auto range = std::make_pair(tensor->offset, tensor->offset + tensor->size());
      Kokkos::deep_copy(exec, Kokkos::subview(g, range), Kokkos::subview(m_gradient, range));
      if (ready_from) ready_from(tensor->offset);
    }
    fence(exec, "OneBit::workload::synthetic");
    times.add(Phase::backward, watch.seconds());
    return 0;
  }

  double tokens_per_step() const override { return m_batch; }

  /// Makes the gradient. Public only because a device lambda may not stand in a private member function.
  void draw(const Exec& exec, std::uint64_t seed, std::uint64_t rank) {
    const std::uint64_t key = stream_key(seed, Stream::synthetic);
    const auto gradient = m_gradient;
    for_each(
        exec, "OneBit::workload::synthetic_draw", gradient.extent(0), KOKKOS_LAMBDA(std::size_t i) {
          const Philox4 words = philox(key, i, rank);
          gradient(i) = normal(words.word[0], words.word[1]);
        });
    fence(exec, "OneBit::workload::synthetic_draw");
  }

private:
  Footprint m_footprint;
  int m_batch;
  Vector<Exec, float> m_gradient;  ///< (d)
};

}  // namespace onebit::workload
