#include "compress/layout.hpp"

#include <algorithm>

#include "base/device/parallel.hpp"

namespace onebit::compress {
namespace {

std::size_t word_count(std::size_t length) { return (length + bits_per_word - 1) / bits_per_word; }

/// Begins of chunks, chunk k's at the border nearest to k·length/chunks.
std::vector<std::size_t> chunks_at(std::size_t length, int chunks, const std::vector<std::size_t>& chunk_borders) {
  std::vector<std::size_t> borders = {0};
  for (const std::size_t begin : chunk_borders)
    if (begin > borders.back() && begin < length) borders.push_back(begin);
  borders.push_back(length);

  std::vector<std::size_t> begins;
  for (int chunk = 0; chunk <= chunks; ++chunk) {
    // Both sides are multiplied by `chunks`, so that they are whole numbers.
    const std::size_t wanted = chunk * length;
    auto nearest = std::lower_bound(borders.begin(), borders.end(), wanted,
                                    [&](std::size_t border, std::size_t place) { return border * chunks < place; });
    if (nearest != borders.begin() && wanted - *(nearest - 1) * chunks <= *nearest * chunks - wanted) --nearest;
    begins.push_back(*nearest);
  }
  return begins;
}

/// First elements of the groups of one chunk [begin, end), and its end; {begin, begin} for an empty chunk.
std::vector<std::size_t> groups_of_chunk(std::size_t begin, std::size_t end, Grouping grouping,
                                         std::size_t group_length, const std::vector<std::size_t>& borders) {
  std::vector<std::size_t> begins = {begin};
  if (grouping == Grouping::fixed)
    for (std::size_t at = begin; end - at > group_length;) begins.push_back(at += group_length);
  if (grouping == Grouping::tensor || grouping == Grouping::column) {
    const auto first = std::upper_bound(borders.begin(), borders.end(), begin);
    for (auto at = first; at != borders.end() && *at < end; ++at)
      if (*at != begins.back()) begins.push_back(*at);
  }
  begins.push_back(end);
  return begins;
}

}  // namespace

std::vector<std::size_t> equal_chunks(std::size_t length, int chunks) {
  const std::size_t chunk_length = words_of_chunk(length, chunks) * bits_per_word;
  std::vector<std::size_t> begins;
  for (int chunk = 0; chunk <= chunks; ++chunk) begins.push_back(std::min(length, chunk * chunk_length));
  return begins;
}

Layout::Layout(std::size_t length, int chunks, Grouping grouping, std::size_t group_length,
               const std::vector<std::size_t>& borders, const std::vector<std::size_t>& chunk_borders)
    : length(length),
      chunks(chunks),
      grouping(grouping),
      chunk_begins(grouping == Grouping::column ? chunks_at(length, chunks, borders)
                   : chunk_borders.empty()      ? equal_chunks(length, chunks)
                                                : chunks_at(length, chunks, chunk_borders)),
      words(0),
      groups(1) {
  std::vector<std::vector<std::size_t>> begins_of_chunks;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t begin = chunk_begins[chunk], end = chunk_begins[chunk + 1];
    words = std::max(words, word_count(end - begin));
    begins_of_chunks.push_back(groups_of_chunk(begin, end, grouping, group_length, borders));
    groups = std::max(groups, begins_of_chunks.back().size() - 1);
  }

  word_groups.assign(chunks * words, 0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    std::vector<std::size_t>& begins = begins_of_chunks[chunk];
    begins.resize(groups + 1, begins.back());
    std::uint32_t group = 0;
    for (std::size_t word = 0; word < words; ++word) {
      const std::size_t first = chunk_begins[chunk] + word * bits_per_word;
      while (group + 1 < groups && begins[group + 1] <= first && begins[group + 1] < begins.back()) ++group;
      word_groups[chunk * words + word] = group;
    }
    group_begins.insert(group_begins.end(), begins.begin(), begins.end() - 1);
  }
  group_begins.push_back(length);

  for (std::size_t group = 0; group + 1 < group_begins.size(); ++group) {
    group_blocks.push_back(block_begins.size());
    for (std::size_t at = group_begins[group]; at < group_begins[group + 1]; at += block_length)
      block_begins.push_back(at);
  }
  group_blocks.push_back(block_begins.size());
  block_begins.push_back(length);
}

}  // namespace onebit::compress
