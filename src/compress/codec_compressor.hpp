#pragma once
/// \file codec_compressor.hpp
/// The kernels of all codecs. A thread takes the elements of a word, 32, in a loop of fixed length where they lie in
/// one group (almost always), and looks up the scales once; on a device a warp takes them.

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "base/device/parallel.hpp"
#include "compress/compressor.hpp"
#include "compress/word_traversal.hpp"

namespace onebit::compress {

/// What the elements at a cursor are compressed from: a vector,
struct VectorSource {
  const float* x;
  KOKKOS_FORCEINLINE_FUNCTION float operator()(std::size_t j) const { return x[j]; }
};
/// or the momentum of a vector.
struct MomentumSource {
  const float* x;
  const float* old;
  MomentumShares shares;
  KOKKOS_FORCEINLINE_FUNCTION float operator()(std::size_t j) const { return shares(old[j], x[j]); }
};

/// c ← x + f (c − C(c)), where C has the scales with which c was sent; codes ← the codes of the new c, if they need no
/// scales.
template <class Codec, class Source>
struct Compensate {
  const Codec& codec;
  const std::uint32_t* sent_scales;
  float residual_factor;
  Source x;
  float* c;
  std::uint32_t* codes;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t group, std::size_t first, std::size_t last) const {
    const auto sent = codec.values(sent_scales + group * Codec::scales);
    for (std::size_t j = first; j < last; ++j) {
      const float residual = c[j] - codec.decode(sent, codec.encode(sent, c[j]));
      c[j] = x(j) + residual_factor * residual;
      if constexpr (Codec::codes_before_scales) codes[j] = codec.encode(sent, c[j]);
    }
  }
};

/// Where the elements of a compression come from.
enum class From { vector, momentum, messages };

/// Compensates and encodes the elements at a cursor.
template <class Exec, class Codec, From from>
struct EncodeWord {
  static constexpr std::size_t per_thread = WordTable<Exec>::per_thread;
  Codec codec;
  WordTable<Exec> table;
  Compression<Exec> own;
  std::size_t message_words;
  std::size_t base;  ///< first element of the vectors of `own`

  KOKKOS_FORCEINLINE_FUNCTION void operator()(const Cursor& cursor) const {
    const std::size_t relative = cursor.chunk - own.first_chunk, scales = table.groups * Codec::scales;
    const std::size_t at = cursor.begin - base, count = table.length(cursor);
    float* const c = own.feedback.c.data() + at;
    std::uint32_t codes[per_thread] = {};
    float c_values[per_thread], x_values[per_thread], values[per_thread] = {};
    float* const c_room = room<Exec>(c, c_values);
    load<Exec>(c, count, c_values);
    const auto source = elements(cursor, at, count, x_values, values);
    table.for_each_group(
        cursor, Compensate<Codec, std::decay_t<decltype(source)>>{codec, own.feedback.scales.data() + relative * scales,
                                                                  own.residual_factor, source, c_room, codes});
    store<Exec>(c_room, count, c);
    if (Codec::codes_before_scales)
      pack<Exec>(table, cursor, codes, codec.planes,
                 own.messages.data() + relative * message_words + scales + cursor.word * codec.planes);
  }

  /// \param x_values, values room for the elements of vectors and of messages
  KOKKOS_FORCEINLINE_FUNCTION auto elements(const Cursor& cursor, std::size_t at, std::size_t count, float* x_values,
                                            float* values) const {
    const auto x = [&] { return load<Exec>(own.x.data() + at, count, x_values); };
    if constexpr (from == From::vector) {
      return VectorSource{x()};  // nvcc loses the braces of a type that is not named
    } else if constexpr (from == From::momentum) {
      const float* const now = x();  // first, so that a GPU waits for x and for the old message at once
      decode(codec, table, cursor, own.momentum.old.data() + cursor.chunk * message_words, values);
      return MomentumSource{now, values, own.momentum.shares};
    } else {
      take_mean(cursor, values);
      return VectorSource{values};
    }
  }

