#pragma once
/// \file range.hpp
/// A contiguous part of a vector or of a message.

#include <cstddef>

namespace onebit {

/// [begin, end), with no further meaning.
struct Range {
  std::size_t begin, end;
};

}  // namespace onebit
