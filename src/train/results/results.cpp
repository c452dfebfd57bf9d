#include "train/results/results.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <type_traits>

#include "base/quantile.hpp"
#include "io/run_lock.hpp"
#include "train/results/tables.hpp"

namespace onebit::train {
namespace {

constexpr std::array<const char*, 2> phase_name = {"dense", "compressed"};

/// What dense fp32 training hands over in one step: a ring allreduce of the gradient.
double dense_bytes(std::size_t parameters, int ranks) {
  return 2.0 * (ranks - 1) / ranks * 4.0 * static_cast<double>(parameters);
}

/// Most losses of which `end_loss` is the median.
constexpr std::size_t end_losses = 10;

/// The row of steps.csv. \param bytes that this rank handed over in the step
Columns step_columns(const StepRecord& record, std::uint64_t bytes) {
  const optim::StepState& state = record.state;
  Columns columns = {{"step", record.step},
                     {"phase", phase_name[state.compressed]},
                     {"loss", record.loss},
                     {"validation_loss", record.validation_loss},
                     {"validation_accuracy", record.validation_accuracy},
                     {"validation_f1", record.validation_f1},
                     {"validation_distance", record.validation_distance},
                     {"lr", record.lr},
                     {"gradient_l2", record.gradient_norm},
                     {"variance_l1", state.variance_l1},
                     {"variance_ratio", state.variance_ratio},
                     {"worker_residual_l2", state.worker_residual_l2},
                     {"server_residual_l2", state.server_residual_l2},
                     {"gradient_bits", record.quantization.bits},
                     {"pruned_share", record.quantization.pruned_share},
                     {"quantizer_variance", record.quantization.error},
                     {"skipped", int{record.skipped}},
                     {"bytes_sent", bytes},
                     {"step_s", record.seconds}};
  for (std::size_t phase = 0; phase < phase_names.size(); ++phase)
    columns.emplace_back(std::string(phase_names[phase]) + "_s", record.times[static_cast<Phase>(phase)]);
  columns.emplace_back("allreduce_hidden_s", record.hidden_allreduce);
  return columns;
}

/// The share of the sum that the greatest 1/b of the ascending values have; NaN if all are zero.
double share_of_greatest(const std::vector<double>& values, int b) {
  const auto greatest = static_cast<std::ptrdiff_t>(values.size()) / std::max(b, 1);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return sum > 0 ? std::accumulate(values.end() - greatest, values.end(), 0.0) / sum : optim::no_value;
}

/// The row of gradient_groups.csv: the ranges of a gradient's groups (Figures 2, 8 and 9 of the 1-bit FQT paper) and
/// the variance of its quantiser (Figure 6).
Columns group_columns(long step, const nn::GradientGroups& gradient) {
  const std::vector<double>& ranges = gradient.ranges;
  const auto count = static_cast<double>(ranges.size());
  return {{"step", step},
          {"layer", gradient.layer},
          {"axis", gradient.axis == nn::GroupAxis::rows ? "rows" : "columns"},
          {"bits", gradient.bits},
          {"groups", gradient.groups},
          {"kept", gradient.kept},
          {"elements", gradient.elements},
          {"norm_squared", gradient.error.norm_squared},
          {"variance", gradient.error.exact},
          {"paper_variance", gradient.error.paper},
          {"drawn_error", gradient.drawn_error},
          {"range_min", quantile(ranges, 0)},
          {"range_p10", quantile(ranges, 0.1)},
          {"range_p25", quantile(ranges, 0.25)},
          {"range_p50", quantile(ranges, 0.5)},
          {"range_p75", quantile(ranges, 0.75)},
          {"range_p90", quantile(ranges, 0.9)},
          {"range_p99", quantile(ranges, 0.99)},
          {"range_max", quantile(ranges, 1)},
          {"range_mean", std::accumulate(ranges.begin(), ranges.end(), 0.0) / count},
          {"share_of_greatest", share_of_greatest(ranges, gradient.bits)}};
}

/// The cells of a row of a file. \throws std::logic_error for other columns than the table has
std::vector<Cell> cells(const CsvTable& table, const Columns& columns) {
  const std::vector<std::string> names = table.names();
  std::vector<Cell> found;
  for (const auto& [name, cell] : columns) {
    if (found.size() >= names.size() || name != names[found.size()])
      throw std::logic_error(std::string(table.file) + " has no column " + name + " there");
    found.push_back(cell);
  }
  return found;
}

/// A row of profile.csv: seconds over the steps of a phase.
struct Measure {
  const char* name;
  double (*seconds)(const PhaseSums&);
};

/// The rows of the paper's Table 1, the parts of its "step", what this program adds, and two sums.
constexpr Measure measures[] = {
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
    {"check", [](const PhaseSums& s) { return s.times[Phase::check]; }},
    {"agree", [](const PhaseSums& s) { return s.times[Phase::agree]; }},
    {"total", [](const PhaseSums& s) { return s.seconds; }},
    {"communication",
     [](const PhaseSums& s) {
       return s.times[Phase::allreduce] + s.times[Phase::all_to_all] + s.times[Phase::all_gather];
     }},
};

}  // namespace

Results::Results(const Communicator& communicator, const std::string& directory, bool records_groups,
                 double target_loss)
    : m_communicator(communicator),
      m_directory(directory),
      m_records_groups(records_groups),
      m_target_loss(target_loss) {
  if (communicator.rank() > 0) return;
  for (const std::string& file : growing_files())
    m_files.try_emplace(file, directory + "/" + file, (file == steps_file ? steps_table : groups_table).names());
}

std::vector<std::string> Results::growing_files() const {
  return m_records_groups ? std::vector<std::string>{steps_file, groups_file} : std::vector<std::string>{steps_file};
}

std::string Results::text(const std::string& file) const { return m_files.empty() ? "" : m_files.at(file).text(); }

bool Results::go_on_from(const std::string& file, const std::string& text) {
  return m_files.empty() || m_files.at(file).go_on_from(text);
}

void Results::look_for_target(const StepRecord& record) {
  if (m_target_loss > 0 && m_target.step == 0 && record.validation_loss <= m_target_loss)
    m_target = {record.step, training_seconds(), bytes_sent()};
}

void Results::add(const StepRecord& record) {
  if (m_count == 1) m_tokens = m_seconds = 0, m_timed = 0;  // see tokens_per_second
  ++m_count;
  m_seconds += record.seconds;
  if (!record.skipped) take(record);
  const std::uint64_t bytes = record.traffic.total() - m_last.traffic.total();
  PhaseSums& sums = m_sums[record.skipped ? skipped_sums : record.state.compressed];
  ++sums.steps;
  sums.bytes += bytes;
  sums.seconds += record.seconds;
  sums.hidden_allreduce += record.hidden_allreduce;
  for (std::size_t phase = 0; phase < phase_names.size(); ++phase)
    sums.times.add(static_cast<Phase>(phase), record.times[static_cast<Phase>(phase)]);
  m_last = record;
  take_validation(record);
  if (m_files.empty()) return;
  m_files.at(steps_file).row(cells(steps_table, step_columns(record, bytes)));
  if (!m_records_groups) return;
  for (const nn::GradientGroups& gradient : record.quantization.gradients)
    m_files.at(groups_file).row(cells(groups_table, group_columns(record.step, gradient)));
}

void Results::take(const StepRecord& record) {
  ++m_timed;
  m_tokens += record.tokens;
  if (steps_taken() == 0) m_first_loss = record.loss;
  m_end_losses.push_back(record.loss);
  if (m_end_losses.size() > end_losses) m_end_losses.erase(m_end_losses.begin());
}

void Results::take_validation(const StepRecord& record) {
  if (!record.validated) return;
  m_validated = true;
  m_final_validation_loss = record.validation_loss;
  if (!std::isnan(record.validation_accuracy)) m_final_validation_accuracy = record.validation_accuracy;
  if (!std::isnan(record.validation_f1)) m_final_validation_f1 = record.validation_f1;
  if (!std::isnan(record.validation_distance)) m_final_validation_distance = record.validation_distance;
  look_for_target(record);
}

void Results::add_validation(const StepRecord& record) {
  take_validation(record);
  if (m_files.empty()) return;
  const std::vector<std::string> names = steps_table.names();
  const auto first = std::find(names.begin(), names.end(), "validation_loss") - names.begin();
  m_files.at(steps_file)
      .change_last_row(first, {record.validation_loss, record.validation_accuracy, record.validation_f1,
                               record.validation_distance});
}

double Results::end_loss() const {
  const std::size_t count = std::min<std::size_t>(m_end_losses.size(), steps_taken() / 2);
  if (count == 0) return optim::no_value;
  std::vector<double> losses(m_end_losses.end() - static_cast<std::ptrdiff_t>(count), m_end_losses.end());
  std::sort(losses.begin(), losses.end());
  return (losses[(count - 1) / 2] + losses[count / 2]) / 2;
}

void Results::state(optim::NumberArchive& archive) {
  comm::Traffic traffic = m_earlier_traffic;
  traffic += m_last.traffic;
  std::uint64_t within_host = m_earlier_within_host + m_last.traffic_within_host;

  // Visits all numbers: once to collect them, and once more to restore them.
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
    visit(traffic.allreduce);
    visit(traffic.all_to_all);
    visit(traffic.all_gather);
    visit(traffic.reduce_scatter);
    visit(within_host);
    visit(m_last.loss);
    visit(m_last.state.frozen_at);
    visit(m_validated);
    visit(m_final_validation_loss);
    visit(m_final_validation_accuracy);
    visit(m_final_validation_f1);
    visit(m_final_validation_distance);
    visit(m_target.step);
    visit(m_target.seconds);
    visit(m_target.bytes);
    visit(m_tokens);
    visit(m_seconds);
    visit(m_count);
    visit(m_timed);
    visit(m_first_loss);
    visit(m_restarts);
    visit(m_checkpoints);
    visit(m_checkpoint_seconds);
  };
  std::vector<double> numbers;
  each([&](const auto& value) { numbers.push_back(static_cast<double>(value)); });
  const std::size_t count = numbers.size();
  archive.numbers("results/sums", numbers, true);
  archive.numbers("results/end_losses", m_end_losses);
  if (!archive.restores()) return;
  archive.check_length("results/sums", numbers, count);
  if (m_end_losses.size() > end_losses) throw archive.unusable("results/end_losses");
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
  m_earlier_traffic = traffic;
  m_earlier_within_host = within_host;
  ++m_restarts;
}