  /// values[j] ← the mean of what the senders sent.
  KOKKOS_FORCEINLINE_FUNCTION void take_mean(const Cursor& cursor, float* values) const {
    const int senders = own.mean.senders;
    float sums[per_thread] = {};
    int sender = 0;
    for (; sender + 4 <= senders; sender += 4) add<4>(cursor, sender, sums);
    for (; sender + 2 <= senders; sender += 2) add<2>(cursor, sender, sums);
    for (; sender < senders; ++sender) add<1>(cursor, sender, sums);
    for (std::size_t j = 0; j < per_thread; ++j) values[j] = sums[j] / static_cast<float>(senders);
  }

  /// Adds the values of `senders` senders at once, because one after the other the sums would go through memory.
  template <int senders>
  KOKKOS_FORCEINLINE_FUNCTION void add(const Cursor& cursor, int first_sender, float* sums) const {
    const std::uint32_t* messages[senders];
    Codes<Exec, Codec> codes[senders];
    for (int i = 0; i < senders; ++i) {
      messages[i] = own.mean.messages.data() + (first_sender + i) * message_words;
      codes[i] = Codes<Exec, Codec>(codec, table, cursor, messages[i]);
    }
    table.for_each_group(cursor, [&](std::size_t group, std::size_t first, std::size_t last) {
      typename Codec::Values values[senders];
      for (int i = 0; i < senders; ++i) values[i] = codec.values(messages[i] + group * Codec::scales);
      for (std::size_t j = first; j < last; ++j) {
        float sum = sums[j];
        for (int i = 0; i < senders; ++i) sum += codec.decode(values[i], codes[i](j));
        sums[j] = sum;
      }
    });
  }
};

/// codes ← the codes of the elements at a cursor.
template <class Codec>
struct Encode {
  const Codec& codec;
  const std::uint32_t* scales;
  const float* c;
  std::uint32_t* codes;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t group, std::size_t first, std::size_t last) const {
    const auto values = codec.values(scales + group * Codec::scales);
    for (std::size_t j = first; j < last; ++j) codes[j] = codec.encode(values, c[j]);
  }
};

/// (blocks) group of each block, counted over all chunks.
inline std::vector<std::uint32_t> groups_of_blocks(const Layout& layout) {
  std::vector<std::uint32_t> groups;
  for (std::size_t group = 0; group + 1 < layout.group_blocks.size(); ++group)
    groups.resize(layout.group_blocks[group + 1], static_cast<std::uint32_t>(group));
  return groups;
}

/// A codec (compress/codecs.hpp) as a compressor (compressor.hpp).
template <class Exec, class Codec>
class CodecCompressor final : public Compressor<Exec> {
public:
  using typename Compressor<Exec>::Words;

  CodecCompressor(const Layout& layout, const Codec& codec)
      : m_layout(layout),
        m_codec(codec),
        m_table{layout.words, layout.groups,
                copy_to_device<Exec>("OneBit::compress::chunk_begins", layout.chunk_begins),
                copy_to_device<Exec>("OneBit::compress::group_begins", layout.group_begins),
                copy_to_device<Exec>("OneBit::compress::word_groups", layout.word_groups)},
        m_group_blocks(copy_to_device<Exec>("OneBit::compress::group_blocks", layout.group_blocks)),
        m_block_begins(copy_to_device<Exec>("OneBit::compress::block_begins", layout.block_begins)),
        m_block_groups(copy_to_device<Exec>("OneBit::compress::block_groups", groups_of_blocks(layout))),
        m_block_squares("OneBit::compress::block_squares", blocks()),
        m_square("OneBit::compress::square", 1),
        m_tree_of_squares(1, blocks()),
        m_tree_of_groups(groups(), longest_group()),
        m_block_statistics("OneBit::compress::block_statistics", statistics * blocks()),
        m_group_statistics("OneBit::compress::group_statistics", statistics * groups()),
        m_vector_statistics("OneBit::compress::vector_statistics", statistics) {}

  const Layout& layout() const override { return m_layout; }
  std::size_t scale_words() const override { return m_layout.groups * Codec::scales; }
  std::size_t planes() const override { return static_cast<std::size_t>(m_codec.planes); }
  std::size_t message_words() const override { return scale_words() + m_layout.words * planes(); }
  bool codes_before_scales() const override { return Codec::codes_before_scales; }

