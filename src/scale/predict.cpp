#include "scale/predict.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>

#include "base/error.hpp"
#include "io/csv.hpp"
#include "scale/crossover.hpp"
#include "scale/simulate.hpp"

namespace onebit::scale {
namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
constexpr double gbit = 1e9 / 8;  // bytes
/// Greatest median of the relative errors of a fit that describes its rows. Those of the laboratory are up to 20 %.
constexpr double most_median_error = 0.5;

/// Bytes of memory that a rank's work reads and writes for each element.
constexpr double reduce_traffic = 12;     // two terms, a sum
constexpr double compress_traffic = 12;   // the vector, c of the last and of this call
constexpr double average_traffic = 8;     // a sum's old and new value, for each element received
constexpr double decompress_traffic = 4;  // the value

Machine machine_of(const config::Input& input) {
  const auto& in = input.predict;
  const double memory = in.memory_bandwidth_gbyte_per_s * 1e9;
  Machine machine;
  machine.latency = in.latency_us * 1e-6;
  machine.burst = in.burst_kbyte * 1e3;
  machine.overhead = in.message_overhead_us * 1e-6;
  machine.inside_latency = in.inside_latency_us * 1e-6;
  machine.inside_bandwidth = in.inside_bandwidth_gbyte_per_s * 1e9;
  machine.reduce = reduce_traffic / memory;
  machine.compress = compress_traffic / memory;
  machine.average = average_traffic / memory;
  machine.decompress = decompress_traffic / memory;
  return machine;
}

bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

std::string text(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

/// "340 million"
std::string count_text(double value) {
  if (value >= 1e9) return text("%.3g billion", value / 1e9);
  if (value >= 1e6) return text("%.3g million", value / 1e6);
  if (value >= 1e3) return text("%.3g thousand", value / 1e3);
  return text("%.0f", value);
}
std::string time_text(double seconds) {
  return seconds >= 1      ? text("%.3g s", seconds)
         : seconds >= 1e-3 ? text("%.3g ms", 1e3 * seconds)
                           : text("%.3g µs", 1e6 * seconds);
}

std::string network_text(double gbit_per_s) {
  return gbit_per_s < 1 ? text("%.4g Mbit/s", 1e3 * gbit_per_s) : text("%.4g Gbit/s", gbit_per_s);
}

void print_fits(const std::vector<Fit>& fits) {
  std::printf(
      "# Fits: seconds = alpha messages + bytes / (share * line rate) + gamma elements; least relative squares\n");
  std::printf("#%-25s %-23s %5s %9s %9s %7s  %29s  %7s %7s\n", "collective", "form", "rows", "alpha us", "wait us",
              "share", "gamma ns dense/compr/avg/decomp", "median", "largest");
  for (const Fit& fit : fits)
    std::printf("%-26s %-23s %5d %9.1f %9.1f %7.3f  %8.3f %6.3f %6.3f %6.3f  %6.1f%% %6.1f%%%s%s\n",
                fit.collective.c_str(), name(fit.form), fit.rows, 1e6 * fit.latency, 1e6 * fit.wait, fit.share,
                1e9 * fit.reduce, 1e9 * fit.compress, 1e9 * fit.average, 1e9 * fit.decompress, 100 * fit.median_error,
                100 * fit.largest_error, fit.inside ? "  inside a host" : "",
                fit.work_fitted ? "" : "  one line rate: gamma from the phases");
}

/// The end of the names of a network's figures: "_at_2_5_gbit_per_s" for "2.5 Gbit/s".
std::string at_network(const std::string& network) {
  std::string name = "_at_";
  for (const char c : network)
    name += c == '/' ? "_per_" : std::isalnum(static_cast<unsigned char>(c)) ? std::string(1, std::tolower(c)) : "_";
  return name;
}

void write_fits(const std::vector<Fit>& fits, const std::string& path) {
  CsvFile file(path, {"collective", "form", "inside", "rows", "latency_s", "wait_s", "line_rate_share", "reduce_s",
                      "compress_s", "average_s", "decompress_s", "work_fitted", "median_error", "largest_error"});
  for (const Fit& fit : fits)
    file.row({fit.collective, name(fit.form), int{fit.inside}, fit.rows, fit.latency, fit.wait, fit.share, fit.reduce,
              fit.compress, fit.average, fit.decompress, int{fit.work_fitted}, fit.median_error, fit.largest_error});
  file.finish();
}

}  // namespace

Model::Model(const config::Input& input) : m_input(input), m_machine(machine_of(input)) {
  const auto& in = input.predict;
  std::vector<Measurement> rows;
  for (const std::string& path : in.measurements) {
    const auto read = located(input.where("predict.measurements"),
                              [&] { return read_measurements(path, in.measured_gbit_per_s * gbit); });
    rows.insert(rows.end(), read.begin(), read.end());
  }
  if (!in.measurements.empty() && rows.empty())
    throw InputError(input.where("predict.measurements"), "no file has a row of more than one rank",
                     "measure with several ranks, best on several hosts");
  m_fits = fit(rows, m_machine, in.shared_cores);
  for (const Fit& fit : m_fits) m_candidates.push_back({fit.collective, fit.form, &fit});
  for (const std::string& word : in.collectives) m_candidates.push_back({word, form_of(word)});
}

Cluster Model::cluster(int ranks) const {
  const int per_host = std::min(ranks, m_input.predict.ranks_per_host);
  return {ranks / per_host, per_host};
}

Machine Model::machine(const Candidate& candidate, const Cluster& cluster, double link) const {
  Machine machine = m_machine;
  machine.bandwidth = link * m_input.predict.line_rate_share;
  const double slow = slowdown(cluster.ranks(), m_input.predict.shared_cores);
  if (candidate.fit != nullptr) return candidate.fit->applied_to(machine, link, slow);
  slow_down(machine, slow);
  return machine;
}

Step Model::step(const Candidate& candidate, const Cluster& cluster, double parameters, double link,
                 double factor) const {
  const auto& in = m_input.predict;
  Step best = step_in(1, candidate, cluster, parameters, link, factor);
  for (int buckets = is_compressed(candidate.form) ? in.compressed_buckets : in.overlap_buckets; buckets > 1;
       buckets /= 2) {
    const Step step = step_in(buckets, candidate, cluster, parameters, link, factor);
    if (step.step < best.step) best = step;
  }
  return best;
}

/// Bucket k is final after k / `buckets` of the backward pass; buckets are averaged one after the other.
Step Model::step_in(int buckets, const Candidate& candidate, const Cluster& cluster, double parameters, double link,
                    double factor) const {
  const auto& in = m_input.predict;
  const Machine machine = this->machine(candidate, cluster, link);
  const std::vector<Stage> bucket = stages(candidate.form, cluster, parameters / buckets, width(), machine);
  Step step;
  step.buckets = buckets;
  step.parts = part_seconds(bucket, machine);
  for (double& seconds : step.parts) {
    seconds *= buckets * factor;
    step.call += seconds;
  }
  for (const Stage& stage : bucket) {
    step.link_bytes += buckets * stage.link_bytes;
    const Bound* const bound = stage.longest(machine);
    if (bound != nullptr) step.messages += buckets * factor * bound->seconds(machine);
  }
  const double backward = in.backward_ms * 1e-3;
  const double end = std::max(backward + step.call / buckets, backward / buckets + step.call);
  step.hidden = backward + step.call - end;
  const double exchanges = is_compressed(candidate.form) ? 1.0 / in.steps_per_exchange : 1.0;
  step.step = (in.forward_ms + in.update_ms) * 1e-3 + backward + exchanges * (step.call - step.hidden);
  return step;
}

double Model::simulated(const Candidate& candidate, const Cluster& cluster, double parameters, double link) const {
  const bool needs_powers = candidate.form == Form::tree || candidate.form == Form::rabenseifner;
  if (cluster.ranks() > m_input.predict.simulate_up_to) return nothing;
  if (needs_powers && !(is_power_of_two(cluster.ranks()) && is_power_of_two(cluster.ranks_per_host))) return nothing;
  const Machine machine = this->machine(candidate, cluster, link);
  const int buckets = step(candidate, cluster, parameters, link).buckets;
  const Schedule bucket = schedule(candidate.form, cluster, parameters / buckets, width(), machine);
  return buckets * simulate(bucket, cluster, machine);
}

bool Model::has(bool compressed) const {
  return std::any_of(m_candidates.begin(), m_candidates.end(),
                     [&](const Candidate& candidate) { return is_compressed(candidate.form) == compressed; });
}

const Candidate* Model::best(bool compressed, const Cluster& cluster, double parameters, double link) const {
  const Candidate* found = nullptr;
  double least = infinity;
  for (const Candidate& candidate : m_candidates) {
    if (is_compressed(candidate.form) != compressed) continue;
    const double seconds = step(candidate, cluster, parameters, link).step;
    if (seconds >= least) continue;
    least = seconds;
    found = &candidate;
  }
  return found;
}

namespace {

/// Whether to compress on this network, in words.
std::string advice_text(const Model& model, const Cluster& cluster, double parameters, double link,
                        const std::string& network) {
  const Candidate& dense = *model.best(false, cluster, parameters, link);
  const Candidate& compressed = *model.best(true, cluster, parameters, link);
  const double slow = model.step(dense, cluster, parameters, link).step;
  const double fast = model.step(compressed, cluster, parameters, link).step;
  std::string words =
      "On " + network + " with " + std::to_string(cluster.ranks()) + " ranks on " + std::to_string(cluster.hosts) +
      (cluster.hosts > 1 ? " hosts" : " host") + ", the fastest dense average is " + dense.collective + " (step " +
      time_text(slow) + ") and the fastest compressed one " + compressed.collective + " (step " + time_text(fast) +
      "): " +
      (fast < slow ? "compress, the step is " + text("%.2f", slow / fast) + " times as fast. "
                   : "do not compress, the step would take " + text("%.2f", fast / slow) + " times as long. ");
  const double above = crossover_parameters(model, cluster, link), below = crossover_link(model, cluster, parameters);
  words += "On this network compression pays " +
           (above == 0          ? "with any number of parameters"
            : std::isinf(above) ? "with no number of parameters"
                                : "above " + count_text(above) + " parameters") +
           "; with " + count_text(parameters) + " parameters it pays " +
           (std::isinf(below) ? "on links of any rate"
            : below == 0      ? "on links of no rate"
                              : "below " + network_text(8 * below / 1e9)) +
           ".";
  const auto call = [&](Form form) {
    for (const Candidate& candidate : model.candidates())
      if (candidate.form == form) return model.step(candidate, cluster, parameters, link).call;
    return nothing;
  };
  const double flat = call(Form::compressed);
  std::string others;
  for (const Form form : {Form::ring, Form::tree, Form::hierarchical, Form::hierarchical_compressed}) {
    const double other = call(form);
    if (std::isnan(other)) continue;
    others += std::string(others.empty() ? "" : ", ") + name(form) + " " + time_text(other);
  }
  if (!std::isnan(flat) && !others.empty())
    words += " All-to-all and all-gather over all ranks (compressed) take " + time_text(flat) + "; " + others + ".";
  return words + "\n";
}

/// The files and the table of a prediction.
class Report {
public:
  /// \throws InputError if the files cannot be written
  Report(const config::Input& input, const Model& model) : m_input(input), m_model(model) {
    try {
      open();
    } catch (const Error& error) {
      throw Error(ExitStatus::bad_input, input.where("run.output") + ": " + error.what());
    }
  }

