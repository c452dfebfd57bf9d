#pragma once
/// \file csv_table.hpp
/// The columns of a CSV file: what is written into its first line, and its page in docs/reference/output.

#include <string>
#include <vector>

namespace onebit {

/// Columns with one meaning, one after the other in the file.
struct CsvColumns {
  std::vector<const char*> names;
  const char* unit;     ///< empty without one
  const char* meaning;  ///< in Markdown
};

struct CsvTable {
  const char* file;  ///< its name
  const char* rows;  ///< which rows it has, in Markdown
  std::vector<CsvColumns> columns;
  const char* notes = "";  ///< what else its page says, in Markdown

  /// The names of all columns, in their order.
  std::vector<std::string> names() const;
  /// The file's page in docs/reference/output.
  std::string page() const;
};

}  // namespace onebit
