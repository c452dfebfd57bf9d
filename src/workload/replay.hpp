#pragma once
/// \file replay.hpp
/// Gradients read from an HDF5 file, so that anyone can check an algorithm against an implementation of their own:
/// dataset `gradients` (steps, ranks, parameters), optional `initial` (parameters), optional tensor table
/// `tensors/names`, `tensors/sizes`, `tensors/decays` (one entry a tensor, in order).

#include "io/hdf5.hpp"
#include "workload/workload.hpp"

namespace onebit::workload {

/// The loss of a replay is 0: there is no model.
template <class Exec>
class Replay : public Workload<Exec> {
public:
  Replay(const config::Input& input, Share share);

  const TensorTable& tensors() const override { return m_tensors; }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override;
  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientProgress& final_from) override;
  LossSum validation_loss(const Exec&, const Vector<Exec, float>&) override { return {}; }
  double tokens_per_step() const override { return m_share.ranks; }

private:
  std::string m_place;  ///< of `replay.file` in the input
  ArrayReader m_file;
  Share m_share;
  TensorTable m_tensors;
  HostVector<float> m_host;  ///< (d) one gradient on its way to the device
};

}  // namespace onebit::workload