  // One pass compensates and encodes. The statistics follow while c is in the cache.
  void encode(const Exec& exec, const Compression<Exec>& compression, int chunk, Range range) const override {
    const Region region("OneBit::compress::encode");
    encode_words(exec, compression, chunk, 1, range);
    // Blocks that end in this range, wherever they began, are complete now.
    const std::size_t chunk_begin = m_layout.chunk_begins[chunk], chunk_end = m_layout.chunk_begins[chunk + 1];
    const auto blocks_that_end_by = [&](std::size_t word) {
      const std::size_t element = std::min(chunk_end, chunk_begin + word * bits_per_word);
      const auto ends = m_layout.block_begins.begin() + 1;
      return static_cast<std::size_t>(std::upper_bound(ends, m_layout.block_begins.end(), element) - ends);
    };
    take_statistics(exec, compression, blocks_that_end_by(range.begin), blocks_that_end_by(range.end));
  }

  void encode(const Exec& exec, const Compression<Exec>& compression) const override {
    if constexpr (is_host<Exec>) {
      const int end = compression.first_chunk + compression.chunks;
      for (int chunk = compression.first_chunk; chunk < end; ++chunk)
        for (const Range& range : ranges<Exec>(m_layout.words)) encode(exec, compression, chunk, range);
    } else {
      const Region region("OneBit::compress::encode");
      const std::size_t first_group = compression.first_chunk * m_layout.groups;
      encode_words(exec, compression, compression.first_chunk, compression.chunks, {0, m_layout.words});
      take_statistics(exec, compression, m_layout.group_blocks[first_group],
                      m_layout.group_blocks[first_group + compression.chunks * m_layout.groups]);
    }
  }

  void finish(const Exec& exec, const Compression<Exec>& compression) const override {
    const Region region("OneBit::compress::finish");
    for_each_statistic([&](auto k) { join_statistic<decltype(k)::value>(exec, compression); },
                       std::make_index_sequence<statistics>());
    write_scales(exec, compression);
    if (!Codec::codes_before_scales) write_codes(exec, compression);
  }

  void residual(const Exec& exec, int first_chunk, int chunks, const Feedback<Exec>& feedback,
                const Vector<Exec, float>& residual) const override {
    const Region region("OneBit::compress::residual");
    // Local names here and below, because a lambda on the device may not hold `this`.
    const WordTable<Exec> table = m_table;
    const Codec codec = m_codec;
    const Feedback<Exec> own = feedback;
    const std::size_t scales = scale_words(), base = m_layout.chunk_begins[first_chunk];
    for_each_word(
        exec, "OneBit::compress::residual", table, first_chunk, chunks, {0, m_layout.words},
        KOKKOS_LAMBDA(const Cursor& cursor) {
          const std::size_t at = cursor.begin - base, first_scale = (cursor.chunk - first_chunk) * scales;
          const std::size_t count = table.length(cursor);
          float c_values[WordTable<Exec>::per_thread], residual_values[WordTable<Exec>::per_thread];
          const float* const c = load<Exec>(own.c.data() + at, count, c_values);
          float* const residuals = room<Exec>(residual.data() + at, residual_values);
          table.for_each_group(cursor, [&](std::size_t group, std::size_t first, std::size_t last) {
            const auto values = codec.values(own.scales.data() + first_scale + group * Codec::scales);
            for (std::size_t j = first; j < last; ++j)
              residuals[j] = c[j] - codec.decode(values, codec.encode(values, c[j]));
          });
          store<Exec>(residuals, count, residual.data() + at);
        });
  }

