#pragma once
/// \file reference.hpp
/// The compressors in plain loops over elements: the definition that the kernels of compressor.hpp are tested against,
/// bit for bit. It does not use the tables of `Layout`, which are tested against it too.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/device/reference.hpp"
#include "compress/compressor.hpp"
#include "compress/layout.hpp"

namespace onebit::compress {

/// The cut of a vector, element by element.
struct LayoutRef {
  std::size_t length;
  int chunks;
  Grouping grouping;
  std::vector<std::size_t> begins;  ///< (chunks + 1) first element of each chunk; `length` for one that is all padding
  std::size_t words;                ///< W: words of a plane of the longest chunk
  std::size_t groups;               ///< G: most groups of a chunk
  std::vector<std::size_t> group;   ///< (length) each element's group, counted from its chunk's first

  LayoutRef(std::size_t length, int chunks, Grouping grouping, std::size_t group_length = 0,
            const std::vector<std::size_t>& borders = {}, const std::vector<std::size_t>& chunk_borders = {})
      : length(length), chunks(chunks), grouping(grouping), words(0), groups(1), group(length, 0) {
    for (int chunk = 0; chunk <= chunks; ++chunk)
      begins.push_back(grouping == Grouping::column ? nearest_border(chunk, borders)
                       : chunk_borders.empty()      ? whole_words(chunk)
                                                    : nearest_border(chunk, chunk_borders));
    for (int chunk = 0; chunk < chunks; ++chunk) {
      words = std::max(words, (begins[chunk + 1] - begins[chunk] + bits_per_word - 1) / bits_per_word);
      for (std::size_t j = begins[chunk] + 1; j < begins[chunk + 1]; ++j) {
        bool opens_group = false;
        if (grouping == Grouping::fixed) opens_group = (j - begins[chunk]) % group_length == 0;
        if (grouping == Grouping::tensor || grouping == Grouping::column)
          opens_group = std::binary_search(borders.begin(), borders.end(), j);
        group[j] = group[j - 1] + (opens_group ? 1 : 0);
        groups = std::max(groups, group[j] + 1);
      }
    }
  }

private:
  /// Begin of a chunk where all chunks are equal and whole words.
  std::size_t whole_words(int chunk) const {
    const std::size_t all_words = (length + bits_per_word - 1) / bits_per_word;
    return std::min(length, chunk * ((all_words + chunks - 1) / chunks) * bits_per_word);
  }
  /// The border nearest to chunk·length/chunks.
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

/// What the scales of a group are made of; each compressor takes what it needs.
struct StatisticsRef {
  double count = 0, nonzeros = 0, negatives = 0;
  double magnitudes = 0, squares = 0;      ///< Σ|c|, Σc²
  double negative_sum = 0, other_sum = 0;  ///< of c < 0, of all others
  double least = std::numeric_limits<double>::infinity(), greatest = -least;
};

/// Of elements [begin, end). Sums are taken in the fixed tree: of floats in float, of squares in double.
inline StatisticsRef statistics_ref(const std::vector<float>& c, std::size_t begin, std::size_t end) {
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
  result.magnitudes = sum([](float value) { return std::fabs(value); });
  result.squares = sum([](float value) { return static_cast<double>(value) * static_cast<double>(value); });
  result.negative_sum = sum([](float value) { return value < 0 ? value : 0.0f; });
  result.other_sum = sum([](float value) { return value < 0 ? 0.0f : value; });
  return result;
}

/// Statistics of a vector from those of its chunks, which are the tree's last level.
inline StatisticsRef join_ref(const std::vector<StatisticsRef>& chunks) {
  StatisticsRef result;
  for (const auto member :
       {&StatisticsRef::count, &StatisticsRef::nonzeros, &StatisticsRef::negatives, &StatisticsRef::magnitudes,
        &StatisticsRef::squares, &StatisticsRef::negative_sum, &StatisticsRef::other_sum}) {
    std::vector<double> terms;
    for (const StatisticsRef& chunk : chunks) terms.push_back(chunk.*member);
    result.*member = block_sum_ref(terms);
  }
  for (const StatisticsRef& chunk : chunks) {
    result.least = std::min(result.least, chunk.least);
    result.greatest = std::max(result.greatest, chunk.greatest);
  }
  return result;
}

/// The definition of a compressor.
struct CodecRef {
  std::size_t scale_count;  ///< scales of a group
  int planes;               ///< bits of a code
  std::function<std::vector<float>(const StatisticsRef& group)> scales;
  std::function<std::uint32_t(const float* scales, float c)> encode;
  std::function<float(const float* scales, std::uint32_t code)> decode;
};

inline double ratio_ref(double sum, double count) { return count == 0 ? 0.0 : sum / count; }

/// The magnitude of a group, by `Options::scale`, of which `count` elements count.
inline float magnitude_ref(const Options& options, const StatisticsRef& group, double count) {
  return static_cast<float>(options.scale == Scale::l1 ? ratio_ref(group.magnitudes, count)
                                                       : std::sqrt(ratio_ref(group.squares, count)));
}

/// A compressor without its definition does not compile.
template <CompressorKind>
CodecRef codec_ref(const Options& options) = delete;

template <>
inline CodecRef codec_ref<CompressorKind::sign>(const Options& options) {
  return {1, 1, [=](const StatisticsRef& g) { return std::vector<float>{magnitude_ref(options, g, g.count)}; },
          [](const float*, float c) { return c >= 0 ? 1u : 0u; },
          [](const float* s, std::uint32_t code) { return code == 1 ? s[0] : -s[0]; }};
}

template <>
inline CodecRef codec_ref<CompressorKind::sign_ternary>(const Options& options) {
  return {1, 2, [=](const StatisticsRef& g) { return std::vector<float>{magnitude_ref(options, g, g.nonzeros)}; },
          [](const float*, float c) { return c == 0  ? 0u
                                             : c > 0 ? 3u
                                                     : 1u; },
          [](const float* s, std::uint32_t code) { return code % 2 == 0 ? 0.0f
                                                          : code == 3   ? s[0]
                                                                        : -s[0]; }};
}

template <>
inline CodecRef codec_ref<CompressorKind::column>(const Options& options) {
  const auto scales = [=](const StatisticsRef& g) -> std::vector<float> {
    if (options.reconstruction == Reconstruction::range)
      return {static_cast<float>(0.75 * g.least + 0.25 * g.greatest),
              static_cast<float>(0.25 * g.least + 0.75 * g.greatest)};
    return {static_cast<float>(ratio_ref(g.negative_sum, g.negatives)),
            static_cast<float>(ratio_ref(g.other_sum, g.count - g.negatives))};
  };
  return {2, 1, scales, [](const float*, float c) { return c < 0 ? 0u : 1u; },
          [](const float* s, std::uint32_t code) { return s[code]; }};
}

template <>
inline CodecRef codec_ref<CompressorKind::nbit>(const Options& options) {
  const int levels = (1 << (options.bits - 1)) - 1;
  const auto encode = [=](const float* s, float c) {
    const double steps = s[0] == 0 ? 0.0 : c * (levels / static_cast<double>(s[0]));
    return static_cast<std::uint32_t>(static_cast<int>(std::nearbyint(steps)) + levels);
  };
  const auto decode = [=](const float* s, std::uint32_t code) {
    return static_cast<float>((static_cast<int>(code) - levels) * (static_cast<double>(s[0]) / levels));
  };
  return {1, options.bits,
          [](const StatisticsRef& g) { return std::vector<float>{static_cast<float>(std::max(g.greatest, -g.least))}; },
          encode, decode};
}

/// |v| of the lower 7 bits of a code of e4m3: 2^(E−7) (1 + m/8), or 2^−6 m/8 where E = 0.
inline double e4m3_ref(std::uint32_t code) {
  const int exponent = static_cast<int>(code >> 3), mantissa = static_cast<int>(code & 7u);
  return exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
}

template <>
inline CodecRef codec_ref<CompressorKind::fp8>(const Options&) {
  // A table, as ldexp for each code of each element would take most of the tests' time.
  std::vector<double> magnitudes;
  for (std::uint32_t code = 0; e4m3_ref(code) <= 448; ++code) magnitudes.push_back(e4m3_ref(code));
  const auto encode = [magnitudes](const float* s, float c) {
    const float v = s[0] == 0 ? 0.0f : static_cast<float>(c * (448 / static_cast<double>(s[0])));
    const auto distance = [&](std::uint32_t code) { return std::fabs(magnitudes[code] - std::fabs(v)); };
    std::uint32_t nearest = 0;
    for (std::uint32_t code = 1; code < magnitudes.size(); ++code)
      if (distance(code) < distance(nearest) || (distance(code) == distance(nearest) && code % 2 == 0)) nearest = code;
    return nearest | (v < 0 ? 128u : 0u);
  };
  const auto decode = [](const float* s, std::uint32_t code) {
    const double v = e4m3_ref(code & 127u);
    return static_cast<float>((code >= 128 ? -v : v) * (static_cast<double>(s[0]) / 448));
  };
  return {1, 8,
          [](const StatisticsRef& g) { return std::vector<float>{static_cast<float>(std::max(g.greatest, -g.least))}; },
          encode, decode};
}

/// The definition of the compressor that the options name.
inline CodecRef codec_ref(const Options& options) {
  CodecRef codec;
  Compressors::visit(options.kind, [&](auto line) { codec = codec_ref<decltype(line)::kind>(options); });
  return codec;
}

/// A chunk's message: the scales of G groups, then W words of each plane.
inline std::size_t message_words_ref(const LayoutRef& layout, const Options& options) {
  const CodecRef codec = codec_ref(options);
  return layout.groups * codec.scale_count + layout.words * codec.planes;
}

/// c = x + factor · residual; returns the messages of C(c), (chunks * message_words); residual ← c − C(c).
/// \param x, residual elements of chunks [first_chunk, first_chunk + chunks)
inline std::vector<std::uint32_t> compress_ref(const LayoutRef& layout, const Options& options, int first_chunk,
                                               int chunks, const std::vector<float>& x, std::vector<float>& residual,
                                               float residual_factor = 1) {
  const CodecRef codec = codec_ref(options);
  const std::size_t base = layout.begins[first_chunk], length = layout.begins[first_chunk + chunks] - base;
  std::vector<float> c(length);
  for (std::size_t j = 0; j < length; ++j) c[j] = x[j] + residual_factor * residual[j];

  // Statistics by (chunk, group); the elements of a group are consecutive.
  std::vector<StatisticsRef> groups(chunks * layout.groups);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::size_t end = layout.begins[first_chunk + chunk + 1] - base;
    for (std::size_t begin = layout.begins[first_chunk + chunk] - base; begin < end;) {
      const std::size_t group = layout.group[base + begin];
      std::size_t group_end = begin;
      while (group_end < end && layout.group[base + group_end] == group) ++group_end;
      groups[chunk * layout.groups + group] = statistics_ref(c, begin, group_end);
      begin = group_end;
    }
  }
  // A worker's vector is one group of all its chunks.
  if (layout.grouping == Grouping::vector && chunks == layout.chunks)
    std::fill(groups.begin(), groups.end(), join_ref(groups));

