/// \file replay.cpp
/// See replay.hpp.

#include "workload/replay.hpp"

#include "base/error.hpp"

namespace onebit::workload {
namespace {

/// Refuses gradients that are not those of this run.
void check_gradients(const ArrayReader& file, const config::Input& input, Share share) {
  const std::string& path = input.replay.file;
  const std::vector<std::size_t> shape = file.shape("gradients");
  if (shape.size() != 3 || shape[2] == 0)
    throw InputError(path, "dataset 'gradients' has not the shape (steps, ranks, parameters)", "write it so");
  if (shape[1] != static_cast<std::size_t>(share.ranks))
    throw InputError(path,
                     "dataset 'gradients' is for " + std::to_string(shape[1]) + " ranks, but " +
                         std::to_string(share.ranks) + " run",
                     "run with " + std::to_string(shape[1]) + " ranks");
  if (shape[0] < static_cast<std::size_t>(input.train.steps))
    throw InputError(path,
                     "dataset 'gradients' holds " + std::to_string(shape[0]) + " steps, but train.steps is " +
                         std::to_string(input.train.steps),
                     "lower train.steps");
  const bool starts = file.has("initial");
  if (starts && file.shape("initial") != std::vector<std::size_t>{shape[2]})
    throw InputError(path, "dataset 'initial' has not the shape (parameters)", "write it so, or leave it out");
  for (const char* name : {"gradients", "initial"})
    if ((name[0] == 'g' || starts) && !file.holds_reals(name))
      throw InputError(path, std::string("dataset '") + name + "' does not hold floating-point numbers",
                       "write it as float or double");
}

/// The tensor table of `parameters` parameters; one tensor where the file has none.
TensorTable read_tensors(const ArrayReader& file, const std::string& path, std::size_t parameters) {
  TensorTable tensors;
  if (!file.has("tensors/names")) {
    tensors.add("parameters", {parameters}, true);
    return tensors;
  }
  const std::vector<std::size_t> shape = file.shape("tensors/names");
  bool consistent = shape.size() == 1 && shape[0] <= parameters && file.shape("tensors/sizes") == shape &&
                    file.shape("tensors/decays") == shape;
  if (consistent) {
    const auto names = file.texts("tensors/names");
    const auto sizes = file.integers("tensors/sizes"), decays = file.integers("tensors/decays");
    for (std::size_t i = 0; consistent && i < names.size(); ++i) {
      consistent = sizes[i] > 0 && static_cast<unsigned long long>(sizes[i]) <= parameters - tensors.size();
      if (consistent) tensors.add(names[i], {static_cast<std::size_t>(sizes[i])}, decays[i] != 0);
    }
  }
  if (!consistent || tensors.size() != parameters)
    throw InputError(path, "the tensor table does not add up to the " + std::to_string(parameters) + " parameters",
                     "give tensors/names, sizes and decays one entry a tensor, sizes > 0 that sum to the parameters");
  return tensors;
}

}  // namespace

template <class Exec>
Replay<Exec>::Replay(const config::Input& input, Share share)
    : m_place(input.where("replay.file")),
      m_file(located(m_place, [&] { return ArrayReader(input.replay.file); })),
      m_share(share) {
  located(m_place, [&] { check_gradients(m_file, input, share); });
  const std::size_t parameters = m_file.shape("gradients")[2];
  check_memory(input, {"replay.file"}, static_cast<double>(parameters), 0, share);
  m_tensors = located(m_place, [&] { return read_tensors(m_file, input.replay.file, parameters); });
  m_host = HostVector<float>("OneBit::workload::replay", parameters);
}

template <class Exec>
void Replay<Exec>::initialize(const Exec& exec, const Vector<Exec, float>& x) {
  Kokkos::deep_copy(m_host, 0.0f);
  if (m_file.has("initial")) located(m_place, [&] { m_file.read("initial", {0}, {m_host.extent(0)}, m_host.data()); });
  Kokkos::deep_copy(exec, x, m_host);
  fence(exec, "OneBit::workload::replay");
}

template <class Exec>
double Replay<Exec>::gradient(const Exec& exec, const Vector<Exec, float>&, long step, const Vector<Exec, float>& g,
                              PhaseTimes& times, const GradientProgress&) {
  const Stopwatch watch;
  const std::size_t index = static_cast<std::size_t>(step - 1), rank = static_cast<std::size_t>(m_share.rank);
  located(m_place, [&] { m_file.read("gradients", {index, rank, 0}, {1, 1, m_host.extent(0)}, m_host.data()); });
  Kokkos::deep_copy(exec, g, m_host);
  fence(exec, "OneBit::workload::replay");
  times.add(Phase::backward, watch.seconds());
  return 0;
}

#define ONEBIT_INSTANTIATE(Exec) template class Replay<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
