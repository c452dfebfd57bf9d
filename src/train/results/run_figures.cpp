#include "train/results/run_figures.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace onebit::train {
namespace {

/// A figure and the column that it comes from.
struct ColumnFigure {
  const char* name;
  const char* column;
  const char* unit;
  bool always;  ///< an empty cell is a number that is not finite, and otherwise no figure
};
constexpr ColumnFigure column_figures[] = {
    {"tokens_per_s", "tokens_per_s", "1/s", true},
    {"step_s", "step_s", "s", true},
    {"training_s", "training_s", "s", true},
    {"final_loss", "final_loss", "nats", true},
    {"final_validation_loss", "final_validation_loss", "nats", false},
    {"final_validation_accuracy", "final_validation_accuracy", "fraction", false},
    {"final_validation_f1", "final_validation_f1", "fraction", false},
    {"steps_to_target", "steps_to_target", "steps", false},
    {"time_to_target_s", "time_to_target_s", "s", false},
    {"bytes_to_target", "bytes_to_target", "B", false},
    {"frozen_at", "variance_frozen_at_step", "steps", false},
    {"skipped_steps", "skipped_steps", "steps", true},
    {"bytes_sent", "bytes_sent", "B", true},
    {"reduction", "reduction", "times", false},
    {"reduction_vs_16bit", "reduction_vs_16bit", "times", false},
    {"peak_memory_bytes", "peak_memory_bytes", "B", true}};

/// Columns that say what was run, for the JSON form.
constexpr const char* noted_columns[] = {"machine",      "workload",      "algorithm",  "seed",      "steps",
                                         "batch",        "learning_rate", "parameters", "precision", "transport",
                                         "collective",   "architecture",  "layers",     "hidden",    "heads",
                                         "feed_forward", "positions",     "vocabulary", "sequence"};

/// By how much the last losses may be above the first one: this fraction of it, or of 1 nat where that is more. A run
/// of few steps is a trial, of which only a loss without any bound is wrong.
constexpr double rise_allowed = 0.2, rise_of_trial = 1e6;
constexpr double steps_of_trial = 10;

std::string text_of(const Columns& columns, const std::string& name) {
  const auto found = std::find_if(columns.begin(), columns.end(), [&](const auto& pair) { return pair.first == name; });
  if (found == columns.end()) throw std::logic_error("run.csv has no column " + name);
  return found->second.text();
}

/// NaN for an empty cell.
double number_of(const Columns& columns, const std::string& name) {
  const std::string text = text_of(columns, name);
  return text.empty() ? optim::no_value : std::strtod(text.c_str(), nullptr);
}

/// "final loss 2.345"
std::string shown(const std::string& name, double value) { return name + " " + Cell(value).text(); }

}  // namespace

FiguresOfMerit run_figures(const Columns& columns) {
  FiguresOfMerit figures;
  for (const ColumnFigure& figure : column_figures)
    if (figure.always || !text_of(columns, figure.column).empty())
      figures.set(figure.name, number_of(columns, figure.column), figure.unit);
  for (const char* const column : noted_columns)
    if (const std::string text = text_of(columns, column); !text.empty()) figures.note(column, text);
  return figures;
}

namespace {

/// Judges how the training went: most steps were taken, and the loss did not rise.
void judge_course(FiguresOfMerit& figures, const Columns& columns, const char* remedy) {
  const double skipped = number_of(columns, "skipped_steps"), steps = number_of(columns, "steps");
  if (2 * skipped >= steps)
    figures.reject(
        Cell(skipped).text() + " of " + Cell(steps).text() + " steps were skipped, because gradients were not finite",
        remedy);
  const double first = number_of(columns, "first_loss"), end = number_of(columns, "end_loss");
  if (std::isnan(end)) return;  // fewer than two steps were taken
  const double allowed = steps - skipped < steps_of_trial ? rise_of_trial : rise_allowed;
  if (!(end - first <= allowed * std::max(1.0, std::abs(first))))
    figures.reject("the loss rose from " + Cell(first).text() + " in the first step to " + Cell(end).text() +
                       ", the median of the last ones",
                   remedy);
}

}  // namespace

void judge(FiguresOfMerit& figures, const Columns& columns, const config::Input& input, bool validated, int ranks) {
  const char* const remedy = "look at steps.csv: lower optimizer.lr, or set optimizer.clip";
  const double loss = number_of(columns, "final_loss"), found = number_of(columns, "final_validation_loss");
  if (std::isfinite(loss))
    figures.confirm(shown("final loss", loss) + " is finite");
  else
    figures.reject("the final loss is not finite", remedy);
  judge_course(figures, columns, remedy);
  if (ranks > 1 && input.run.check_replicas_every > 0)
    figures.confirm("replicas of " + std::to_string(ranks) + " ranks are bitwise equal");
  if (validated && !std::isfinite(found)) {
    figures.reject("the final validation loss is not finite", remedy);
    return;
  }
  const double bound = input.train.loss_at_most;
  if (bound == 0) return;
  const std::string of_bound = shown("train.loss_at_most", bound);
  if (!validated)
    figures.reject("no validation loss to compare with " + of_bound, "give the run data to validate with");
  else if (found <= bound)
    figures.confirm(shown("final validation loss", found) + " is at most " + of_bound);
  else
    figures.reject(shown("final validation loss", found) + " is above " + of_bound,
                   "look at steps.csv; train for more steps, or raise train.loss_at_most");
}

}  // namespace onebit::train