double Results::reduction(long steps, std::uint64_t bytes, std::size_t parameters) const {
  const double dense = dense_bytes(parameters, m_communicator.size());
  return bytes > 0 ? static_cast<double>(steps) * dense / static_cast<double>(bytes) : optim::no_value;
}

std::string Results::compression_summary(std::size_t parameters) const {
  std::ostringstream text;
  text << m_sums[1].steps << " of " << steps_taken() << " steps were compressed";
  if (m_sums[skipped_sums].steps > 0) text << ", and " << m_sums[skipped_sums].steps << " more were skipped";
  const double reduced = reduction(steps_taken(), bytes_sent(), parameters);
  if (std::isnan(reduced)) return text.str() + "; nothing was sent";
  text << std::fixed << std::setprecision(1) << "; reduction of the bytes sent: " << reduced
       << " against dense fp32 averages, " << reduced / 2 << " against 16-bit ones";
  return text.str();
}

std::string Results::target_summary() const {
  if (m_target_loss == 0) return "";
  std::ostringstream text;
  text << "validation loss " << m_target_loss;
  if (m_target.step == 0)
    text << " was not reached\n";
  else
    text << " after " << m_target.step << " steps, " << m_target.seconds << " s and " << m_target.bytes << " bytes\n";
  return text.str();
}