  void print_header() const {
    const auto& in = m_input.predict;
    if (!m_model.fits().empty()) print_fits(m_model.fits());
    std::printf(
        "# %s parameters, %d bytes an element in dense averages, %d ranks on a host; forward, backward, update: "
        "%g, %g, %g ms\n",
        count_text(in.parameters).c_str(), in.bytes_per_element, in.ranks_per_host, in.forward_ms, in.backward_ms,
        in.update_ms);
    std::printf("#%13s %6s %5s  %-24s %-8s %12s %12s %12s %12s %12s %8s\n", "network", "ranks", "hosts", "collective",
                "numbers", "call ms", "messages ms", "simulated ms", "step ms", "samples/s", "speed-up");
  }

  /// All candidates on one network.
  void add(double gbit_per_s, int ranks) {
    const double d = m_input.predict.parameters, link = gbit_per_s * gbit;
    const std::string network = network_text(gbit_per_s);
    const Cluster cluster = m_model.cluster(ranks);
    const Candidate* const dense = m_model.best(false, cluster, d, link);
    const Candidate* const compressed = m_model.best(true, cluster, d, link);
    const double dense_step = dense != nullptr ? m_model.step(*dense, cluster, d, link).step : nothing;
    const double compressed_step = compressed != nullptr ? m_model.step(*compressed, cluster, d, link).step : nothing;
    const bool is_last = ranks == m_input.predict.ranks.back();
    if (is_last) {
      m_figures.set("ranks", ranks, "ranks");
      if (dense != nullptr) m_figures.set("dense_step_s" + at_network(network), dense_step, "s");
      if (compressed != nullptr) m_figures.set("compressed_step_s" + at_network(network), compressed_step, "s");
    }
    for (const Candidate& candidate : m_model.candidates()) add_step(candidate, cluster, network, link, dense_step);
    if (dense == nullptr || compressed == nullptr) return;
    const double pays_below = 8 * crossover_link(m_model, cluster, d), gain = dense_step / compressed_step;
    m_crossovers->row({network, 8 * link, ranks, cluster.hosts, d, dense->collective, dense_step,
                       compressed->collective, compressed_step, gain, crossover_parameters(m_model, cluster, link),
                       pays_below});
    if (!is_last) return;
    m_advice += advice_text(m_model, cluster, d, link, network);
    m_figures.set("speedup" + at_network(network), gain, "times");
    m_figures.set("pays_below_bit_per_s", pays_below, "bit/s");
  }

