/// \file layout.cpp
/// See layout.hpp.

#include "compress/layout.hpp"

#include <algorithm>

#include "base/parallel.hpp"

namespace onebit::compress {
namespace {

/// Borders of the slots of one chunk [begin, end), both ends included; {begin, begin} for an empty chunk.
std::vector<std::size_t> slot_borders(std::size_t begin, std::size_t end, Grouping grouping, std::size_t block,
                                      const std::vector<std::size_t>& tensor_offsets) {
  std::vector<std::size_t> borders = {begin};
  if (grouping == Grouping::block)
    for (std::size_t at = begin + block; at < end; at += block) borders.push_back(at);
  if (grouping == Grouping::tensor) {
    const auto first = std::upper_bound(tensor_offsets.begin(), tensor_offsets.end(), begin);
    for (auto at = first; at != tensor_offsets.end() && *at < end; ++at)
      if (*at != borders.back()) borders.push_back(*at);
  }
  borders.push_back(end);
  return borders;
}

}  // namespace

Layout::Layout(std::size_t length, int chunks, Grouping grouping, std::size_t block,
               const std::vector<std::size_t>& tensor_offsets)
    : length(length), chunks(chunks), grouping(grouping) {
  const std::size_t all_words = (length + bits_per_word - 1) / bits_per_word;
  words = (all_words + chunks - 1) / chunks;

  std::vector<std::vector<std::size_t>> borders;
  slots = 1;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    borders.push_back(slot_borders(chunk_begin(chunk), chunk_begin(chunk + 1), grouping, block, tensor_offsets));
    slots = std::max(slots, borders.back().size() - 1);
  }

  word_slots.assign(chunks * words, 0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    borders[chunk].resize(slots + 1, borders[chunk].back());
    const std::vector<std::size_t>& border = borders[chunk];
    std::uint32_t slot = 0;
    for (std::size_t word = 0; word < words; ++word) {
      const std::size_t first = chunk_begin(chunk) + word * bits_per_word;
      while (slot + 1 < slots && border[slot + 1] <= first && border[slot + 1] < border.back()) ++slot;
      word_slots[chunk * words + word] = slot;
    }
    slot_begins.insert(slot_begins.end(), border.begin(), border.end() - 1);
  }
  slot_begins.push_back(length);

  for (std::size_t slot = 0; slot + 1 < slot_begins.size(); ++slot) {
    slot_pieces.push_back(piece_begins.size());
    for (std::size_t at = slot_begins[slot]; at < slot_begins[slot + 1]; at += piece_length) piece_begins.push_back(at);
  }
  slot_pieces.push_back(piece_begins.size());
  piece_begins.push_back(length);
}

}  // namespace onebit::compress