  double residual_l2(const Exec& exec, int first_chunk, int chunks, const Feedback<Exec>& feedback) const override {
    const Region region("OneBit::compress::residual_l2");
    const Feedback<Exec> own = feedback;
    const Codec codec = m_codec;
    const auto block_begins = m_block_begins;
    const auto block_groups = m_block_groups;
    const std::size_t base = m_layout.chunk_begins[first_chunk], first_group = first_chunk * m_layout.groups;
    const std::size_t first_block = m_layout.group_blocks[first_group];
    const std::size_t count = m_layout.group_blocks[first_group + chunks * m_layout.groups] - first_block;
    const Vector<Exec, double> squares = Kokkos::subview(m_block_squares, std::make_pair(std::size_t{0}, count));
    reduce_blocks<Sum>(
        exec, "OneBit::compress::residual_squares",
        KOKKOS_LAMBDA(std::size_t block) { return block_begins(first_block + block); }, squares,
        KOKKOS_LAMBDA(std::size_t block, std::size_t i) {
          const std::size_t group = block_groups(first_block + block) - first_group;
          const auto values = codec.values(own.scales.data() + group * Codec::scales);
          const float c = own.c(i - base);
          const double residual = c - codec.decode(values, codec.encode(values, c));
          return residual * residual;
        });
    m_tree_of_squares.template join<Sum>(
        exec, "OneBit::compress::residual_l2",
        KOKKOS_LAMBDA(std::size_t end) { return end == 0 ? std::size_t{0} : count; }, squares, m_square);
    double square = 0;
    Kokkos::deep_copy(exec, Kokkos::View<double, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(&square),
                      Kokkos::subview(m_square, 0));
    fence(exec, "OneBit::compress::residual_l2");
    return std::sqrt(square);
  }

  void decompress(const Exec& exec, int first_chunk, int chunks, const Words& messages,
                  const Vector<Exec, float>& x) const override {
    const Region region("OneBit::compress::decompress");
    const WordTable<Exec> table = m_table;
    const Codec codec = m_codec;
    const std::size_t length = message_words(), base = m_layout.chunk_begins[first_chunk];
    for_each_word(
        exec, "OneBit::compress::decompress", table, first_chunk, chunks, {0, m_layout.words},
        KOKKOS_LAMBDA(const Cursor& cursor) {
          float values[WordTable<Exec>::per_thread];
          float* const elements = x.data() + (cursor.begin - base);
          float* const decoded = room<Exec>(elements, values);
          decode(codec, table, cursor, messages.data() + (cursor.chunk - first_chunk) * length, decoded);
          store<Exec>(decoded, table.length(cursor), elements);
        });
  }

  void average(const Exec& exec, int chunk, const MeanOfMessages<Exec>& mean,
               const Vector<Exec, float>& x) const override {
    const Region region("OneBit::compress::average");
    Compression<Exec> own{chunk, 1, {}, {}, {}};
    own.mean = mean;
    const EncodeWord<Exec, Codec, From::messages> word{m_codec, m_table, own, message_words(),
                                                       m_layout.chunk_begins[chunk]};
    for_each_word(
        exec, "OneBit::compress::average", m_table, chunk, 1, {0, m_layout.words}, KOKKOS_LAMBDA(const Cursor& cursor) {
          float values[WordTable<Exec>::per_thread] = {};
          word.take_mean(cursor, values);
          float* const elements = x.data() + (cursor.begin - word.base);
          const std::size_t count = word.table.length(cursor);
          for (std::size_t j = 0; j < count; ++j) elements[j * WordTable<Exec>::stride] = values[j];
        });
  }

  AnyDecoder<Exec> decoder(const Vector<Exec, const std::uint32_t>& messages) const override {
    using Own = Decoder<Exec, typename Codec::Code>;
    if constexpr (std::is_constructible_v<AnyDecoder<Exec>, Own>)
      return Own{m_codec, m_table, static_cast<std::size_t>(m_layout.chunks), message_words(), messages};
    else
      throw std::logic_error("this codec is not in the table of compressors (compress/codecs.hpp)");
  }

  // The steps of `encode` and `finish`. They are public because they hold lambdas for the device.

