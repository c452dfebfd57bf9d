#include "io/csv.hpp"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <stdexcept>

#include "io/file.hpp"
#include "io/run_lock.hpp"

namespace onebit {

Cell::Cell(double value) {
  if (std::isnan(value)) return;
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  m_text = text;
}

namespace {

/// A cell as it stands in a line: quoted where a comma or a quote would end it, with spaces for the ends of lines.
std::string written(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c == '\n' || c == '\r' ? ' ' : c;
  }
  return quoted + '"';
}

std::string line_of(const std::vector<Cell>& cells) {
  std::string line;
  for (const Cell& cell : cells) line += (&cell == &cells.front() ? "" : ",") + written(cell.text());
  return line + "\n";
}

}  // namespace

CsvFile::CsvFile(const std::string& path, const std::vector<std::string>& columns)
    : m_path(path), m_columns(columns.size()), m_file(path + ".partial") {
  const std::vector<Cell> header = {columns.begin(), columns.end()};
  m_header = line_of(header);
  row(header);
}

CsvFile::~CsvFile() {
  const std::string partial = m_path + ".partial";
  std::error_code error;
  if (!m_is_finished && m_bytes <= m_header.size() && std::filesystem::is_regular_file(partial, error))
    std::filesystem::remove(partial, error);
}

void CsvFile::row(const std::vector<Cell>& cells) {
  if (cells.size() != m_columns)
    throw std::runtime_error(m_path + ": a row has " + std::to_string(cells.size()) + " cells for " +
                             std::to_string(m_columns) + " columns");
  const std::string line = line_of(cells);
  if (m_file) {
    errno = 0;
    m_file << line << std::flush;
  }
  if (!m_file) {
    // A full disk may have taken a part of the row. The file is closed, so that nothing is written after it.
    const int reason = errno;
    std::error_code ignored;
    m_file.close();
    std::filesystem::resize_file(m_path + ".partial", m_bytes, ignored);
    errno = reason;
  }
  check();
  m_bytes += line.size();
}

std::string CsvFile::text() const {
  errno = 0;
  std::ifstream file(m_path + ".partial", std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw RunError(m_path + ".partial", "reading failed" + because(errno), "check that nobody removed it");
  return text.str();
}

bool CsvFile::go_on_from(const std::string& text) {
  if (text.rfind(m_header, 0) != 0 || text.back() != '\n') return false;
  m_file.close();
  errno = 0;
  m_file.open(m_path + ".partial", std::ios::binary | std::ios::trunc);
  m_file << text << std::flush;
  check();
  m_bytes = text.size();
  return true;
}

void CsvFile::change_last_row(std::size_t first, const std::vector<Cell>& cells) {
  const std::string rows = text();
  std::size_t begin = rows.rfind('\n', rows.size() - 2) + 1;
  const auto end_of_cell = [&](std::size_t at) {
    for (bool quoted = false; quoted || (rows[at] != ',' && rows[at] != '\n'); ++at)
      if (rows[at] == '"') quoted = !quoted;
    return at;
  };
  for (; first > 0; --first) begin = end_of_cell(begin) + 1;
  std::size_t end = begin - 1;
  for (std::size_t cell = 0; cell < cells.size(); ++cell) end = end_of_cell(end + 1);
  std::string line = line_of(cells);
  line.pop_back();  // its end
  go_on_from(rows.substr(0, begin) + line + rows.substr(end));
}

void CsvFile::close() {
  errno = 0;
  m_file.close();
  check();
}

void CsvFile::finish() {
  if (m_file.is_open()) close();
  keep_earlier(m_path);
  if (std::rename((m_path + ".partial").c_str(), m_path.c_str()) != 0)
    throw RunError(m_path, "the finished file could not get its name" + because(errno),
                   "check that nobody removed the directory or " + m_path + ".partial");
  m_is_finished = true;
}

void CsvFile::check() {
  if (!m_file)
    throw RunError(m_path, "writing failed" + because(errno),
                   "check the directory, its permissions, its free space and the limits (quota, ulimit)");
}

}  // namespace onebit
