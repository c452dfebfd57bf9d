#pragma once
/// \file csv_line.hpp
/// Reads a line of a CSV file.

#include <string>
#include <vector>

namespace onebit::test {

/// The cells of a line, without the quotes around them; a quoted cell may hold commas and doubled quotes.
inline std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"')
      cells.back() += line[++i];
    else if (line[i] == '"')
      quoted = !quoted;
    else if (line[i] == ',' && !quoted)
      cells.emplace_back();
    else
      cells.back() += line[i];
  }
  return cells;
}

}  // namespace onebit::test
