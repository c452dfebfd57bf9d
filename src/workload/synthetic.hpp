#pragma once
/// \file synthetic.hpp
/// No model: the gradient is the same in every step. So a step costs `workload.compute_time_ms`, and its real exchange
/// and update. For experiments on networks with models that are too large to compute on the machine.

#include "base/device/parallel.hpp"
#include "base/random.hpp"
#include "config/published_models.hpp"
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

/// The tensors of a published model, in the order in which a forward pass reads them.
inline TensorTable published_tensors(const config::PublishedModel& model) {
  TensorTable tensors;
  const auto add_dense = [&](const std::string& name, std::size_t outputs, std::size_t inputs) {
    tensors.add(name + ".weight", {outputs, inputs}, true);
    if (model.has_biases) tensors.add(name + ".bias", {outputs}, false);
  };
  const auto add_norm = [&](const std::string& name) {
    tensors.add(name + ".scale", {model.hidden}, false);
    if (model.has_biases) tensors.add(name + ".shift", {model.hidden}, false);
  };
  for (std::size_t k = 0; k < model.tables.size(); ++k)
    if (model.tables[k] > 0) tensors.add("table." + std::to_string(k), {model.tables[k], model.hidden}, true, 0);
  if (model.patch > 0) add_dense("patch", model.hidden, model.patch);
  for (std::size_t layer = 0; layer < model.layers; ++layer) {
    const std::string name = "layer." + std::to_string(layer) + ".";
    add_norm(name + "attention.norm");
    add_dense(name + "attention.query", model.hidden, model.hidden);
    add_dense(name + "attention.key", model.keys, model.hidden);
    add_dense(name + "attention.value", model.keys, model.hidden);
    add_dense(name + "attention.output", model.hidden, model.hidden);
    add_norm(name + "feed_forward.norm");
    if (model.is_gated) add_dense(name + "feed_forward.gate", model.feed_forward, model.hidden);
    add_dense(name + "feed_forward.up", model.feed_forward, model.hidden);
    add_dense(name + "feed_forward.down", model.hidden, model.feed_forward);
  }
  add_norm("norm");
  if (model.head > 0) add_dense("head", model.head, model.hidden);
  return tensors;
}

inline TensorTable synthetic_tensors(const config::NumberOrWord& parameters) {
  for (const config::PublishedModel& model : config::published_models)
    if (model.name == parameters.word) return published_tensors(model);
  return synthetic_tensors(static_cast<std::size_t>(parameters.number));
}

/// With the gradient that each step copies.
inline Footprint synthetic_footprint(const config::Input& input) {
  TensorTable tensors = synthetic_tensors(input.workload.parameters);
  const double bytes = static_cast<double>(sizeof(float)) * static_cast<double>(tensors.size());
  return {std::move(tensors), bytes, {"workload.parameters"}};
}

/// The gradient of rank i is standard normal noise drawn by (seed, i). The tensors are complete from the last to the
/// first. The loss is 0.
template <class Exec>
class Synthetic : public Workload<Exec> {
public:
  Synthetic(const Exec& exec, const config::Input& input, const Share& share)
      : m_footprint(check_memory(input, synthetic_footprint(input), share)), m_batch(input.train.batch) {
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
