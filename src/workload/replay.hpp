#pragma once
/// \file replay.hpp
/// Gradients from an HDF5 file, to check an algorithm against another implementation. Datasets: `gradients` (steps,
/// ranks, parameters); optionally `initial` (parameters) and the tensor table `tensors/names`, `tensors/sizes` and
/// `tensors/decays`, with one entry for each tensor, in order.

#include "base/error.hpp"
#include "io/hdf5.hpp"
#include "workload/workload.hpp"

namespace onebit::workload {

/// The loss is 0, because there is no model.
template <class Exec>
class Replay : public Workload<Exec> {
public:
  Replay(const config::Input& input, Share share)
      : m_place(input.where("replay.file")),
        m_path(input.replay.file),
        m_file(located(m_place, [&] { return ArrayReader(m_path); })),
        m_share(share) {
    located(m_place, [&] { check_gradients(input.train.steps); });
    const std::size_t parameters = m_file.shape("gradients")[2];
    check_memory(input, {"replay.file"}, static_cast<double>(parameters), 0, share);
    located(m_place, [&] { read_tensors(parameters); });
    m_host = HostVector<float>("OneBit::workload::replay", parameters);
  }

  const TensorTable& tensors() const override { return m_tensors; }

  void initialize(const Exec& exec, const Vector<Exec, float>& x) override {
    Kokkos::deep_copy(m_host, 0.0f);
    if (m_file.has("initial"))
      located(m_place, [&] { m_file.read("initial", {0}, {m_host.extent(0)}, m_host.data()); });
    Kokkos::deep_copy(exec, x, m_host);
    fence(exec, "OneBit::workload::replay");
  }

  double gradient(const Exec& exec, const Vector<Exec, float>&, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientProgress&) override {
    const Stopwatch watch;
    const std::size_t index = static_cast<std::size_t>(step - 1), rank = static_cast<std::size_t>(m_share.rank);
    located(m_place, [&] { m_file.read("gradients", {index, rank, 0}, {1, 1, m_host.extent(0)}, m_host.data()); });
    Kokkos::deep_copy(exec, g, m_host);
    fence(exec, "OneBit::workload::replay");
    times.add(Phase::backward, watch.seconds());
    return 0;
  }

  double tokens_per_step() const override { return m_share.ranks; }

private:
  /// Refuses gradients of another shape or type than this run needs.
  void check_gradients(int steps) const {
    const std::vector<std::size_t> shape = m_file.shape("gradients");
    if (shape.size() != 3 || shape[2] == 0)
      throw InputError(m_path, "dataset 'gradients' does not have the shape (steps, ranks, parameters)", "write it so");
    const std::string ranks = std::to_string(shape[1]);
    if (shape[1] != static_cast<std::size_t>(m_share.ranks))
      throw InputError(m_path,
                       "dataset 'gradients' is for " + ranks + " ranks, but " + std::to_string(m_share.ranks) + " run",
                       "run with " + ranks + " ranks");
    if (shape[0] < static_cast<std::size_t>(steps))
      throw InputError(m_path,
                       "dataset 'gradients' holds " + std::to_string(shape[0]) + " steps, but train.steps is " +
                           std::to_string(steps),
                       "lower train.steps");
    check_reals("gradients");
    if (!m_file.has("initial")) return;
    if (m_file.shape("initial") != std::vector<std::size_t>{shape[2]})
      throw InputError(m_path, "dataset 'initial' does not have the shape (parameters)",
                       "write it so, or leave it out");
    check_reals("initial");
  }

  void check_reals(const std::string& dataset) const {
    if (!m_file.holds_reals(dataset))
      throw InputError(m_path, "dataset '" + dataset + "' does not hold floating-point numbers",
                       "write it as float or double");
  }

  /// Reads the tensor table, which must cover all parameters. They are one tensor if the file has no table.
  void read_tensors(std::size_t parameters) {
    if (!m_file.has("tensors/names")) {
      m_tensors.add("parameters", {parameters}, true);
      return;
    }
    const std::vector<std::size_t> shape = m_file.shape("tensors/names");
    bool consistent = shape.size() == 1 && shape[0] <= parameters && m_file.shape("tensors/sizes") == shape &&
                      m_file.shape("tensors/decays") == shape;
    if (consistent) {
      const auto names = m_file.texts("tensors/names");
      const auto sizes = m_file.integers("tensors/sizes"), decays = m_file.integers("tensors/decays");
      for (std::size_t i = 0; consistent && i < names.size(); ++i) {
        consistent = sizes[i] > 0 && static_cast<unsigned long long>(sizes[i]) <= parameters - m_tensors.size();
        if (consistent) m_tensors.add(names[i], {static_cast<std::size_t>(sizes[i])}, decays[i] != 0);
      }
    }
    if (!consistent || m_tensors.size() != parameters)
      throw InputError(m_path, "the tensor table does not add up to the " + std::to_string(parameters) + " parameters",
                       "give tensors/names, sizes and decays one entry a tensor, sizes > 0 that sum to the parameters");
  }

  std::string m_place;  ///< of `replay.file` in the input
  std::string m_path;
  ArrayReader m_file;
  Share m_share;
  TensorTable m_tensors;
  HostVector<float> m_host;  ///< (d) buffer for one gradient
};

}  // namespace onebit::workload
