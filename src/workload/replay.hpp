#pragma once
/// \file replay.hpp
/// Gradients from a file, to check an algorithm against another implementation.

#include "base/error.hpp"
#include "data/recorded_gradients.hpp"
#include "workload/workload.hpp"

namespace onebit::workload {

/// The loss is 0, because there is no model.
template <class Exec>
class Replay : public Workload<Exec> {
public:
  Replay(const config::Input& input, Share share)
      : m_place(input.where("replay.file")),
        m_gradients(located(
            m_place, [&] { return data::RecordedGradients(input.replay.file, share.ranks, input.train.steps); })),
        m_share(share) {
    check_memory(input, {"replay.file"}, static_cast<double>(m_gradients.parameters()), 0, share);
    m_tensors = located(m_place, [&] { return m_gradients.tensors(); });
    m_host = HostVector<float>("OneBit::workload::replay", m_gradients.parameters());
  }

  const TensorTable& tensors() const override { return m_tensors; }

  void initialize(const Exec& exec, const Vector<Exec, float>& x) override {
    Kokkos::deep_copy(m_host, 0.0f);
    located(m_place, [&] { m_gradients.read_initial(m_host.data()); });
    Kokkos::deep_copy(exec, x, m_host);
    fence(exec, "OneBit::workload::replay");
  }

  double gradient(const Exec& exec, const Vector<Exec, float>&, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const StepProgress&) override {
    const Stopwatch watch;
    located(m_place, [&] { m_gradients.read(step, m_share.rank, m_host.data()); });
    Kokkos::deep_copy(exec, g, m_host);
    fence(exec, "OneBit::workload::replay");
    times.add(Phase::backward, watch.seconds());
    return 0;
  }

  double tokens_per_step() const override { return m_share.ranks; }

private:
  std::string m_place;  ///< of `replay.file` in the input
  data::RecordedGradients m_gradients;
  Share m_share;
  TensorTable m_tensors;
  HostVector<float> m_host;  ///< (d) buffer for one gradient
};

}  // namespace onebit::workload
