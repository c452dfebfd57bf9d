/// \file workload.cpp
/// The table of workloads.

#include "workload/workload.hpp"

#include "workload/quadratic.hpp"
#include "workload/replay.hpp"
#include "workload/transformer.hpp"

namespace onebit::workload {

template <class Exec>
std::unique_ptr<Workload<Exec>> make_workload(const Exec& exec, const config::Input& input, Share share) {
  switch (input.workload.kind) {
    case config::WorkloadKind::quadratic:
      return std::make_unique<Quadratic<Exec>>(input, share);
    case config::WorkloadKind::replay:
      return std::make_unique<Replay<Exec>>(input, share);
    case config::WorkloadKind::transformer:
      break;
  }
  return std::make_unique<Transformer<Exec>>(exec, input, share);
}

#define ONEBIT_INSTANTIATE(Exec) \
  template std::unique_ptr<Workload<Exec>> make_workload(const Exec&, const config::Input&, Share);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
