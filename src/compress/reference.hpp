#pragma once
/// \file reference.hpp
/// The compressors in plain loops over elements: the definition that the kernels of compressor.hpp are tested against,
/// bit for bit. It does not use the tables of `Layout`, which are tested against it too.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/reference.hpp"
#include "compress/compressor.hpp"
#include "compress/layout.hpp"

namespace onebit::compress {

/// The cut of a vector, element by element.
struct LayoutRef {
  std::size_t length;
  int chunks;
  Grouping grouping;
  std::vector<std::size_t> begins;  ///< (chunks + 1) first element of each chunk; `length` for one that is all padding
  std::size_t words;                ///< W: runs of 32 elements in the longest chunk
  std::size_t slots;                ///< S: most slots of a chunk
  std::vector<std::size_t> slot;    ///< (length) each element's slot, counted from its chunk's first

  LayoutRef(std::size_t length, int chunks, Grouping grouping, std::size_t block = 0,
            const std::vector<std::size_t>& group_begins = {})
      : length(length), chunks(chunks), grouping(grouping), words(0), slots(1), slot(length, 0) {
    for (int chunk = 0; chunk <= chunks; ++chunk)
      begins.push_back(grouping == Grouping::column ? nearest_border(chunk, group_begins) : whole_words(chunk));
    for (int chunk = 0; chunk < chunks; ++chunk) {
      words = std::max(words, (begins[chunk + 1] - begins[chunk] + bits_per_word - 1) / bits_per_word);
      for (std::size_t j = begins[chunk] + 1; j < begins[chunk + 1]; ++j) {
        bool opens_slot = false;
        if (grouping == Grouping::block) opens_slot = (j - begins[chunk]) % block == 0;
        if (grouping == Grouping::tensor || grouping == Grouping::column)
          opens_slot = std::binary_search(group_begins.begin(), group_begins.end(), j);
        slot[j] = slot[j - 1] + (opens_slot ? 1 : 0);
        slots = std::max(slots, slot[j] + 1);
      }
    }
  }

private:
  /// Begin of a chunk where all are equal and whole words.
  std::size_t whole_words(int chunk) const {
    const std::size_t all_words = (length + bits_per_word - 1) / bits_per_word;
    return std::min(length, chunk * ((all_words + chunks - 1) / chunks) * bits_per_word);
  }
  /// The border of columns nearest to chunk·length/chunks.
  std::size_t nearest_border(int chunk, std::vector<std::size_t> borders) const {
    borders.insert(borders.begin(), 0);
    borders.push_back(length);
    std::size_t nearest = 0;
    const auto distance = [&](std::size_t border) {
      return std::abs(static_cast<double>(border) * chunks - static_cast<double>(length) * chunk);
    };
    for (const std::size_t border : borders)
      if (border <= length && distance(border) < distance(nearest)) nearest = border;
    return nearest;
  }
};

/// Scales of a group, and bits of an element, in a message.
inline std::size_t scale_count_ref(const Options& options) { return options.kind == Kind::column ? 2 : 1; }
inline int plane_count_ref(const Options& options) {
  return options.kind == Kind::nbit ? options.bits : options.kind == Kind::sign_ternary ? 2 : 1;
}
/// A chunk's message: the scales of S slots, then the planes of W runs.
inline std::size_t message_words_ref(const LayoutRef& layout, const Options& options) {
  return layout.slots * scale_count_ref(options) + layout.words * plane_count_ref(options);
}

/// What the scales of a group are made of; each kind of compressor takes what it needs.
struct StatisticsRef {
  double count = 0, nonzeros = 0, negatives = 0;
  double norm = 0;                         ///< Σ|c|, or Σc² where `Scale::l2`
  double negative_sum = 0, other_sum = 0;  ///< of c < 0, of all others
  double least = std::numeric_limits<double>::infinity(), greatest = -least;
};

/// Sums are taken in the fixed tree: of floats in float, of squares in double.
inline StatisticsRef statistics_ref(const Options& options, const std::vector<float>& c, std::size_t begin,
                                    std::size_t end) {
  const auto sum = [&](const auto& term) {
    std::vector<decltype(term(0.0f))> terms;
    for (std::size_t j = begin; j < end; ++j) terms.push_back(term(c[j]));
    return ordered_sum_ref(terms);
  };
  StatisticsRef result;
  for (std::size_t j = begin; j < end; ++j) {
    result.count += 1;
    result.nonzeros += c[j] != 0;
    result.negatives += c[j] < 0;
    result.least = std::min(result.least, c[j] + 0.0);  // −0 is +0
    result.greatest = std::max(result.greatest, c[j] + 0.0);
  }
  if (options.kind == Kind::sign || options.kind == Kind::sign_ternary)
    result.norm = options.scale == Scale::l1
                      ? sum([](float value) { return std::fabs(value); })
                      : sum([](float value) { return static_cast<double>(value) * static_cast<double>(value); });
  if (options.kind == Kind::column) {
    result.negative_sum = sum([](float value) { return value < 0 ? value : 0.0f; });
    result.other_sum = sum([](float value) { return value < 0 ? 0.0f : value; });
  }
  return result;
}

/// Statistics of a vector from those of its chunks, which are the tree's last level.
inline StatisticsRef join_ref(const std::vector<StatisticsRef>& chunks) {
  StatisticsRef result;
  const auto sum = [&](double StatisticsRef::*member) {
    std::vector<double> terms;
    for (const StatisticsRef& chunk : chunks) terms.push_back(chunk.*member);
    result.*member = piece_sum_ref(terms);
  };
  for (const auto member : {&StatisticsRef::count, &StatisticsRef::nonzeros, &StatisticsRef::negatives,
                            &StatisticsRef::norm, &StatisticsRef::negative_sum, &StatisticsRef::other_sum})
    sum(member);
  for (const StatisticsRef& chunk : chunks) {
    result.least = std::min(result.least, chunk.least);
    result.greatest = std::max(result.greatest, chunk.greatest);
  }
  return result;
}

/// The scales of a group, as its message holds them.
inline std::vector<float> scales_ref(const Options& options, const StatisticsRef& group) {
  if (group.count == 0) return std::vector<float>(scale_count_ref(options), 0.0f);
  const auto ratio = [](double sum, double count) { return count == 0 ? 0.0 : sum / count; };
  if (options.kind == Kind::nbit) return {static_cast<float>(std::max(group.greatest, -group.least))};
  if (options.kind == Kind::column) {
    if (options.reconstruction == Reconstruction::range)
      return {static_cast<float>(0.75 * group.least + 0.25 * group.greatest),
              static_cast<float>(0.25 * group.least + 0.75 * group.greatest)};
    return {static_cast<float>(ratio(group.negative_sum, group.negatives)),
            static_cast<float>(ratio(group.other_sum, group.count - group.negatives))};
  }
  const double mean = ratio(group.norm, options.kind == Kind::sign ? group.count : group.nonzeros);
  return {static_cast<float>(options.scale == Scale::l1 ? mean : std::sqrt(mean))};
}

/// The code of an element. \param scales of its group
inline std::uint32_t encode_ref(const Options& options, const float* scales, float c) {
  switch (options.kind) {
    case Kind::sign:
      return c >= 0 ? 1 : 0;
    case Kind::sign_ternary:
      return c == 0 ? 0 : c > 0 ? 3 : 1;
    case Kind::column:
      return c < 0 ? 0 : 1;
    case Kind::nbit:
      break;
  }
  const int levels = (1 << (options.bits - 1)) - 1;
  const double steps = scales[0] == 0 ? 0.0 : c * (levels / static_cast<double>(scales[0]));
  return static_cast<std::uint32_t>(static_cast<int>(std::nearbyint(steps)) + levels);
}

/// What a code stands for. \param scales of its group
inline float decode_ref(const Options& options, const float* scales, std::uint32_t code) {
  switch (options.kind) {
    case Kind::sign:
      return code == 1 ? scales[0] : -scales[0];
    case Kind::sign_ternary:
      return code % 2 == 0 ? 0.0f : code == 3 ? scales[0] : -scales[0];
    case Kind::column:
      return scales[code];
    case Kind::nbit:
      break;
  }
  const int levels = (1 << (options.bits - 1)) - 1;
  return static_cast<float>((static_cast<int>(code) - levels) * (static_cast<double>(scales[0]) / levels));
}

/// c = x + factor · residual; returns the messages of C(c), (chunks * message_words); residual ← c − C(c).
/// \param x, residual elements of chunks [first_chunk, first_chunk + chunks)
inline std::vector<std::uint32_t> compress_ref(const LayoutRef& layout, const Options& options, int first_chunk,
                                               int chunks, const std::vector<float>& x, std::vector<float>& residual,
                                               float residual_factor = 1) {
  const std::size_t base = layout.begins[first_chunk], length = layout.begins[first_chunk + chunks] - base;
  std::vector<float> c(length);
  for (std::size_t j = 0; j < length; ++j) c[j] = x[j] + residual_factor * residual[j];

  // Statistics by (chunk, slot); a slot is a run of elements.
  std::vector<StatisticsRef> groups(chunks * layout.slots);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t end = layout.begins[first_chunk + chunk + 1] - base;
    for (std::size_t begin = layout.begins[first_chunk + chunk] - base; begin < end;) {
      const std::size_t slot = layout.slot[base + begin];
      std::size_t slot_end = begin;
      while (slot_end < end && layout.slot[base + slot_end] == slot) ++slot_end;
      groups[chunk * layout.slots + slot] = statistics_ref(options, c, begin, slot_end);
      begin = slot_end;
    }
  }
  // A worker's vector is one group; its chunks are one slot each.
  if (layout.grouping == Grouping::vector && chunks == layout.chunks)
    std::fill(groups.begin(), groups.end(), join_ref(groups));

