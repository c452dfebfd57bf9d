#include "scale/fit.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "base/error.hpp"
#include "io/file.hpp"

namespace onebit::scale {
namespace {

const std::map<std::string, Form> forms = {{"mpi_allreduce", Form::ring},
                                           {"mpi_reduce_scatter", Form::rabenseifner},
                                           {"pairwise_allreduce", Form::pairwise},
                                           {"hierarchical_allreduce", Form::hierarchical},
                                           {"mpi_bf16", Form::pairwise_bf16},
                                           {"pairwise_bf16", Form::pairwise_bf16},
                                           {"hierarchical_bf16", Form::hierarchical_bf16},
                                           {"mpi_compressed", Form::compressed},
                                           {"pairwise_compressed", Form::pairwise_compressed},
                                           {"hierarchical_compressed", Form::hierarchical_compressed}};

/// Cells of a line of a CSV file. A quoted cell may contain commas and doubled quotes.
std::vector<std::string> cells(const std::string& line) {
  std::vector<std::string> all(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"')
      all.back() += line[++i];
    else if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      all.emplace_back();
    else if (c != '\r')
      all.back() += c;
  }
  return all;
}

/// Rows of a CSV file by the names of its columns.
class Table {
public:
  explicit Table(const std::string& path) : m_path(path), m_file(opened(path)) {
    const char* const remedy = "name a collective.csv of onebit bench collective, as it was written";
    std::string header;
    if (!std::getline(m_file, header)) throw InputError(path, "the file of measurements is empty", remedy);
    // Spreadsheets write a byte order mark, and semicolons where the comma is the decimal point.
    if (header.rfind("\xEF\xBB\xBF", 0) == 0) header.erase(0, 3);
    if (header.find(',') == std::string::npos && header.find_first_of(";\t") != std::string::npos)
      throw InputError(path, "the columns are separated by semicolons or tabs, as a spreadsheet saves them", remedy);
    m_names = cells(header);
  }

  bool next() {
    std::string line;
    do {
      ++m_line;
      if (!std::getline(m_file, line)) return false;
    } while (line.empty() || line == "\r");
    m_cells = cells(line);
    if (m_cells.size() != m_names.size())
      throw InputError(
          where(),
          "the row has " + std::to_string(m_cells.size()) + " cells for " + std::to_string(m_names.size()) + " columns",
          "measure again; a whole file ends without .partial");
    return true;
  }

  bool has(const std::string& column) const {
    return std::find(m_names.begin(), m_names.end(), column) != m_names.end();
  }
  const std::string& text(const std::string& column) const {
    const auto found = std::find(m_names.begin(), m_names.end(), column);
    if (found == m_names.end())
      throw InputError(m_path, "the file has no column '" + column + "'",
                       "name a collective.csv of onebit bench collective");
    return m_cells[found - m_names.begin()];
  }
  /// A number that is not below `least`.
  double number(const std::string& column, double least) const {
    const std::string& cell = text(column);
    char* end = nullptr;
    const double value = std::strtod(cell.c_str(), &end);
    if (cell.empty() || *end != '\0' || !std::isfinite(value) || value < least)
      throw InputError(where(), column + " is '" + excerpt(cell) + "', which is not a number it can have",
                       "name a collective.csv of onebit bench collective");
    return value;
  }
  std::string where() const { return m_path + ":" + std::to_string(m_line); }

private:
  static std::ifstream opened(const std::string& path) {
    const Descriptor file(path, O_RDONLY | O_NONBLOCK);
    char first = 0;
    if (file < 0 || ::read(file, &first, 1) < 0) throw unreadable(path, errno);
    return std::ifstream(path);
  }

