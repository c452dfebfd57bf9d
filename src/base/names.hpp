#pragma once
/// \file names.hpp
/// Names and patterns of names: which of them a text means, and lists of them.

#include <cstddef>
#include <string>
#include <vector>

namespace onebit {

/// Least number of insertions, deletions and replacements of characters after which the pattern matches the name
/// (Levenshtein 1966). In a pattern `*` stands for any characters and `?` for one.
std::size_t edit_distance(const std::string& pattern, const std::string& name);

/// True when the pattern matches all of the name.
bool matches(const std::string& pattern, const std::string& name);

/// The name that is nearest to a pattern; empty when all are at least `limit` changes away.
std::string nearest(const std::string& pattern, const std::vector<std::string>& names, std::size_t limit);

/// The known name that is nearest to a misspelt one; empty when none is near.
std::string meant(const std::string& text, const std::vector<std::string>& known);

/// The texts of a range with a separator between them: "a, b".
template <class Texts>
std::string joined(const Texts& texts, const char* separator = ", ") {
  std::string all;
  for (const auto& text : texts) all += (all.empty() ? "" : separator) + std::string(text);
  return all;
}

}  // namespace onebit
