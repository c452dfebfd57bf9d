#pragma once
/// \file layout.hpp
/// How a flat vector is cut for compression: into one chunk for each rank, and into groups that share a scale.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace onebit::compress {

/// Elements whose signs share one word.
inline constexpr std::size_t bits_per_word = 32;

/// What shares one scale.
enum class Grouping { vector, chunk, tensor, block };

/// The cut of a vector of `length` elements for `chunks` ranks.
///
/// Chunks are equal and whole words: W = ⌈⌈length/32⌉ / chunks⌉ words each, so the last ones may be partly or wholly
/// padding. A chunk's elements are cut into at most S consecutive *slots*; a slot has one scale in the chunk's
/// message. Slots never cross a chunk border and never hold padding; a chunk with fewer than S has empty ones at its
/// end. Each slot is cut into pieces of `piece_length` elements, over which its norm is summed.
///
/// A chunk's message is S scales (float bits) and then W sign words; bit j % 32 of word j / 32 is element j of the
/// chunk, 1 for ≥ 0.
struct Layout {
  /// \param block          elements of a group, a multiple of 32, for Grouping::block
  /// \param tensor_offsets first element of each tensor, ascending from 0, for Grouping::tensor
  Layout(std::size_t length, int chunks, Grouping grouping, std::size_t block = 0,
         const std::vector<std::size_t>& tensor_offsets = {});

  std::size_t length;
  int chunks;
  Grouping grouping;
  std::size_t words;                      ///< W: sign words of a chunk
  std::size_t slots;                      ///< S: scales of a chunk
  std::vector<std::size_t> slot_begins;   ///< (chunks * S + 1) first element of each slot
  std::vector<std::size_t> slot_pieces;   ///< (chunks * S + 1) first piece of each slot
  std::vector<std::size_t> piece_begins;  ///< (pieces + 1) first element of each piece
  std::vector<std::uint32_t> word_slots;  ///< (chunks * W) slot, within its chunk, of each word's first element

  std::size_t message_words() const { return slots + words; }
  std::size_t chunk_length() const { return words * bits_per_word; }
  /// First element of a chunk; `length` for one that is all padding.
  std::size_t chunk_begin(int chunk) const {
    const std::size_t begin = static_cast<std::size_t>(chunk) * chunk_length();
    return begin < length ? begin : length;
  }
};

}  // namespace onebit::compress
