#pragma once
/// \file tensor_parts.hpp
/// What Muon does with each tensor: a matrix is orthogonalised, a table and a vector move by Adam.

#include <algorithm>
#include <string>
#include <vector>

#include "base/range.hpp"
#include "base/tensor_table.hpp"

namespace onebit::optim {

enum class TensorRole {
  matrix,  ///< one of the matrices of a tensor (out, in)
  table,   ///< rows that are looked up, as embeddings are; or a weight whose shape is not known
  vector   ///< a bias, or a parameter of LayerNorm
};

/// A tensor, or one of the matrices that lie in it one above the other.
struct TensorPart {
  std::string name;
  TensorRole role;
  std::size_t begin, rows, columns;  ///< first element in the flat buffer; a row of a vector is all of it

  std::size_t size() const { return rows * columns; }
  std::size_t end() const { return begin + size(); }
};

inline TensorRole role_of(const Tensor& tensor) {
  if (tensor.shape.size() == 2 && tensor.matrices > 0) return TensorRole::matrix;
  return tensor.decays ? TensorRole::table : TensorRole::vector;
}

/// All parts, in the order of their elements.
inline std::vector<TensorPart> parts_of(const TensorTable& tensors) {
  std::vector<TensorPart> parts;
  for (const Tensor& tensor : tensors.tensors()) {
    const TensorRole role = role_of(tensor);
    const std::size_t columns = tensor.shape.back(), rows = tensor.size() / columns;
    const std::size_t matrices = role == TensorRole::matrix ? tensor.matrices : 1, height = rows / matrices;
    for (std::size_t k = 0; k < matrices; ++k)
      parts.push_back({tensor.name, role, tensor.offset + k * height * columns, height, columns});
  }
  return parts;
}

/// What elements [range.begin, range.end) have of the parts with a role, counted from the range's begin. Ranges that
/// follow each other are one.
inline std::vector<Range> ranges_of(const std::vector<TensorPart>& parts, TensorRole role, Range range) {
  std::vector<Range> ranges;
  for (const TensorPart& part : parts) {
    const std::size_t begin = std::max(part.begin, range.begin), end = std::min(part.end(), range.end);
    if (part.role != role || begin >= end) continue;
    if (!ranges.empty() && ranges.back().end == begin - range.begin)
      ranges.back().end = end - range.begin;
    else
      ranges.push_back({begin - range.begin, end - range.begin});
  }
  return ranges;
}

/// Where a vector may be cut among servers, so that none has a part of a matrix: between parts, between the rows of a
/// table, and in a table of one row at whole words. \param cut_matrices between the rows of a matrix, too
inline std::vector<std::size_t> server_borders(const TensorTable& tensors, bool cut_matrices = false) {
  constexpr std::size_t word = 32;
  std::vector<std::size_t> borders;
  for (const TensorPart& part : parts_of(tensors)) {
    const bool whole = part.role == TensorRole::vector || (part.role == TensorRole::matrix && !cut_matrices);
    const std::size_t step = whole ? part.size() : part.rows > 1 ? part.columns : word;
    for (std::size_t at = part.begin; at < part.end(); at += step) borders.push_back(at);
  }
  return borders;
}

}  // namespace onebit::optim
