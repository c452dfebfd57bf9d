/// \file results.cpp
/// See results.hpp.

#include "train/results.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace onebit::train {
namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
constexpr std::array<const char*, 2> phase_name = {"dense", "compressed"};

/// What dense fp32 training hands over in one step: a ring allreduce of the gradient.
double dense_bytes(std::size_t parameters, int ranks) {
  return 2.0 * (ranks - 1) / ranks * 4.0 * static_cast<double>(parameters);
}

}  // namespace

Results::Results(const Communicator& communicator, const std::string& directory)
    : m_communicator(communicator), m_directory(directory), m_final_validation_loss(nothing) {
  if (communicator.rank() > 0) return;
  std::vector<std::string> columns = {
      "step",        "phase",       "loss",           "validation_loss",    "lr",
      "gradient_l2", "variance_l1", "variance_ratio", "worker_residual_l2", "server_residual_l2",
      "skipped",     "bytes_sent",  "step_s"};
  for (const char* name : phase_names) columns.push_back(std::string(name) + "_s");
  columns.emplace_back("allreduce_hidden_s");
  m_steps = std::make_unique<report::CsvFile>(directory + "/steps.csv", columns);
}

void Results::add(const StepRecord& record) {
  // The first step allocates and warms caches; it counts only where it is the only one.
  if (m_count == 1) m_tokens = m_seconds = 0;
  ++m_count;
  m_skipped += record.skipped;
  m_tokens += record.tokens;
  m_seconds += record.seconds;
  PhaseSums& sums = m_sums[record.state.compressed];
  sums.bytes += record.bytes;
  ++sums.steps;
  sums.seconds += record.seconds;
  sums.hidden_allreduce += record.hidden_allreduce;
  for (std::size_t phase = 0; phase < phase_names.size(); ++phase)
    sums.times.add(static_cast<Phase>(phase), record.times[static_cast<Phase>(phase)]);
  if (!std::isnan(record.validation_loss)) m_final_validation_loss = record.validation_loss;
  m_last = record;
  if (!m_steps) return;

  const optim::StepState& state = record.state;
  std::vector<report::Cell> cells = {record.step,
                                     phase_name[state.compressed],
                                     record.loss,
                                     record.validation_loss,
                                     record.lr,
                                     record.gradient_norm,
                                     state.variance_l1,
                                     state.variance_ratio,
                                     state.worker_residual_l2,
                                     state.server_residual_l2,
                                     int{record.skipped},
                                     record.bytes,
                                     record.seconds};
  for (std::size_t phase = 0; phase < phase_names.size(); ++phase)
    cells.emplace_back(record.times[static_cast<Phase>(phase)]);
  cells.emplace_back(record.hidden_allreduce);
  m_steps->row(cells);
}

double Results::tokens_per_second() const { return m_seconds > 0 ? m_tokens / m_seconds : 0; }

void Results::finish(const RunColumns& leading, const RunColumns& trailing, std::size_t parameters,
                     const comm::Traffic& traffic) {
  const double dense = dense_bytes(parameters, m_communicator.size());
  const auto reduction = [&](double steps, std::uint64_t bytes) {
    return bytes > 0 ? steps * dense / static_cast<double>(bytes) : nothing;
  };
  write_profile();
  m_communicator.collectively([&] {
    if (!m_steps) return;
    m_steps->close();
    RunColumns columns = leading;
    const auto add = [&](const char* name, report::Cell value) { columns.emplace_back(name, std::move(value)); };
    add("tokens_per_s", tokens_per_second());
    add("final_loss", m_last.loss);
    add("final_validation_loss", m_final_validation_loss);
    add("variance_frozen_at_step", m_last.state.frozen_at > 0 ? report::Cell(m_last.state.frozen_at) : report::Cell());
    add("skipped_steps", m_skipped);
    add("bytes_sent", m_sums[0].bytes + m_sums[1].bytes);
    add("bytes_sent_dense_phase", m_sums[0].bytes);
    add("bytes_sent_compressed_phase", m_sums[1].bytes);
    add("bytes_sent_allreduce", traffic.allreduce);
    add("bytes_sent_all_to_all", traffic.all_to_all);
    add("bytes_sent_all_gather", traffic.all_gather);
    add("bytes_dense_fp32", static_cast<double>(m_count) * dense);
    add("reduction", reduction(static_cast<double>(m_count), m_sums[0].bytes + m_sums[1].bytes));
    add("reduction_compressed_phase", reduction(static_cast<double>(m_sums[1].steps), m_sums[1].bytes));
    add("training_s", m_sums[0].seconds + m_sums[1].seconds);
    columns.insert(columns.end(), trailing.begin(), trailing.end());
    std::vector<std::string> names;
    std::vector<report::Cell> values;
    for (const auto& [name, value] : columns) {
      names.push_back(name);
      values.push_back(value);
    }
    report::CsvFile run(m_directory + "/run.csv", names);
    run.row(values);
    // All are complete before one takes the place of an earlier run's.
    run.close();
    m_profile->finish();
    m_steps->finish();
    run.finish();
  });
}

