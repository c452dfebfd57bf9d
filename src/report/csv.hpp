#pragma once
/// \file csv.hpp
/// CSV files as this project writes them: one header line, no spaces, a row at a time.

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace onebit::report {

/// One cell: text, an integer, a real number with all its digits, or nothing (an empty cell).
class Cell {
public:
  Cell() = default;
  Cell(const std::string& text);
  Cell(const char* text) : Cell(std::string(text)) {}
  Cell(double value);
  Cell(int value) : m_text(std::to_string(value)) {}
  Cell(long value) : m_text(std::to_string(value)) {}
  Cell(std::uint64_t value) : m_text(std::to_string(value)) {}

  const std::string& text() const { return m_text; }

private:
  std::string m_text;
};

/// A CSV file that is written row by row to `PATH.partial` and renamed to `PATH` by `finish`, so that an earlier
/// run's file stays whole until this one is, and a run that died leaves its rows under the other name.
/// Members throw std::runtime_error when the file cannot be written.
class CsvFile {
public:
  CsvFile(const std::string& path, const std::vector<std::string>& columns);

  /// Appends one row, as many cells as columns, and hands it to the operating system: all of it, or where that fails
  /// nothing.
  void row(const std::vector<Cell>& cells);
  /// The complete text so far, read back.
  std::string text() const;
  /// Goes on behind the text of an earlier file. \returns false, and changes nothing, when its columns are not this one's
  bool go_on_from(const std::string& text);
  /// Closes the file, which still has its other name: the last chance of a write to fail.
  void close();
  /// Closes the file if it is not, and gives it its name.
  void finish();

private:
  void check();

  std::string m_path;
  std::string m_header;
  std::size_t m_columns;
  std::uintmax_t m_bytes = 0;  ///< of the rows that are whole
  std::ofstream m_file;
};

}  // namespace onebit::report