  const std::size_t message_words = message_words_ref(layout, options);
  std::vector<std::uint32_t> messages(chunks * message_words, 0);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    std::vector<float> scales;
    for (std::size_t group = 0; group < layout.groups; ++group) {
      const StatisticsRef& statistics = groups[chunk * layout.groups + group];
      for (const float s : statistics.count > 0 ? codec.scales(statistics) : std::vector<float>(codec.scale_count))
        scales.push_back(s);
    }
    std::uint32_t* const message = messages.data() + chunk * message_words;
    std::memcpy(message, scales.data(), scales.size() * sizeof(float));
    const std::size_t begin = layout.begins[first_chunk + chunk], end = layout.begins[first_chunk + chunk + 1];
    for (std::size_t j = begin; j < end; ++j) {
      const float* const s = scales.data() + layout.group[j] * codec.scale_count;
      const std::uint32_t code = codec.encode(s, c[j - base]);
      std::uint32_t* const words = message + scales.size() + (j - begin) / bits_per_word * codec.planes;
      for (int plane = 0; plane < codec.planes; ++plane)
        words[plane] |= (code >> plane & 1u) << (j - begin) % bits_per_word;
      residual[j - base] = c[j - base] - codec.decode(s, code);
    }
  }
  return messages;
}

/// C(c)_j of one element: `message` is its chunk's, and j counts from the first element of the vector.
inline float element_ref(const LayoutRef& layout, const CodecRef& codec, const std::uint32_t* message, int chunk,
                         std::size_t j) {
  const std::size_t in_chunk = j - layout.begins[chunk];
  std::vector<float> scales(codec.scale_count);
  std::memcpy(scales.data(), message + layout.group[j] * codec.scale_count, codec.scale_count * sizeof(float));
  const std::uint32_t* const words =
      message + layout.groups * codec.scale_count + in_chunk / bits_per_word * codec.planes;
  std::uint32_t code = 0;
  for (int plane = 0; plane < codec.planes; ++plane) code |= (words[plane] >> in_chunk % bits_per_word & 1u) << plane;
  return codec.decode(scales.data(), code);
}