Columns Results::columns(std::size_t parameters) const {
  const std::uint64_t bytes = bytes_sent();
  const double reduced = reduction(steps_taken(), bytes, parameters);
  const bool reached = m_target.step > 0;
  comm::Traffic traffic = m_earlier_traffic;
  traffic += m_last.traffic;
  return {{"tokens_per_s", tokens_per_second()},
          {"step_s", step_seconds()},
          {"final_loss", m_last.loss},
          {"first_loss", m_first_loss},
          {"end_loss", end_loss()},
          {"final_validation_loss", m_final_validation_loss},
          {"final_validation_accuracy", m_final_validation_accuracy},
          {"final_validation_f1", m_final_validation_f1},
          {"final_validation_distance", m_final_validation_distance},
          {"target_loss", m_target_loss > 0 ? Cell(m_target_loss) : Cell()},
          {"steps_to_target", reached ? Cell(m_target.step) : Cell()},
          {"time_to_target_s", reached ? Cell(m_target.seconds) : Cell()},
          {"bytes_to_target", reached ? Cell(m_target.bytes) : Cell()},
          {"variance_frozen_at_step", m_last.state.frozen_at > 0 ? Cell(m_last.state.frozen_at) : Cell()},
          {"skipped_steps", m_sums[skipped_sums].steps},
          {"bytes_sent", bytes},
          {"bytes_sent_dense_phase", m_sums[0].bytes},
          {"bytes_sent_compressed_phase", m_sums[1].bytes},
          {"bytes_sent_allreduce", traffic.allreduce},
          {"bytes_sent_all_to_all", traffic.all_to_all},
          {"bytes_sent_all_gather", traffic.all_gather},
          {"bytes_sent_reduce_scatter", traffic.reduce_scatter},
          {"bytes_dense_fp32", static_cast<double>(steps_taken()) * dense_bytes(parameters, m_communicator.size())},
          {"reduction", reduced},
          {"reduction_vs_16bit", reduced / 2},
          {"reduction_compressed_phase", reduction(m_sums[1].steps, m_sums[1].bytes, parameters)},
          {"training_s", training_seconds()},
          {"bytes_within_host", m_earlier_within_host + m_last.traffic_within_host},
          {"restarts", m_restarts},
          {"checkpoints", m_checkpoints},
          {"checkpoint_s", m_checkpoint_seconds}};
}