  FiguresOfMerit finish() {
    m_steps->finish();
    m_crossovers->finish();
    if (!m_advice.empty()) std::printf("\n%s\n", m_advice.c_str());
    std::printf("# results are in %s\n", m_input.run.output.c_str());
    judge();
    return m_figures;
  }

private:
  void open() {
    m_steps = std::make_unique<CsvFile>(
        m_input.run.output + "/predict.csv",
        std::vector<std::string>{"network",          "link_bit_per_s", "ranks",        "hosts",
                                 "parameters",       "collective",     "form",         "numbers",
                                 "link_bytes",       "forward_s",      "backward_s",   "allreduce_s",
                                 "reduce_scatter_s", "compress_s",     "all_to_all_s", "average_s",
                                 "all_gather_s",     "decompress_s",   "call_s",       "messages_s",
                                 "simulated_s",      "hidden_s",       "update_s",     "step_s",
                                 "samples_per_s",    "speedup"});
    m_crossovers =
        std::make_unique<CsvFile>(m_input.run.output + "/crossover.csv",
                                  std::vector<std::string>{"network", "link_bit_per_s", "ranks", "hosts", "parameters",
                                                           "dense", "dense_step_s", "compressed", "compressed_step_s",
                                                           "speedup", "pays_above_parameters", "pays_below_bit_per_s"});
    if (!m_model.fits().empty()) write_fits(m_model.fits(), m_input.run.output + "/fit.csv");
  }

