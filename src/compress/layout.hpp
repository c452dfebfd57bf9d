#pragma once
/// \file layout.hpp
/// How a flat vector is cut for compression: into one chunk for each rank, and into groups that share scales.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/range.hpp"

namespace onebit::compress {

/// Elements whose codes lie side by side: bit j of each of their words belongs to the j-th of them.
inline constexpr std::size_t bits_per_word = 32;

/// A range of a chunk's words ends at a multiple of this or at the chunk's end, W. A multiple of the words that a
/// thread or a warp takes at once.
inline constexpr std::size_t range_alignment = 32;

/// W = ⌈⌈length/32⌉ / chunks⌉: words of a chunk, where chunks are equal.
inline std::size_t words_of_chunk(std::size_t length, int chunks) {
  return ((length + bits_per_word - 1) / bits_per_word + chunks - 1) / chunks;
}
/// (chunks + 1) First elements of equal chunks. The last ones may be shorter or empty.
std::vector<std::size_t> equal_chunks(std::size_t length, int chunks);

/// What a group is.
enum class Grouping { vector, chunk, tensor, fixed, column };

/// The cut of a vector of `length` elements for `chunks` ranks.
///
/// Chunks are equal and whole words: W = ⌈⌈length/32⌉ / chunks⌉ words each, so the last ones may be partly or wholly
/// padding. With chunk borders chunk k begins instead at the border nearest to k·length/chunks (of two, at the lower),
/// and W is that of the longest chunk. The borders of Grouping::column are chunk borders, too. A chunk has G groups,
/// each with its own scales in the chunk's message. Groups never cross the end of a chunk and never hold padding; a
/// chunk with fewer than G has empty ones at its end. Each group is cut into blocks of `block_length` elements, over
/// which its statistics are taken.
struct Layout {
  /// \param group_length elements of a group, a multiple of 32, for Grouping::fixed
  /// \param borders      first element of each tensor, row or column, ascending from 0, for Grouping::tensor and
  ///                     ::column
  /// \param chunk_borders where chunks may begin, ascending from 0; empty for equal chunks
  Layout(std::size_t length, int chunks, Grouping grouping, std::size_t group_length = 0,
         const std::vector<std::size_t>& borders = {}, const std::vector<std::size_t>& chunk_borders = {});

  std::size_t length;
  int chunks;
  Grouping grouping;
  std::vector<std::size_t> chunk_begins;   ///< (chunks + 1) first element of each chunk
  std::size_t words;                       ///< W
  std::size_t groups;                      ///< G
  std::vector<std::size_t> group_begins;   ///< (chunks * G + 1) first element of each group
  std::vector<std::size_t> group_blocks;   ///< (chunks * G + 1) first block of each group
  std::vector<std::size_t> block_begins;   ///< (blocks + 1) first element of each block
  std::vector<std::uint32_t> word_groups;  ///< (chunks * W) group, within its chunk, of each word's first element

  /// Elements of a chunk with its padding.
  std::size_t chunk_length() const { return words * bits_per_word; }
};

}  // namespace onebit::compress
