#include "workload/workload.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "workload/images/dcgan.hpp"
#include "workload/images/images.hpp"
#include "workload/quadratic.hpp"
#include "workload/replay.hpp"
#include "workload/synthetic.hpp"
#include "workload/transformer.hpp"
#include "workload/wrapped.hpp"

namespace onebit::workload {

Footprint footprint(const config::Input& input, int ranks) {
  switch (input.workload.kind) {
    case WorkloadKind::images:
      return images_footprint(input, ranks);
    case WorkloadKind::dcgan:
      return dcgan_footprint(input, ranks);
    case WorkloadKind::quadratic:
      return quadratic_footprint(input);
    case WorkloadKind::replay:
      return located(input.where("replay.file"), [&] {
        const data::RecordedGradients gradients(input.replay.file, ranks, input.train.steps);
        return replay_footprint(gradients.tensors().size());
      });
    case WorkloadKind::synthetic:
      return synthetic_footprint(input);
    case WorkloadKind::transformer:
    case WorkloadKind::classification:
    case WorkloadKind::spans:
      break;
  }
  return transformer_footprint(input, ranks);
}

Footprint check_memory(const config::Input& input, Footprint footprint, const Share& share) {
  PhaseBytes bytes = share.run_bytes ? share.run_bytes(footprint.tensors) : PhaseBytes();
  bytes.dense += footprint.bytes;
  bytes.compressed += footprint.bytes;
  if (bytes.most() <= share.memory) return footprint;
  const std::vector<std::string>& keys = footprint.keys;
  const auto given =
      std::find_if(keys.begin(), keys.end(), [&](const std::string& key) { return input.given.count(key) > 0; });
  std::string remedy = "change ";
  for (const std::string& key : keys) remedy += (key == keys.front() ? "" : ", ") + key;
  const bool phases = bytes.dense != bytes.compressed;
  throw InputError(input.where(given != keys.end() ? *given : keys.front()),
                   "a model of " + std::to_string(footprint.tensors.size()) + " parameters takes " +
                       gibibytes(bytes.most()) + " on each rank" +
                       (phases ? " (" + gibibytes(bytes.dense) + " before compression begins, " +
                                     gibibytes(bytes.compressed) + " after)"
                               : "") +
                       " with algorithm " + input.optimizer.algorithm + ", and a rank may take " +
                       gibibytes(share.memory),
                   remedy + " or optimizer.algorithm, or run fewer ranks on a host");
}

namespace {

template <class Exec>
std::unique_ptr<Workload<Exec>> make_untimed(const Exec& exec, const config::Input& input, const Share& share) {
  switch (input.workload.kind) {
    case WorkloadKind::images:
      return std::make_unique<Images<Exec>>(exec, input, share);
    case WorkloadKind::dcgan:
      return std::make_unique<Dcgan<Exec>>(exec, input, share);
    case WorkloadKind::quadratic:
      return std::make_unique<Quadratic<Exec>>(input, share);
    case WorkloadKind::replay:
      return std::make_unique<Replay<Exec>>(input, share);
    case WorkloadKind::synthetic:
      return std::make_unique<Synthetic<Exec>>(exec, input, share);
    case WorkloadKind::transformer:
    case WorkloadKind::classification:
    case WorkloadKind::spans:
      break;
  }
  return std::make_unique<Transformer<Exec>>(exec, input, share);
}

}  // namespace

template <class Exec>
std::unique_ptr<Workload<Exec>> make_workload(const Exec& exec, const config::Input& input, const Share& share) {
  const Region region("OneBit::workload::make");
  std::unique_ptr<Workload<Exec>> workload = make_untimed(exec, input, share);
  located(input.where("workload.kind"), [&] { check_length<Exec>(workload->tensors().size()); });
  const double seconds = 1e-3 * input.workload.compute_time_ms;
  if (seconds > 0) workload = std::make_unique<Timed<Exec>>(std::move(workload), seconds);
  const auto& faults = input.faults;
  if (faults.kind != Fault::none && faults.rank == share.rank)
    workload = std::make_unique<Faulty<Exec>>(std::move(workload), faults.kind, faults.step);
  return workload;
}

#define ONEBIT_INSTANTIATE(Exec) \
  template std::unique_ptr<Workload<Exec>> make_workload(const Exec&, const config::Input&, const Share&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