  /// c and, where they need no scales, the codes of one range of each of some chunks.
  void encode_words(const Exec& exec, const Compression<Exec>& compression, int first_chunk, int chunks,
                    Range range) const {
    if (compression.mean.senders > 0)
      encode_from<From::messages>(exec, compression, first_chunk, chunks, range);
    else if (compression.momentum.old.extent(0) > 0)
      encode_from<From::momentum>(exec, compression, first_chunk, chunks, range);
    else
      encode_from<From::vector>(exec, compression, first_chunk, chunks, range);
  }
  template <From from>
  void encode_from(const Exec& exec, const Compression<Exec>& compression, int first_chunk, int chunks,
                   Range range) const {
    // A bucket is encoded beside the backward pass. `for_each_word` adds a table and a few numbers to the arguments.
    static_assert(locks_large_launches<Exec> || sizeof(EncodeWord<Exec, Codec, from>) + sizeof(WordTable<Exec>) <= 448);
    for_each_word(exec, "OneBit::compress::compensate", m_table, first_chunk, chunks, range,
                  EncodeWord<Exec, Codec, from>{m_codec, m_table, compression, message_words(),
                                                m_layout.chunk_begins[compression.first_chunk]});
  }

  /// Calls f(std::integral_constant<std::size_t, K>()) for each statistic K.
  template <class F, std::size_t... K>
  static void for_each_statistic(const F& f, std::index_sequence<K...>) {
    (f(std::integral_constant<std::size_t, K>()), ...);
  }

  void take_statistics(const Exec& exec, const Compression<Exec>& compression, std::size_t first_block,
                       std::size_t end_block) const {
    const std::size_t base = m_layout.chunk_begins[compression.first_chunk];
    for_each_statistic(
        [&](auto k) { take_statistic<decltype(k)::value>(exec, first_block, end_block, base, compression.feedback.c); },
        std::make_index_sequence<statistics>());
  }

  /// Statistic K of blocks. \param base first element of c
  template <std::size_t K>
  void take_statistic(const Exec& exec, std::size_t first_block, std::size_t end_block, std::size_t base,
                      const Vector<Exec, float>& c) const {
    using Statistic = std::tuple_element_t<K, typename Codec::Statistics>;
    const Statistic term;
    const auto block_begins = m_block_begins;
    const std::size_t first = K * blocks();
    reduce_blocks<typename Statistic::Join>(
        exec, "OneBit::compress::block_statistic",
        KOKKOS_LAMBDA(std::size_t block) { return block_begins(first_block + block); },
        Vector<Exec, double>(
            Kokkos::subview(m_block_statistics, std::make_pair(first + first_block, first + end_block))),
        KOKKOS_LAMBDA(std::size_t i) { return term(c(i - base)); });
  }

  /// Statistic K of each group and, where all are one group, of the vector.
  template <std::size_t K>
  void join_statistic(const Exec& exec, const Compression<Exec>& compression) const {
    using Join = typename std::tuple_element_t<K, typename Codec::Statistics>::Join;
    const std::size_t first_group = compression.first_chunk * m_layout.groups;
    const std::size_t group_count = compression.chunks * m_layout.groups;
    const std::size_t first_block = K * blocks();
    const auto group_blocks = m_group_blocks;
    const Vector<Exec, double> of_blocks =
        Kokkos::subview(m_block_statistics, std::make_pair(first_block, first_block + blocks()));
    const Vector<Exec, double> of_groups = Kokkos::subview(
        m_group_statistics, std::make_pair(K * groups() + first_group, K * groups() + first_group + group_count));
    m_tree_of_groups.template join<Join>(
        exec, "OneBit::compress::group_statistic",
        KOKKOS_LAMBDA(std::size_t group) { return group_blocks(first_group + group); }, of_blocks, of_groups);
    if (is_one_group(compression))
      reduce_blocks<Join>(
          exec, "OneBit::compress::vector_statistic",
          KOKKOS_LAMBDA(std::size_t end) { return end == 0 ? std::size_t{0} : group_count; },
          Vector<Exec, double>(Kokkos::subview(m_vector_statistics, std::make_pair(K, K + 1))),
          KOKKOS_LAMBDA(std::size_t group) { return of_groups(group); });
  }

