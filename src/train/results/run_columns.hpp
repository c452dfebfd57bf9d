#pragma once
/// \file run_columns.hpp
/// The columns of run.csv: what was run, on what, and with which results; tables.cpp describes them.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "base/system/build_info.hpp"
#include "base/system/machine.hpp"
#include "config/checks.hpp"
#include "linalg/blas.hpp"
#include "train/replicas.hpp"
#include "train/results/results.hpp"
#include "train/session.hpp"

namespace onebit::train {

/// The value of an environment variable; empty if it is not set.
inline std::string environment(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? value : "";
}

/// What was run, on what, in which Slurm job; the last are empty cells outside Slurm.
template <class Exec>
Columns set_up_columns(const Session<Exec>& session) {
  const config::Input& input = session.input;
  const comm::Transport<Exec>& transport = *session.averaging.transport;
  const linalg::BlasInfo blas = linalg::blas_info();
  return {{"version", build_version},
          {"git", build_git},
          {"compiler", build_compiler},
          {"kokkos", kokkos_version()},
          {"backend", BackendName<Exec>::value},
          {"machine", machine_name(session.exec)},
          {"date", session.date},
          {"mpi", mpi_library()},
          {"transport", to_string(transport.kind())},
          {"collective", session.averaging.name()},
          {"collective_reason", session.averaging.reason},
          {"dense_type", to_string(input.comm.dense_type)},
          {"device_mpi", transport.device_support().supported ? "yes" : "no"},
          {"device_mpi_evidence", transport.device_support().evidence},
          {"network", environment("ONEBIT_NETWORK")},
          {"precision", to_string(session.precision.precision)},
          {"precision_reason", session.precision.reason},
          {"blas", blas.library},
          {"blas_core", blas.core},
          {"input", input.file},
          {"workload", to_string(input.workload.kind)},
          {"algorithm", input.optimizer.algorithm},
          {"seed", static_cast<long>(input.run.seed)},
          {"ranks", session.communicator.size()},
          {"threads_per_rank", is_host<Exec> ? concurrency(session.exec) : 1},
          {"parameters", static_cast<std::uint64_t>(session.tensors().size())},
          {"steps", input.train.steps},
          {"batch", input.train.batch},
          {"learning_rate", input.optimizer.lr},
          {"slurm_job_id", environment("SLURM_JOB_ID")},
          {"slurm_job_name", environment("SLURM_JOB_NAME")},
          {"slurm_array_job_id", environment("SLURM_ARRAY_JOB_ID")},
          {"slurm_array_task_id", environment("SLURM_ARRAY_TASK_ID")},
          {"slurm_restarts", environment("SLURM_RESTART_COUNT")},
          {"slurm_cluster", environment("SLURM_CLUSTER_NAME")},
          {"slurm_partition", environment("SLURM_JOB_PARTITION")},
          {"slurm_account", environment("SLURM_JOB_ACCOUNT")},
          {"slurm_nodes", environment("SLURM_JOB_NUM_NODES")},
          {"slurm_nodelist", environment("SLURM_JOB_NODELIST")},
          {"slurm_tasks_per_node", environment("SLURM_TASKS_PER_NODE")},
          {"slurm_cpus_per_task", environment("SLURM_CPUS_PER_TASK")}};
}

/// The shape of the model; empty cells for a workload without one. A network of images has a name alone.
template <class Exec>
Columns model_columns(const Session<Exec>& session) {
  const config::Input& input = session.input;
  const auto& model = input.model;
  const bool has_model = config::has_model(input);
  const bool has_network = input.workload.kind == WorkloadKind::images;
  const auto cell = [&](const auto& value) { return has_model ? Cell(value) : Cell(); };
  // The tokeniser may decide it; the embeddings of its tokens are the first tensor.
  const std::size_t vocabulary = has_model ? session.tensors().at_element(0).shape[0] : 0;
  return {{"architecture", has_network ? Cell(to_string(input.images.network)) : cell(to_string(model.architecture))},
          {"layers", cell(model.layers)},
          {"hidden", cell(model.hidden)},
          {"heads", cell(model.heads)},
          {"feed_forward", cell(model.feed_forward)},
          {"positions", cell(model.positions)},
          {"vocabulary", cell(static_cast<std::uint64_t>(vocabulary))},
          {"sequence", cell(model.sequence)}};
}

/// What the run left, and the memory of the rank that took most. Collective.
template <class Exec>
Columns end_columns(const Session<Exec>& session, long overruns) {
  const std::string hash_of_x = hex(hash(session.exec, session.x));
  const ViewMemory& views = session.view_memory;
  const double mine[3] = {views.of("optim") + views.of("comm") + views.of("compress"), views.peak(),
                          peak_host_memory()};
  const std::vector<double> all = session.communicator.gather(mine, 3);
  double most[3] = {};
  for (std::size_t i = 0; i < all.size(); ++i) most[i % 3] = std::max(most[i % 3], all[i]);
  const Hosts hosts = hosts_of(session.communicator);
  const Energy::Joules energy = session.energy.total(session.communicator);
  return {{"hosts", hosts.count},
          {"host_names", hosts.names},
          {"wall_s", session.watch.seconds()},
          {"host_joules", energy.hosts},
          {"gpu_joules", energy.gpus},
          {"bucket_bytes", session.exchange.gradient_buckets() ? session.input.comm.bucket_bytes : 0},
          {"compressed_bucket_bytes", session.input.comm.compressed_bucket_bytes},
          {"compressed_overlap", session.exchange.momentum_buckets() ? "backward" : "none"},
          {"compute_time_ms", session.input.workload.compute_time_ms},
          {"compute_overruns", overruns},
          {"parameters_hash", hash_of_x},
          {"optimizer_bytes_per_parameter", most[0] / static_cast<double>(session.tensors().size())},
          {"peak_view_bytes", most[1]},
          {"peak_memory_bytes", most[2]},
          {"predicted_dense_bytes", session.predicted_bytes().dense},
          {"predicted_compressed_bytes", session.predicted_bytes().compressed}};
}

/// All columns, after the last step. Collective.
/// \param overruns steps that `workload.compute_time_ms` was too short for, on the rank with most
template <class Exec>
Columns run_columns(const Session<Exec>& session, long overruns) {
  Columns columns = set_up_columns(session);
  const auto append = [&](const Columns& more) { columns.insert(columns.end(), more.begin(), more.end()); };
  append(model_columns(session));
  append(session.results->columns(session.tensors().size()));
  append(end_columns(session, overruns));
  return columns;
}

}  // namespace onebit::train
