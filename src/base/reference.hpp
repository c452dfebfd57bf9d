#pragma once
/// \file reference.hpp
/// The fixed summation tree of parallel.hpp in plain loops, the definition that the kernels are tested against.

#include <cstddef>
#include <vector>

#include "base/parallel.hpp"

namespace onebit {

/// The sum of a block: term i is added to lane i % 32 in its own type. Then the lanes are added in double by halving.
template <class Term>
double block_sum_ref(const std::vector<Term>& terms) {
  std::vector<Term> lanes(lane_count, Term(0));
  for (std::size_t i = 0; i < terms.size(); ++i) lanes[i % lane_count] += terms[i];
  std::vector<double> tree(lanes.begin(), lanes.end());
  for (std::size_t half = tree.size() / 2; half > 0; half /= 2)
    for (std::size_t lane = 0; lane < half; ++lane) tree[lane] += tree[lane + half];
  return tree[0];
}

/// The sums of blocks of 1024 terms.
template <class Term>
std::vector<double> block_sums_ref(const std::vector<Term>& terms) {
  std::vector<double> blocks;
  for (std::size_t begin = 0; begin < terms.size(); begin += block_length) {
    const std::size_t end = begin + block_length < terms.size() ? begin + block_length : terms.size();
    blocks.push_back(block_sum_ref(std::vector<Term>(terms.begin() + begin, terms.begin() + end)));
  }
  return blocks;
}

/// The sum of a vector: the sums of blocks of 1024 terms, the sums of blocks of 1024 of these, and those added as one
/// block.
template <class Term>
double ordered_sum_ref(const std::vector<Term>& terms) {
  return block_sum_ref(block_sums_ref(block_sums_ref(terms)));
}

}  // namespace onebit
