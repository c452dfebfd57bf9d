#pragma once
/// \file replay.hpp
/// Gradients from a file, to check an algorithm against another implementation.

#include "base/error.hpp"
#include "data/recorded_gradients.hpp"
#include "workload/workload.hpp"

namespace onebit::workload {

/// With the host's buffer for one gradient.
inline Footprint replay_footprint(std::size_t parameters) {
  Footprint footprint{{}, static_cast<double>(sizeof(float)) * parameters, {"replay.file"}};
  footprint.tensors.add("x", {parameters}, true);
  return footprint;
}

/// The loss is 0, because there is no model.
template <class Exec>
class Replay : public Workload<Exec> {
public:
  Replay(const config::Input& input, const Share& share)
      : m_place(input.where("replay.file")),
        m_gradients(located(
            m_place, [&] { return data::RecordedGradients(input.replay.file, share.ranks, input.train.steps); })),
        m_rank(share.rank),
        m_ranks(share.ranks),
        m_bytes(check_memory(input, replay_footprint(m_gradients.parameters()), share).bytes) {
    m_tensors = located(m_place, [&] { return m_gradients.tensors(); });
    m_host = HostVector<float>("OneBit::workload::replay", m_gradients.parameters());
  }

  const TensorTable& tensors() const override { return m_tensors; }
  double bytes() const override { return m_bytes; }

  void initialize(const Exec& exec, const Vector<Exec, float>& x) override {
    Kokkos::deep_copy(m_host, 0.0f);
    located(m_place, [&] { m_gradients.read_initial(m_host.data()); });
    Kokkos::deep_copy(exec, x, m_host);
    fence(exec, "OneBit::workload::replay");
  }

  double gradient(const Exec& exec, const Vector<Exec, float>&, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientReady&) override {
    const Stopwatch watch;
    located(m_place, [&] { m_gradients.read(step, m_rank, m_host.data()); });
    Kokkos::deep_copy(exec, g, m_host);
    fence(exec, "OneBit::workload::replay");
    times.add(Phase::backward, watch.seconds());
    return 0;
  }

  double tokens_per_step() const override { return m_ranks; }

private:
  std::string m_place;  ///< of `replay.file` in the input
  data::RecordedGradients m_gradients;
  int m_rank, m_ranks;
  double m_bytes;
  TensorTable m_tensors;
  HostVector<float> m_host;  ///< (d) buffer for one gradient
};

}  // namespace onebit::workload
