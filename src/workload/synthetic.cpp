/// \file synthetic.cpp
/// See synthetic.hpp.

#include "workload/synthetic.hpp"

#include "base/parallel.hpp"
#include "base/random.hpp"

namespace onebit::workload {
namespace {

/// BERT-Large's proportions: of 336 million parameters a layer has 12.6 million, a third of them in the attention.
TensorTable synthetic_tensors(std::size_t parameters) {
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

}  // namespace

template <class Exec>
Synthetic<Exec>::Synthetic(const Exec& exec, const config::Input& input, Share share) : m_batch(input.train.batch) {
  const std::size_t parameters = input.workload.parameters;
  check_memory(input, {"workload.parameters"}, static_cast<double>(parameters), sizeof(float) * parameters, share);
  m_tensors = synthetic_tensors(parameters);
  m_gradient = make_uninitialized<Exec, float>("OneBit::workload::synthetic", parameters);
  draw(exec, static_cast<std::uint64_t>(input.run.seed), static_cast<std::uint64_t>(share.rank));
}

template <class Exec>
void Synthetic<Exec>::draw(const Exec& exec, std::uint64_t seed, std::uint64_t rank) {
  const std::uint64_t key = stream_key(seed, Stream::synthetic);
  const auto gradient = m_gradient;
  for_each(
      exec, "OneBit::workload::synthetic_draw", gradient.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        const Philox4 words = philox(key, i, rank);
        gradient(i) = normal(words.word[0], words.word[1]);
      });
  fence(exec, "OneBit::workload::synthetic_draw");
}

template <class Exec>
void Synthetic<Exec>::initialize(const Exec& exec, const Vector<Exec, float>& x) {
  Kokkos::deep_copy(exec, x, 0.0f);
}

template <class Exec>
double Synthetic<Exec>::gradient(const Exec& exec, const Vector<Exec, float>&, long, const Vector<Exec, float>& g,
                                 PhaseTimes& times, const GradientProgress& final_from) {
  const Region region("OneBit::workload::synthetic");
  const Stopwatch watch;
  const auto& tensors = m_tensors.tensors();
  for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor) {
    const auto range = std::make_pair(tensor->offset, tensor->offset + tensor->size());
    Kokkos::deep_copy(exec, Kokkos::subview(g, range), Kokkos::subview(m_gradient, range));
    if (final_from) final_from(tensor->offset);
  }
  fence(exec, "OneBit::workload::synthetic");
  times.add(Phase::backward, watch.seconds());
  return 0;
}

#define ONEBIT_INSTANTIATE(Exec) template class Synthetic<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
