#pragma once
/// \file glob.hpp
/// Patterns of names.

#include <string_view>

namespace onebit {

/// Whether a whole name fits a pattern, in which `*` stands for any characters and `?` for one.
inline bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, behind_star = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      behind_star = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {  // let the last star stand for one character more
      p = star + 1;
      n = ++behind_star;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace onebit