  /// The verdict: steps are times, and the fits describe what they were fitted to.
  void judge() {
    const std::string all = std::to_string(m_count) + " predicted steps";
    if (m_unusable > 0)
      m_figures.reject(std::to_string(m_unusable) + " of " + all + " are not finite and positive times",
                       "check the numbers of section predict");
    else if (m_count > 0)
      m_figures.confirm(all + " are finite and positive times");
    double error = 0;
    for (const Fit& fit : m_model.fits()) {
      error = std::max(error, fit.median_error);
      if (!(fit.median_error <= most_median_error))
        m_figures.reject("the fit of " + fit.collective + " misses its rows by " +
                             text("%.3g %%", 100 * fit.median_error) + " (median)",
                         "check the files of predict.measurements");
    }
    if (!m_model.fits().empty()) m_figures.set("fit_median_error", error, "fraction");
  }

  void add_step(const Candidate& candidate, const Cluster& cluster, const std::string& network, double link,
                double dense_step) {
    const auto& in = m_input.predict;
    const Step step = m_model.step(candidate, cluster, in.parameters, link);
    const double simulated = m_model.simulated(candidate, cluster, in.parameters, link);
    const double throughput = static_cast<double>(cluster.ranks()) * in.samples_per_rank / step.step;
    const char* const numbers = candidate.fit != nullptr ? "measured" : "input";
    std::vector<Cell> cells = {
        network, 8 * link, cluster.ranks(), cluster.hosts, in.parameters, candidate.collective, name(candidate.form),
        numbers};
    for (const double value : {step.link_bytes, in.forward_ms * 1e-3, in.backward_ms * 1e-3}) cells.push_back(value);
    cells.insert(cells.end(), step.parts.begin(), step.parts.end());
    for (const double value : {step.call, step.messages, simulated, step.hidden, in.update_ms * 1e-3, step.step,
                               throughput, dense_step / step.step})
      cells.push_back(value);
    m_steps->row(cells);
    ++m_count;
    m_unusable += !(std::isfinite(step.step) && step.step > 0);
    std::printf("%14s %6d %5d  %-24s %-8s %12.3f %12.3f %12s %12.3f %12.1f %7sx\n", network.c_str(), cluster.ranks(),
                cluster.hosts, candidate.collective.c_str(), numbers, 1e3 * step.call, 1e3 * step.messages,
                std::isnan(simulated) ? "" : text("%.3f", 1e3 * simulated).c_str(), 1e3 * step.step, throughput,
                std::isnan(dense_step) ? "" : text("%.2f", dense_step / step.step).c_str());
  }

