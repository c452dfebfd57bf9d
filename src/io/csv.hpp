#pragma once
/// \file csv.hpp
/// CSV files with a header line, written row by row.

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace onebit {

/// A cell: text, an integer, a real number with the digits of a float, or empty.
class Cell {
public:
  Cell() = default;
  Cell(const std::string& text) : m_text(text) {}
  Cell(const char* text) : Cell(std::string(text)) {}
  Cell(double value);
  Cell(int value) : m_text(std::to_string(value)) {}
  Cell(long value) : m_text(std::to_string(value)) {}
  Cell(std::uint64_t value) : m_text(std::to_string(value)) {}

  const std::string& text() const { return m_text; }

private:
  std::string m_text;
};

/// A CSV file that is written to `PATH.partial` and renamed to `PATH` by `finish`: the file of an earlier run stays
/// until then, and a run that died leaves its rows under the temporary name. Members throw RunError when the file
/// cannot be written.
class CsvFile {
public:
  CsvFile(const std::string& path, const std::vector<std::string>& columns);
  /// Removes a file that was not finished and has no rows.
  ~CsvFile();
  CsvFile(const CsvFile&) = delete;
  CsvFile& operator=(const CsvFile&) = delete;

  /// Appends a row with a cell for each column and flushes it. A row that cannot be written is cut off.
  void row(const std::vector<Cell>& cells);
  template <class... Values>
  void row_of(const Values&... values) {
    row({Cell(values)...});
  }
  /// The text so far, read back from the file.
  std::string text() const;
  /// Replaces the text by that of an earlier file. \returns false, and changes nothing, when its columns differ
  bool go_on_from(const std::string& text);
  /// Puts other cells into the last row. \param first the number of the first of them, from 0
  void change_last_row(std::size_t first, const std::vector<Cell>& cells);
  /// Closes the file under its temporary name.
  void close();
  /// Closes the file and renames it. An earlier run's file of this name is kept (io/run_lock.hpp).
  void finish();

private:
  void check();

  std::string m_path;
  bool m_is_finished = false;
  std::string m_header;
  std::size_t m_columns;
  std::uintmax_t m_bytes = 0;  ///< of the complete rows
  std::ofstream m_file;
};

}  // namespace onebit
