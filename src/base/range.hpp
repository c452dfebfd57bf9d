#pragma once
/// \file range.hpp
/// A contiguous part of a vector or of a message.

#include <algorithm>
#include <cstddef>
#include <vector>

namespace onebit {

/// [begin, end), with no further meaning.
struct Range {
  std::size_t begin, end;

  std::size_t length() const { return end - begin; }
};

/// The range of `rank`: [begins[rank], begins[rank + 1]). \param begins (ranks + 1)
inline Range range_of(const std::vector<std::size_t>& begins, int rank) { return {begins[rank], begins[rank + 1]}; }

/// What both ranges have; empty if they have nothing in common.
inline Range common(Range a, Range b) {
  const std::size_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace onebit