  const config::Input& m_input;
  const Model& m_model;
  std::unique_ptr<CsvFile> m_steps, m_crossovers;
  std::string m_advice;
  FiguresOfMerit m_figures;
  long m_count = 0, m_unusable = 0;  ///< predicted steps, and those that are no times
};

/// A limit in words.
std::string rate_text(double bytes_per_s) {
  if (bytes_per_s == 0) return "never";
  return std::isinf(bytes_per_s) ? "always" : network_text(bytes_per_s / gbit);
}

/// Writes pays_below.csv and prints it as a table.
void report_limits(const config::Input& input, const Model& model) {
  const auto& in = input.predict;
  CsvFile file(input.run.output + "/pays_below.csv",
               {"ranks", "hosts", "parameters", "collective", "form", "numbers", "bits", "steps_per_exchange",
                "pays_below_bit_per_s", "least_bit_per_s", "greatest_bit_per_s"});
  std::printf("\n# Line rate below which a compressed average gives a shorter step than every dense one\n");
  std::printf("#%6s %5s  %-24s %-8s %14s   with averages %g %% faster or slower\n", "ranks", "hosts", "collective",
              "numbers", "below", 100 * in.error);
  for (const std::int64_t ranks : in.ranks) {
    const Cluster cluster = model.cluster(static_cast<int>(ranks));
    for (const Candidate& candidate : model.candidates()) {
      if (!is_compressed(candidate.form)) continue;
      const RateLimit limit = crossover_link(model, candidate, cluster, in.parameters);
      const char* const numbers = candidate.fit != nullptr ? "measured" : "input";
      file.row({cluster.ranks(), cluster.hosts, in.parameters, candidate.collective, name(candidate.form), numbers,
                in.compressed_bits, in.steps_per_exchange, 8 * limit.expected, 8 * limit.least, 8 * limit.greatest});
      std::printf("%7d %5d  %-24s %-8s %14s   %s to %s\n", cluster.ranks(), cluster.hosts, candidate.collective.c_str(),
                  numbers, rate_text(limit.expected).c_str(), rate_text(limit.least).c_str(),
                  rate_text(limit.greatest).c_str());
    }
  }
  file.finish();
}

}  // namespace

FiguresOfMerit predict(const config::Input& input) {
  config::check_prediction(input);
  const Model model(input);
  Report results(input, model);
  results.print_header();
  for (const double gbit_per_s : input.predict.bandwidths_gbit_per_s)
    for (const std::int64_t ranks : input.predict.ranks) results.add(gbit_per_s, static_cast<int>(ranks));
  if (model.has(true) && model.has(false)) report_limits(input, model);
  return results.finish();
}

}  // namespace onebit::scale
