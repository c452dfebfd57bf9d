/// \file results.cpp
/// See results.hpp.

#include "train/results.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>
#include <type_traits>

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
    : m_communicator(communicator),
      m_directory(directory),
      m_final_validation_loss(nothing),
      m_final_validation_accuracy(nothing) {
  if (communicator.rank() > 0) return;
  std::vector<std::string> columns = {
      "step",        "phase",       "loss",           "validation_loss",    "validation_accuracy", "lr",
      "gradient_l2", "variance_l1", "variance_ratio", "worker_residual_l2", "server_residual_l2",  "skipped",
      "bytes_sent",  "step_s"};
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
  if (!std::isnan(record.validation_accuracy)) m_final_validation_accuracy = record.validation_accuracy;
  m_last = record;
  if (!m_steps) return;

  const optim::StepState& state = record.state;
  std::vector<report::Cell> cells = {record.step,
                                     phase_name[state.compressed],
                                     record.loss,
                                     record.validation_loss,
                                     record.validation_accuracy,
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

void Results::state(optim::NumberArchive& archive, const comm::Traffic& traffic, std::uint64_t within_host) {
  comm::Traffic all = m_earlier_traffic;
  all.allreduce += traffic.allreduce;
  all.all_to_all += traffic.all_to_all;
  all.all_gather += traffic.all_gather;
  std::uint64_t all_within_host = m_earlier_within_host + within_host;

  // Saving goes through all numbers once, to collect them; restoring a second time, to take them.
  std::vector<double> numbers;
  const auto each = [&](const auto& visit) {
    for (PhaseSums& sums : m_sums) {
      visit(sums.steps);
      visit(sums.bytes);
      visit(sums.seconds);
      visit(sums.hidden_allreduce);
      for (std::size_t phase = 0; phase < phase_names.size(); ++phase) {
        double seconds = sums.times[static_cast<Phase>(phase)];
        visit(seconds);
        sums.times.set(static_cast<Phase>(phase), seconds);
      }
    }
    visit(all.allreduce);
    visit(all.all_to_all);
    visit(all.all_gather);
    visit(all_within_host);
    visit(m_last.loss);
    visit(m_last.state.frozen_at);
    visit(m_final_validation_loss);
    visit(m_final_validation_accuracy);
    visit(m_tokens);
    visit(m_seconds);
    visit(m_count);
    visit(m_skipped);
    visit(m_restarts);
    visit(m_checkpoints);
    visit(m_checkpoint_seconds);
    visit(m_checkpoint_writing_seconds);
  };
  each([&](const auto& value) { numbers.push_back(static_cast<double>(value)); });
  const std::size_t count = numbers.size();
  archive.numbers("results/sums", numbers, true);
  if (!archive.restores()) return;
  archive.check_length("results/sums", numbers, count);
  auto next = numbers.begin();
  each([&](auto& value) {
    using T = std::decay_t<decltype(value)>;
    const double read = *next++;
    if constexpr (std::is_integral_v<T>) {
      // A mean over ranks need not be whole.
      if (!(read >= 0 && read < 9e18)) throw archive.unusable("results/sums");
      value = static_cast<T>(std::llround(read));
    } else {
      value = read;
    }
  });
  m_earlier_traffic = all;
  m_earlier_within_host = all_within_host;
  ++m_restarts;
}

double Results::reduction(long steps, std::uint64_t bytes, std::size_t parameters) const {
  const double dense = dense_bytes(parameters, m_communicator.size());
  return bytes > 0 ? static_cast<double>(steps) * dense / static_cast<double>(bytes) : nothing;
}

std::string Results::compression_summary(std::size_t parameters) const {
  std::ostringstream text;
  text << m_sums[1].steps << " of " << m_count << " steps were compressed";
  const double reduced = reduction(m_count, m_sums[0].bytes + m_sums[1].bytes, parameters);
  if (std::isnan(reduced)) return text.str() + "; nothing was sent";
  text << std::fixed << std::setprecision(1) << "; reduction of the bytes sent: " << reduced
       << " against dense fp32 averages, " << reduced / 2 << " against 16-bit ones";
  return text.str();
}

void Results::finish(const RunColumns& leading, const RunColumns& trailing, std::size_t parameters,
                     const comm::Traffic& traffic, std::uint64_t within_host) {
  const Region region("OneBit::train::results");
  const double dense = dense_bytes(parameters, m_communicator.size());
  const std::uint64_t bytes = m_sums[0].bytes + m_sums[1].bytes;
  const double reduced = reduction(m_count, bytes, parameters);
  write_profile();
  m_communicator.collectively([&] {
    if (!m_steps) return;
    m_steps->close();
    RunColumns columns = leading;
    const auto add = [&](const char* name, report::Cell value) { columns.emplace_back(name, std::move(value)); };
    add("tokens_per_s", tokens_per_second());
    add("final_loss", m_last.loss);
    add("final_validation_loss", m_final_validation_loss);
    add("final_validation_accuracy", m_final_validation_accuracy);
    add("variance_frozen_at_step", m_last.state.frozen_at > 0 ? report::Cell(m_last.state.frozen_at) : report::Cell());
    add("skipped_steps", m_skipped);
    add("bytes_sent", bytes);
    add("bytes_sent_dense_phase", m_sums[0].bytes);
    add("bytes_sent_compressed_phase", m_sums[1].bytes);
    add("bytes_sent_allreduce", m_earlier_traffic.allreduce + traffic.allreduce);
    add("bytes_sent_all_to_all", m_earlier_traffic.all_to_all + traffic.all_to_all);
    add("bytes_sent_all_gather", m_earlier_traffic.all_gather + traffic.all_gather);
    add("bytes_dense_fp32", static_cast<double>(m_count) * dense);
    add("reduction", reduced);
    add("reduction_vs_16bit", reduced / 2);
    add("reduction_compressed_phase", reduction(m_sums[1].steps, m_sums[1].bytes, parameters));
    add("training_s", m_sums[0].seconds + m_sums[1].seconds);
    add("bytes_within_host", m_earlier_within_host + within_host);
    add("restarts", m_restarts);
    add("checkpoints", m_checkpoints);
    add("checkpoint_s", m_checkpoint_seconds);
    add("checkpoint_writing_s", m_checkpoint_writing_seconds);
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
