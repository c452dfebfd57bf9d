#pragma once
/// \file layout.hpp
/// How a flat vector is cut for compression: into one chunk for each rank, and into groups that share scales.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace onebit::compress {

/// Elements whose codes lie side by side: bit j of each of their words belongs to the j-th of them.
inline constexpr std::size_t bits_per_word = 32;

/// Runs [begin, end) of 32 elements of a chunk. Borders are multiples of `run_alignment` or the chunk's end, W.
struct Runs {
  std::size_t begin, end;
};
/// Runs between two borders: no unit of parallel work is cut.
inline constexpr std::size_t run_alignment = 32;

/// What shares the scales of one group.
enum class Grouping { vector, chunk, tensor, block, column };

/// The cut of a vector of `length` elements for `chunks` ranks.
///
/// Chunks are equal and whole words: W = ⌈⌈length/32⌉ / chunks⌉ words each, so the last ones may be partly or wholly
/// padding. With Grouping::column chunks are whole columns instead: chunk k begins at the column border nearest to
/// k·length/chunks (of two, at the lower), and W is that of the longest. A chunk's elements are cut into at most S
/// consecutive *slots*, which have their own scales in the chunk's message. Slots never cross a chunk border and never
/// hold padding; a chunk with fewer than S has empty ones at its end. Each slot is cut into pieces of `piece_length`
/// elements, over which its statistics are taken.
struct Layout {
  /// \param block        elements of a group, a multiple of 32, for Grouping::block
  /// \param group_begins first element of each tensor or column, ascending from 0, for Grouping::tensor and ::column
  Layout(std::size_t length, int chunks, Grouping grouping, std::size_t block = 0,
         const std::vector<std::size_t>& group_begins = {});

  std::size_t length;
  int chunks;
  Grouping grouping;
  std::vector<std::size_t> chunk_begins;  ///< (chunks + 1) first element of each chunk
  std::size_t words;                      ///< W: runs of 32 elements in a chunk
  std::size_t slots;                      ///< S: groups of a chunk
  std::vector<std::size_t> slot_begins;   ///< (chunks * S + 1) first element of each slot
  std::vector<std::size_t> slot_pieces;   ///< (chunks * S + 1) first piece of each slot
  std::vector<std::size_t> piece_begins;  ///< (pieces + 1) first element of each piece
  std::vector<std::uint32_t> word_slots;  ///< (chunks * W) slot, within its chunk, of each word's first element

  /// Elements of a chunk with its padding.
  std::size_t chunk_length() const { return words * bits_per_word; }
};

}  // namespace onebit::compress