void Results::finish(const Columns& run_columns) {
  const Region region("OneBit::train::results");
  const std::vector<std::vector<Cell>> rows = profile_rows();
  m_communicator.collectively([&] {
    if (m_files.empty()) return;
    CsvFile profile(m_directory + "/" + profile_table.file, profile_table.names());
    for (const auto& row : rows) profile.row(row);
    CsvFile run(m_directory + "/" + run_table.file, run_table.names());
    run.row(cells(run_table, run_columns));
    std::vector<CsvFile*> files{&profile};
    for (auto& [name, file] : m_files) files.push_back(&file);
    files.push_back(&run);
    // All files are complete before one takes the place of an earlier run's.
    for (CsvFile* const file : files) file->close();
    keep_earlier(m_directory + "/" + groups_file);  // also where this run has none
    for (CsvFile* const file : files) file->finish();
  });
}

/// Collective: each measure is the mean over the steps of a phase; a row has its least, mean and greatest over ranks.
std::vector<std::vector<Cell>> Results::profile_rows() const {
  constexpr int count = static_cast<int>(std::size(measures));
  const int ranks = m_communicator.size();
  std::vector<std::vector<Cell>> rows;
  for (const int compressed : {0, 1}) {
    const PhaseSums& sums = m_sums[compressed];
    if (sums.steps == 0) continue;
    std::vector<double> mine;
    for (const Measure& measure : measures) mine.push_back(measure.seconds(sums) / static_cast<double>(sums.steps));
    const std::vector<double> all = m_communicator.gather(mine.data(), count);
    double total = 0;  // of all ranks
    for (int i = 0; i < count; ++i) {
      double least = all[i], greatest = all[i], sum = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        least = std::min(least, all[rank * count + i]);
        greatest = std::max(greatest, all[rank * count + i]);
        sum += all[rank * count + i];
      }
      const std::string name = measures[i].name;
      if (name == "total") total = sum;
      rows.push_back({phase_name[compressed], name, sums.steps, least, sum / ranks, greatest,
                      name == "communication" && total > 0 ? Cell(sum / total) : Cell()});
    }
  }
  return rows;
}

}  // namespace onebit::train