  const std::size_t scale_count = scale_count_ref(options), message_words = message_words_ref(layout, options);
  const int planes = plane_count_ref(options);
  std::vector<std::uint32_t> messages(chunks * message_words, 0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    std::vector<float> scales;
    for (std::size_t slot = 0; slot < layout.slots; ++slot)
      for (const float scale : scales_ref(options, groups[chunk * layout.slots + slot])) scales.push_back(scale);
    std::uint32_t* const message = messages.data() + chunk * message_words;
    std::memcpy(message, scales.data(), scales.size() * sizeof(float));
    const std::size_t begin = layout.begins[first_chunk + chunk], end = layout.begins[first_chunk + chunk + 1];
    for (std::size_t j = begin; j < end; ++j) {
      const float* const group = scales.data() + layout.slot[j] * scale_count;
      const std::uint32_t code = encode_ref(options, group, c[j - base]);
      std::uint32_t* const words = message + scales.size() + (j - begin) / bits_per_word * planes;
      for (int plane = 0; plane < planes; ++plane) words[plane] |= (code >> plane & 1u) << (j - begin) % bits_per_word;
      residual[j - base] = c[j - base] - decode_ref(options, group, code);
    }
  }
  return messages;
}

/// C(c)_j of one element: `message` is its chunk's, and j counts from the first element of the vector.
inline float element_ref(const LayoutRef& layout, const Options& options, const std::uint32_t* message, int chunk,
                         std::size_t j) {
  const std::size_t scale_count = scale_count_ref(options), in_chunk = j - layout.begins[chunk];
  const int planes = plane_count_ref(options);
  float scales[2] = {};
  std::memcpy(scales, message + layout.slot[j] * scale_count, scale_count * sizeof(float));
  const std::uint32_t* const words = message + layout.slots * scale_count + in_chunk / bits_per_word * planes;
  std::uint32_t code = 0;
  for (int plane = 0; plane < planes; ++plane) code |= (words[plane] >> in_chunk % bits_per_word & 1u) << plane;
  return decode_ref(options, scales, code);
}

