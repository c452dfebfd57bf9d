#pragma once
/// \file tensor_table.hpp
/// Names, shapes and offsets of the tensors in a flat buffer. Parameters, gradients, momentum and variance share one
/// table: a tensor is the elements [offset, offset + size) of each.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

namespace onebit {

/// A named tensor inside a flat buffer, row-major.
struct Tensor {
  std::string name;                ///< dotted path, e.g. "encoder.0.attention.qkv.weight"
  std::vector<std::size_t> shape;  ///< e.g. (out, in) for a weight
  std::size_t offset = 0;          ///< first element in the flat buffer
  bool decays = true;              ///< whether weight decay applies; false for biases and LayerNorm
  int matrices = 1;                ///< of equal height, one above the other; 0 for a table, whose rows are looked up

  std::size_t size() const {
    std::size_t product = 1;
    for (const std::size_t extent : shape) product *= extent;
    return product;
  }
};

/// Consecutive tensors without gaps.
class TensorTable {
public:
  /// Appends a tensor. \returns its offset
  std::size_t add(std::string name, std::vector<std::size_t> shape, bool decays, int matrices = 1) {
    m_tensors.push_back({std::move(name), std::move(shape), m_size, decays, matrices});
    m_size += m_tensors.back().size();
    return m_tensors.back().offset;
  }

  const std::vector<Tensor>& tensors() const { return m_tensors; }
  /// Elements of the flat buffer: the number of parameters d.
  std::size_t size() const { return m_size; }
  /// The tensor that holds element `index`; index < size().
  const Tensor& at_element(std::size_t index) const {
    const auto after = std::upper_bound(m_tensors.begin(), m_tensors.end(), index,
                                        [](std::size_t at, const Tensor& tensor) { return at < tensor.offset; });
    return *std::prev(after);
  }

private:
  std::vector<Tensor> m_tensors;
  std::size_t m_size = 0;
};

/// Says that elements [b, d) of the flat gradient are complete: called with decreasing b, the same on every rank, once
/// the kernels that compute them have been submitted. May be empty.
using GradientReady = std::function<void(std::size_t b)>;

}  // namespace onebit