  std::string m_path;
  std::ifstream m_file;
  int m_line = 1;
  std::vector<std::string> m_names, m_cells;
};

/// Line rate in bytes/s: from its own column, or from the laboratory's text "… (measured 190.6)"; 0 for none.
double link_of(const Table& table) {
  if (table.has("link_bit_per_s")) return table.number("link_bit_per_s", 1) / 8;
  static const std::regex measured(R"(\(measured ([0-9.]+)\))");
  std::smatch found;
  if (table.has("network") && std::regex_search(table.text("network"), found, measured))
    return std::strtod(found[1].str().c_str(), nullptr) * 1e6 / 8;
  return 0;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// The terms of one row's time, for given parameters.
struct Terms {
  double bytes = 0;     ///< seconds at the full line rate (inside: at the full bandwidth of a channel)
  double messages = 0;  ///< number of α
  double work = 0;      ///< seconds of the rank's own work
  double known = 0;     ///< seconds that are not fitted
};

Terms terms(const Measurement& row, Form form, const Machine& machine, bool inside, double line) {
  Terms sum;
  double before = 0;
  for (const Stage& stage : stages(form, row.cluster(), row.parameters, {}, machine)) {
    const Bound* const bound = stage.longest(machine);
    if (bound == nullptr) {
      before = stage.cost != nullptr ? stage.elements * machine.*stage.cost : 0;
      sum.work += before;
      continue;
    }
    // The longer of the work and the messages that overlap it counts.
    if (stage.overlaps && bound->seconds(machine) <= before) continue;
    if (stage.overlaps) sum.work -= before;
    sum.bytes += (inside ? bound->inside_bytes : bound->bytes) / line;
    sum.messages += inside ? bound->inside_messages : bound->messages;
    sum.known += bound->overheads * machine.overhead;
    if (!inside)
      sum.known += bound->inside_messages * machine.inside_latency + bound->inside_bytes / machine.inside_bandwidth;
  }
  return sum;
}

Fit fit_one(const std::string& collective, const std::vector<Measurement>& rows, const Machine& machine,
            int shared_cores) {
  Fit fit;
  fit.collective = collective;
  fit.form = form_of_collective(collective);
  fit.rows = static_cast<int>(rows.size());
  fit.inside = rows.front().hosts == 1;
  fit.share = 1;
  std::set<long> links;
  for (const Measurement& row : rows) links.insert(std::lround(std::log(row.link + 1) * 20));  // equal within 5 %
  fit.work_fitted = links.size() > 1 && rows.size() > 2;

  // The measured times of each kind of work give the ratios between them.
  for (const Measurement& row : rows) {
    const double slow = slowdown(row.ranks, shared_cores), count = static_cast<double>(rows.size());
    const double own = fit.form == Form::hierarchical_compressed ? row.cluster().ranks_per_host : 1;
    fit.compress += row.compress / (row.parameters / own * slow) / count;
    fit.average += row.average / (row.parameters / own * slow) / count;
    fit.decompress += row.decompress / (row.parameters * slow) / count;
  }
  const bool has_times = fit.compress + fit.average + fit.decompress > 0;
  if (is_compressed(fit.form) && !has_times) {
    fit.compress = machine.compress;
    fit.average = machine.average;
    fit.decompress = machine.decompress;
  }
  fit.reduce = is_compressed(fit.form) || fit.work_fitted ? machine.reduce : 0;

  const bool is_shared = std::any_of(rows.begin(), rows.end(),
                                     [&](const Measurement& row) { return slowdown(row.ranks, shared_cores) > 1; });

  // The longest bound of a stage depends on the fitted parameters, so the linear fit is iterated.
  for (int iteration = 0; iteration < 6; ++iteration) {
    std::vector<std::vector<double>> matrix;
    std::vector<double> right;
    for (const Measurement& row : rows) {
      const double line = fit.inside ? machine.inside_bandwidth : row.link, slow = slowdown(row.ranks, shared_cores);
      const Terms at = terms(row, fit.form, fit.applied_to(machine, row.link, slow), fit.inside, line);
      std::vector<double> coefficients = {at.bytes};
      if (rows.size() > 1) coefficients.push_back(at.messages);
      if (fit.work_fitted) coefficients.push_back(at.work);
      if (fit.work_fitted && is_shared) coefficients.push_back(at.messages * (slow - 1));
      for (double& coefficient : coefficients) coefficient /= row.seconds;
      matrix.push_back(coefficients);
      right.push_back((row.seconds - at.known - (fit.work_fitted ? 0 : at.work)) / row.seconds);
    }
    const std::vector<double> x = least_squares(matrix, right);
    fit.share = x[0] > 0 ? 1 / x[0] : infinity;
    fit.latency = x.size() > 1 ? x[1] : 0;
    fit.wait = x.size() > 3 ? x[3] : 0;
    if (fit.work_fitted)
      for (double* const cost : {&fit.reduce, &fit.compress, &fit.average, &fit.decompress})
        *cost *= std::max(x[2], 1e-12);  // a later iteration could not leave 0
  }
  std::vector<double> errors;
  for (const Measurement& row : rows) {
    const Machine fitted = fit.applied_to(machine, row.link, slowdown(row.ranks, shared_cores));
    const double predicted = total_seconds(stages(fit.form, row.cluster(), row.parameters, {}, fitted), fitted);
    errors.push_back(std::abs(predicted / row.seconds - 1));
  }
  fit.median_error = median(errors);
  fit.largest_error = *std::max_element(errors.begin(), errors.end());
  return fit;
}

}  // namespace

void slow_down(Machine& machine, double factor) {
  for (const Cost cost : {&Machine::reduce, &Machine::compress, &Machine::average, &Machine::decompress})
    machine.*cost *= factor;
}

std::vector<Measurement> read_measurements(const std::string& path, double link) {
  Table table(path);
  std::vector<Measurement> rows;
  while (table.next()) {
    Measurement row;
    row.collective = table.text("collective");
    form_of_collective(row.collective, table.where());
    row.parameters = table.number("parameters", 1);
    row.ranks = static_cast<int>(table.number("ranks", 1));
    row.hosts = static_cast<int>(table.number("hosts", 1));
    row.seconds = table.number("p50_s", 0);
    row.compress = table.number("compress_s", 0);
    row.average = table.number("average_s", 0);
    row.decompress = table.number("decompress_s", 0);
    if (row.ranks % row.hosts != 0)
      throw InputError(table.where(),
                       std::to_string(row.ranks) + " ranks on " + std::to_string(row.hosts) +
                           " hosts: the model knows hosts with as many ranks each",
                       "measure with as many ranks on each host");
    if (row.ranks == 1 || row.seconds == 0) continue;  // no communication
    if (row.hosts > 1) {
      row.link = link_of(table);
      if (row.link == 0) row.link = link;
      if (row.link == 0)
        throw InputError(table.where(), "the row does not say the line rate of its hosts' links",
                         "set predict.measured_gbit_per_s");
    }
    rows.push_back(row);
  }
  return rows;
}

Form form_of_collective(const std::string& collective, const std::string& where) {
  const auto found = forms.find(collective);
  if (found == forms.end())
    throw InputError(where, "'" + excerpt(collective) + "' is no collective that the model knows",
                     "leave out its rows");
  return found->second;
}

Machine Fit::applied_to(Machine machine, double link, double slow) const {
  if (inside) {
    machine.inside_latency = latency + wait * (slow - 1);
    machine.inside_bandwidth *= share;
  } else {
    machine.latency = latency + wait * (slow - 1);
    machine.bandwidth = link * share;
  }
  machine.reduce = reduce;
  machine.compress = compress;
  machine.average = average;
  machine.decompress = decompress;
  slow_down(machine, slow);
  return machine;
}

std::vector<Fit> fit(const std::vector<Measurement>& measurements, const Machine& machine, int shared_cores) {
  std::map<std::string, std::vector<Measurement>> by_collective;
  std::vector<std::string> order;
  for (const Measurement& row : measurements) {
    if (by_collective.count(row.collective) == 0) order.push_back(row.collective);
    by_collective[row.collective].push_back(row);
  }
  std::vector<Fit> fits;
  for (const std::string& collective : order) {
    std::vector<Measurement>& rows = by_collective[collective];
    const bool far = std::any_of(rows.begin(), rows.end(), [](const Measurement& row) { return row.hosts > 1; });
    rows.erase(
        std::remove_if(rows.begin(), rows.end(), [far](const Measurement& row) { return far && row.hosts == 1; }),
        rows.end());
    fits.push_back(fit_one(collective, rows, machine, shared_cores));
  }
  return fits;
}

std::vector<double> least_squares(const std::vector<std::vector<double>>& rows, const std::vector<double>& right) {
  const std::size_t columns = rows.front().size();
  std::vector<double> best(columns);
  double least = infinity;
  for (std::size_t set = 0; set < std::size_t{1} << columns; ++set) {
    std::vector<std::size_t> used;
    for (std::size_t column = 0; column < columns; ++column)
      if (set >> column & 1) used.push_back(column);
    // Normal equations of columns scaled to length 1, by Gauss-Jordan elimination with pivoting.
    const std::size_t k = used.size();
    std::vector<double> length(k);
    for (std::size_t i = 0; i < k; ++i) {
      for (const auto& row : rows) length[i] += row[used[i]] * row[used[i]];
      length[i] = std::sqrt(length[i]);
    }
    std::vector<std::vector<double>> a(k, std::vector<double>(k + 1));
    bool solvable = std::all_of(length.begin(), length.end(), [](double x) { return x > 0; });
    for (std::size_t i = 0; i < k && solvable; ++i)
      for (std::size_t row = 0; row < rows.size(); ++row) {
        for (std::size_t j = 0; j < k; ++j)
          a[i][j] += rows[row][used[i]] * rows[row][used[j]] / (length[i] * length[j]);
        a[i][k] += rows[row][used[i]] * right[row] / length[i];
      }
    for (std::size_t i = 0; i < k && solvable; ++i) {
      const auto pivot =
          std::max_element(a.begin() + static_cast<std::ptrdiff_t>(i), a.end(),
                           [i](const auto& p, const auto& q) { return std::abs(p[i]) < std::abs(q[i]); });
      std::swap(a[i], *pivot);
      solvable = std::abs(a[i][i]) > 1e-10;  // columns that are multiples of each other
      for (std::size_t j = 0; j < k && solvable; ++j) {
        if (j == i) continue;
        const double factor = a[j][i] / a[i][i];
        for (std::size_t m = i; m <= k; ++m) a[j][m] -= factor * a[i][m];
      }
    }
    if (!solvable) continue;
    std::vector<double> x(columns);
    bool allowed = true;
    for (std::size_t i = 0; i < k; ++i) {
      x[used[i]] = a[i][k] / a[i][i] / length[i];
      allowed = allowed && x[used[i]] >= 0;
    }
    if (!allowed) continue;
    double residual = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      double difference = -right[row];
      for (std::size_t column = 0; column < columns; ++column) difference += rows[row][column] * x[column];
      residual += difference * difference;
    }
    if (residual < least) {
      least = residual;
      best = x;
    }
  }
  return best;
}

}  // namespace onebit::scale