/// (1/senders) Σ_i C(c_i) of one chunk's elements, in the order of the senders.
/// \param messages (senders * message_words)
inline std::vector<float> average_ref(const LayoutRef& layout, const Options& options, int chunk, int senders,
                                      const std::vector<std::uint32_t>& messages) {
  const CodecRef codec = codec_ref(options);
  const std::size_t message_words = message_words_ref(layout, options);
  std::vector<float> mean;
  for (std::size_t j = layout.begins[chunk]; j < layout.begins[chunk + 1]; ++j) {
    float sum = 0;
    for (int sender = 0; sender < senders; ++sender)
      sum += element_ref(layout, codec, messages.data() + sender * message_words, chunk, j);
    mean.push_back(sum / static_cast<float>(senders));
  }
  return mean;
}

/// The vector of the messages of all chunks. \param messages (chunks * message_words)
inline std::vector<float> decompress_ref(const LayoutRef& layout, const Options& options,
                                         const std::vector<std::uint32_t>& messages) {
  const CodecRef codec = codec_ref(options);
  const std::size_t message_words = message_words_ref(layout, options);
  std::vector<float> x;
  for (int chunk = 0; chunk < layout.chunks; ++chunk)
    for (std::size_t j = layout.begins[chunk]; j < layout.begins[chunk + 1]; ++j)
      x.push_back(element_ref(layout, codec, messages.data() + chunk * message_words, chunk, j));
  return x;
}

}  // namespace onebit::compress