// The rows of the paper's Table 1, then the parts of "step"; each the mean over the steps of a phase, as the least,
// mean and greatest over ranks.
void Results::write_profile() {
  struct Measure {
    const char* name;
    double (*seconds)(const PhaseSums&);
  };
  static constexpr Measure measures[] = {
      {"forward", [](const PhaseSums& s) { return s.times[Phase::forward]; }},
      {"backward_allreduce", [](const PhaseSums& s) { return s.times[Phase::allreduce]; }},
      {"backward_allreduce_hidden", [](const PhaseSums& s) { return s.hidden_allreduce; }},
      {"backward_everything_else", [](const PhaseSums& s) { return s.times[Phase::backward]; }},
      {"step",
       [](const PhaseSums& s) {
         return s.times[Phase::compress] + s.times[Phase::all_to_all] + s.times[Phase::average] +
                s.times[Phase::all_gather] + s.times[Phase::update];
       }},
      {"step_compress", [](const PhaseSums& s) { return s.times[Phase::compress]; }},
      {"step_all_to_all", [](const PhaseSums& s) { return s.times[Phase::all_to_all]; }},
      {"step_average", [](const PhaseSums& s) { return s.times[Phase::average]; }},
      {"step_all_gather", [](const PhaseSums& s) { return s.times[Phase::all_gather]; }},
      {"step_update", [](const PhaseSums& s) { return s.times[Phase::update]; }},
      {"total", [](const PhaseSums& s) { return s.seconds; }},
      {"communication",
       [](const PhaseSums& s) {
         return s.times[Phase::allreduce] + s.times[Phase::all_to_all] + s.times[Phase::all_gather];
       }},
  };
  constexpr int count = static_cast<int>(std::size(measures));
  const int ranks = m_communicator.size();
  std::vector<std::vector<report::Cell>> rows;
  for (const int compressed : {0, 1}) {
    const PhaseSums& sums = m_sums[compressed];
    if (sums.steps == 0) continue;
    std::vector<double> mine(count);
    for (int i = 0; i < count; ++i) mine[i] = measures[i].seconds(sums) / static_cast<double>(sums.steps);
    const std::vector<double> all = m_communicator.gather(mine.data(), count);
    double mean_total = 0, mean_communication = 0;
    for (int i = 0; i < count; ++i) {
      double least = all[i], greatest = all[i], sum = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        least = std::min(least, all[rank * count + i]);
        greatest = std::max(greatest, all[rank * count + i]);
        sum += all[rank * count + i];
      }
      const std::string name = measures[i].name;
      if (name == "total") mean_total = sum;
      if (name == "communication") mean_communication = sum;
      rows.push_back(
          {phase_name[compressed], name, sums.steps, least, sum / ranks, greatest,
           mean_total > 0 && name == "communication" ? report::Cell(mean_communication / mean_total) : report::Cell()});
    }
  }
  m_communicator.collectively([&] {
    if (m_communicator.rank() > 0) return;
    m_profile = std::make_unique<report::CsvFile>(
        m_directory + "/profile.csv",
        std::vector<std::string>{"phase", "measure", "steps", "min_s", "mean_s", "max_s", "share_of_total"});
    for (const auto& row : rows) m_profile->row(row);
    m_profile->close();
  });
}

}  // namespace onebit::train
