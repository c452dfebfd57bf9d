#pragma once
/// \file tensor_reduction.hpp
/// Reductions over named tensors, and the tensor of an element.

#include <algorithm>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/tensor_table.hpp"

namespace onebit::optim {

/// Sums and maxima over each tensor in a fixed tree: blocks of at most 1024 elements that end at tensor borders, then
/// the blocks of a tensor as BlockTree joins them.
template <class Exec>
class TensorReduction {
public:
  explicit TensorReduction(const TensorTable& tensors)
      : m_tree(tensors.tensors().size(), block_count(longest(tensors))) {
    std::vector<std::size_t> block_begins, tensor_begins;
    for (const Tensor& tensor : tensors.tensors()) {
      tensor_begins.push_back(block_begins.size());
      for (std::size_t begin = 0; begin < tensor.size(); begin += block_length)
        block_begins.push_back(tensor.offset + begin);
    }
    tensor_begins.push_back(block_begins.size());
    m_blocks = Vector<Exec, double>("OneBit::optim::tensor_blocks", block_begins.size());
    block_begins.push_back(tensors.size());
    m_block_begins = copy_to_device<Exec>("OneBit::optim::block_begins", block_begins);
    m_tensor_begins = copy_to_device<Exec>("OneBit::optim::tensor_begins", tensor_begins);
  }

  /// results(l) = Σ f(i) over the elements i of tensor l. f may write element i of any vector.
  template <class F>
  void sums(const Exec& exec, const char* label, const Vector<Exec, double>& results, const F& f) const {
    reduce<Sum>(exec, label, results, f);
  }
  /// results(l) = max f(i), for f ≥ 0.
  template <class F>
  void maxima(const Exec& exec, const char* label, const Vector<Exec, double>& results, const F& f) const {
    reduce<Maximum>(exec, label, results, f);
  }

  /// Public only because a device lambda may not stand in a private member function.
  template <class Join, class F>
  void reduce(const Exec& exec, const char* label, const Vector<Exec, double>& results, const F& f) const {
    reduce_blocks<Join>(exec, label, m_block_begins, m_blocks, f);
    m_tree.template join<Join>(exec, label, m_tensor_begins, m_blocks, results);
  }

private:
  static std::size_t longest(const TensorTable& tensors) {
    std::size_t most = 0;
    for (const Tensor& tensor : tensors.tensors()) most = std::max(most, tensor.size());
    return most;
  }

  Vector<Exec, std::size_t> m_block_begins;   ///< (blocks + 1) first element of each block
  Vector<Exec, std::size_t> m_tensor_begins;  ///< (tensors + 1) first block of each tensor
  Vector<Exec, double> m_blocks;
  BlockTree<Exec> m_tree;
};

/// Finds the tensor of an element, inside a kernel: a table has the tensor of every 1024th element, from which the
/// search goes on.
template <class Exec>
struct TensorOf {
  Vector<Exec, std::size_t> ends;     ///< (tensors) end of each tensor
  Vector<Exec, std::uint32_t> first;  ///< (⌈d/1024⌉) tensor of element 1024 k

  explicit TensorOf(const TensorTable& tensors) {
    std::vector<std::size_t> all_ends;
    std::vector<std::uint32_t> all_first;
    for (const Tensor& tensor : tensors.tensors()) {
      all_ends.push_back(tensor.offset + tensor.size());
      while (all_first.size() * block_length < all_ends.back())
        all_first.push_back(static_cast<std::uint32_t>(all_ends.size() - 1));
    }
    ends = copy_to_device<Exec>("OneBit::optim::tensor_ends", all_ends);
    first = copy_to_device<Exec>("OneBit::optim::tensor_of_block", all_first);
  }

  KOKKOS_FUNCTION std::size_t operator()(std::size_t i) const {
    std::size_t tensor = first(i / block_length);
    while (i >= ends(tensor)) ++tensor;
    return tensor;
  }
};

}  // namespace onebit::optim