  /// Writes the scales of each group into its chunk's message and the feedback; 0 for a group without elements.
  void write_scales(const Exec& exec, const Compression<Exec>& compression) const {
    const Codec codec = m_codec;
    const Compression<Exec> own = compression;
    const auto group_begins = m_table.group_begins;
    const auto group_statistics = m_group_statistics;
    const auto vector_statistics = m_vector_statistics;
    const std::size_t groups_of_chunk = m_table.groups, all_groups = groups();
    const std::size_t first_group = own.first_chunk * groups_of_chunk;
    const std::size_t message_length = message_words(), length = m_layout.length;
    const bool one_group = is_one_group(compression);
    Kokkos::parallel_for(
        "OneBit::compress::scales",
        light(Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, own.chunks * groups_of_chunk)),
        KOKKOS_LAMBDA(std::size_t group) {
          double taken[statistics];
          for (std::size_t k = 0; k < statistics; ++k)
            taken[k] = one_group ? vector_statistics(k) : group_statistics(k * all_groups + first_group + group);
          const std::size_t count =
              one_group ? length : group_begins(first_group + group + 1) - group_begins(first_group + group);
          float scales[Codec::scales] = {};
          if (count > 0) codec.set_scales(taken, static_cast<double>(count), scales);
          const std::size_t first = group / groups_of_chunk * message_length + group % groups_of_chunk * Codec::scales;
          for (int k = 0; k < Codec::scales; ++k) {
            own.messages(first + k) = as_bits(scales[k]);
            own.feedback.scales(group * Codec::scales + k) = as_bits(scales[k]);
          }
        });
  }

  /// Writes the planes of each chunk into its message.
  void write_codes(const Exec& exec, const Compression<Exec>& compression) const {
    const WordTable<Exec> table = m_table;
    const Codec codec = m_codec;
    const Compression<Exec> own = compression;
    const std::size_t length = message_words(), base = m_layout.chunk_begins[own.first_chunk];
    for_each_word(
        exec, "OneBit::compress::write_codes", table, own.first_chunk, own.chunks, {0, m_layout.words},
        KOKKOS_LAMBDA(const Cursor& cursor) {
          std::uint32_t* const message = own.messages.data() + (cursor.chunk - own.first_chunk) * length;
          std::uint32_t codes[WordTable<Exec>::per_thread] = {};
          float c_values[WordTable<Exec>::per_thread];
          const float* const c =
              load<Exec>(own.feedback.c.data() + (cursor.begin - base), table.length(cursor), c_values);
          table.for_each_group(cursor, Encode<Codec>{codec, message, c, codes});
          pack<Exec>(table, cursor, codes, codec.planes,
                     message + table.groups * Codec::scales + cursor.word * codec.planes);
        });
  }

private:
  static constexpr std::size_t statistics = std::tuple_size_v<typename Codec::Statistics>;

  std::size_t blocks() const { return m_layout.block_begins.size() - 1; }
  std::size_t groups() const { return m_layout.group_begins.size() - 1; }
  /// Most blocks of a group.
  std::size_t longest_group() const {
    std::size_t most = 0;
    for (std::size_t group = 0; group < groups(); ++group)
      most = std::max(most, m_layout.group_blocks[group + 1] - m_layout.group_blocks[group]);
    return most;
  }
  /// True where all groups share the scales of the whole vector.
  bool is_one_group(const Compression<Exec>& compression) const {
    return m_layout.grouping == Grouping::vector && compression.chunks == m_layout.chunks;
  }

  Layout m_layout;
  Codec m_codec;
  WordTable<Exec> m_table;
  Vector<Exec, std::size_t> m_group_blocks, m_block_begins;
  Vector<Exec, std::uint32_t> m_block_groups;      ///< (blocks) group, among all chunks'
  Vector<Exec, double> m_block_squares, m_square;  ///< (blocks), (1) of residuals
  BlockTree<Exec> m_tree_of_squares, m_tree_of_groups;
  Vector<Exec, double> m_block_statistics;   ///< (statistics * blocks)
  Vector<Exec, double> m_group_statistics;   ///< (statistics * chunks * S)
  Vector<Exec, double> m_vector_statistics;  ///< (statistics)
};

}  // namespace onebit::compress