/// (1/senders) Σ_i C(c_i) of one chunk's elements, in the order of the senders.
/// \param messages (senders * message_words)
inline std::vector<float> average_ref(const LayoutRef& layout, const Options& options, int chunk, int senders,
                                      const std::vector<std::uint32_t>& messages) {
  std::vector<float> mean;
  for (std::size_t j = layout.begins[chunk]; j < layout.begins[chunk + 1]; ++j) {
    float sum = 0;
    for (int sender = 0; sender < senders; ++sender)
      sum += element_ref(layout, options, messages.data() + sender * message_words_ref(layout, options), chunk, j);
    mean.push_back(sum / static_cast<float>(senders));
  }
  return mean;
}

/// The vector that the messages of all chunks stand for. \param messages (chunks * message_words)
inline std::vector<float> decompress_ref(const LayoutRef& layout, const Options& options,
                                         const std::vector<std::uint32_t>& messages) {
  std::vector<float> x;
  for (int chunk = 0; chunk < layout.chunks; ++chunk)
    for (std::size_t j = layout.begins[chunk]; j < layout.begins[chunk + 1]; ++j)
      x.push_back(element_ref(layout, options, messages.data() + chunk * message_words_ref(layout, options), chunk, j));
  return x;
}

}  // namespace onebit::compress
