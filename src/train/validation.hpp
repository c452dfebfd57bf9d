#pragma once
/// \file validation.hpp
/// The validation of a step, which a signal may interrupt.

#include <algorithm>

#include "base/system/stop_signal.hpp"
#include "train/agreement.hpp"
#include "train/session.hpp"

namespace onebit::train {

/// Records means over all ranks' validation samples. \returns false when a signal interrupted it
/// \param x (d) parameters
template <class Exec>
bool validate(const Session<Exec>& session, const Vector<Exec, float>& x, LocalErrors& errors, StepRecord& record) {
  const Region region("OneBit::train::validate");
  enum { stopped, failed, loss, right, f1, samples, count };
  double sums[count] = {};
  const auto exchange = [&](bool fails, const workload::LossSum& mine) {
    const double values[count] = {
        StopSignal::received() ? 1.0 : 0.0, fails ? 1.0 : 0.0, mine.sum, mine.right, mine.f1, mine.samples};
    std::copy_n(values, count, sums);
    session.communicator.sum(sums, count);
    return sums[stopped] == 0 && sums[failed] == 0;
  };
  workload::LossSum mine;
  bool ends = false;
  errors.capture([&] {
    mine = session.workload->validation_loss(session.exec, x, [&] { return !(ends = !exchange(false, {})); });
  });
  // A rank that failed meets the others here, which are after the same batch or at the end.
  if (!ends) exchange(errors.failed(), mine);
  if (sums[stopped] > 0) return false;
  if (sums[failed] > 0 || !(sums[samples] > 0)) return true;
  record.validated = true;
  record.validation_loss = sums[loss] / sums[samples];
  record.validation_accuracy = sums[right] / sums[samples];
  record.validation_f1 = sums[f1] / sums[samples];
  if (mine.features.empty()) return true;
  // All ranks have as many, because they have one workload and none has failed.
  session.communicator.sum(mine.features.data(), static_cast<int>(mine.features.size()));
  record.validation_distance = 0;
  for (const double feature : mine.features)
    record.validation_distance += feature / sums[samples] * (feature / sums[samples]);
  return true;
}

}  // namespace onebit::train
