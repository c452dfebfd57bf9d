#include "workload/start.hpp"

#include "base/error.hpp"
#include "data/recorded_gradients.hpp"
#include "workload/transformer.hpp"

namespace onebit::workload {

void check_start(const config::Input& input, Share share) {
  switch (input.workload.kind) {
    case WorkloadKind::transformer:
    case WorkloadKind::classification:
      return check_transformer(input, share);
    case WorkloadKind::replay: {
      const std::size_t parameters = located(input.where("replay.file"), [&] {
        const data::RecordedGradients gradients(input.replay.file, share.ranks, input.train.steps);
        return gradients.tensors().size();
      });
      return check_memory(input, {"replay.file"}, static_cast<double>(parameters), 0, share);
    }
    case WorkloadKind::quadratic:
      return check_memory(input, {"quadratic.dimension"}, input.quadratic.dimension, 0, share);
    case WorkloadKind::synthetic:
      return check_memory(input, {"workload.parameters"}, input.workload.parameters, 0, share);
  }
}

}  // namespace onebit::workload
