/// \file names.cpp
/// The distance between a pattern and a name, by dynamic programming.

#include "base/names.hpp"

#include <algorithm>
#include <numeric>

namespace onebit {

std::size_t edit_distance(const std::string& pattern, const std::string& name) {
  std::vector<std::size_t> row(name.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (const char c : pattern) {
    const bool any_number = c == '*';
    std::size_t diagonal = row[0];
    if (!any_number) ++row[0];
    for (std::size_t j = 1; j <= name.size(); ++j) {
      const std::size_t replaced = diagonal + (c != '?' && c != name[j - 1]);
      diagonal = row[j];
      row[j] = any_number ? std::min(row[j], row[j - 1]) : std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[name.size()];
}

bool matches(const std::string& pattern, const std::string& name) { return edit_distance(pattern, name) == 0; }

std::string nearest(const std::string& pattern, const std::vector<std::string>& names, std::size_t limit) {
  std::string found;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(pattern, name);
    if (distance >= limit) continue;
    limit = distance;
    found = name;
  }
  return found;
}

std::string meant(const std::string& text, const std::vector<std::string>& known) {
  return nearest(text, known, 2 + text.size() / 3);  // changes that may still be slips
}

}  // namespace onebit
