/// \file layout.cpp
/// See layout.hpp.

#include "compress/layout.hpp"

#include <algorithm>

#include "base/parallel.hpp"

namespace onebit::compress {
namespace {

std::size_t word_count(std::size_t length) { return (length + bits_per_word - 1) / bits_per_word; }

/// Begins of equal chunks of whole words.
std::vector<std::size_t> equal_chunks(std::size_t length, int chunks) {
  const std::size_t words = (word_count(length) + chunks - 1) / chunks;
  std::vector<std::size_t> begins;
  for (int chunk = 0; chunk <= chunks; ++chunk) begins.push_back(std::min(length, chunk * words * bits_per_word));
  return begins;
}

/// Begins of chunks of whole groups, each at the border nearest to its share.
std::vector<std::size_t> chunks_of_groups(std::size_t length, int chunks,
                                          const std::vector<std::size_t>& group_begins) {
  std::vector<std::size_t> borders = {0};
  for (const std::size_t begin : group_begins)
    if (begin > borders.back() && begin < length) borders.push_back(begin);
  borders.push_back(length);

  std::vector<std::size_t> begins;
  for (int chunk = 0; chunk <= chunks; ++chunk) {
    // Places are compared in units of 1/chunks, so that a share is a whole number.
    const std::size_t share = chunk * length;
    auto nearest = std::lower_bound(borders.begin(), borders.end(), share,
                                    [&](std::size_t border, std::size_t place) { return border * chunks < place; });
    if (nearest != borders.begin() && share - *(nearest - 1) * chunks <= *nearest * chunks - share) --nearest;
    begins.push_back(*nearest);
  }
  return begins;
}

/// Borders of the slots of one chunk [begin, end), both ends included; {begin, begin} for an empty chunk.
std::vector<std::size_t> slot_borders(std::size_t begin, std::size_t end, Grouping grouping, std::size_t block,
                                      const std::vector<std::size_t>& group_begins) {
  std::vector<std::size_t> borders = {begin};
  if (grouping == Grouping::block)
    for (std::size_t at = begin + block; at < end; at += block) borders.push_back(at);
  if (grouping == Grouping::tensor || grouping == Grouping::column) {
    const auto first = std::upper_bound(group_begins.begin(), group_begins.end(), begin);
    for (auto at = first; at != group_begins.end() && *at < end; ++at)
      if (*at != borders.back()) borders.push_back(*at);
  }
  borders.push_back(end);
  return borders;
}

}  // namespace

Layout::Layout(std::size_t length, int chunks, Grouping grouping, std::size_t block,
               const std::vector<std::size_t>& group_begins)
    : length(length),
      chunks(chunks),
      grouping(grouping),
      chunk_begins(grouping == Grouping::column ? chunks_of_groups(length, chunks, group_begins)
                                                : equal_chunks(length, chunks)),
      words(0),
      slots(1) {
  std::vector<std::vector<std::size_t>> borders;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t begin = chunk_begins[chunk], end = chunk_begins[chunk + 1];
    words = std::max(words, word_count(end - begin));
    borders.push_back(slot_borders(begin, end, grouping, block, group_begins));
    slots = std::max(slots, borders.back().size() - 1);
  }

  word_slots.assign(chunks * words, 0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    borders[chunk].resize(slots + 1, borders[chunk].back());
    const std::vector<std::size_t>& border = borders[chunk];
    std::uint32_t slot = 0;
    for (std::size_t word = 0; word < words; ++word) {
      const std::size_t first = chunk_begins[chunk] + word * bits_per_word;
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
