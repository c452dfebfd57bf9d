#pragma once
/// \file codec_compressor.hpp
/// The pipeline of all codecs. Work is cut at runs of 32 elements, a word of each plane; values are looked up by slot, and
/// a run that lies in one slot (almost all do) takes a loop of fixed length without look-ups. On a device that loop is a
/// warp.

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "base/parallel.hpp"
#include "compress/compressor.hpp"
#include "compress/decode.hpp"

namespace onebit::compress {

/// One unit of work for each index.
template <class Exec>
using UnitPolicy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>;

/// What a word's elements are compressed from.
struct Given {
  const float* x;
  KOKKOS_FORCEINLINE_FUNCTION float operator()(std::size_t j) const { return x[j]; }
};
/// The old value's share and the new one's, as a momentum takes them: old_share · old + new_share · (factor · x).
struct Averaged {
  const float* x;
  const float* old;
  float old_share, new_share, factor;
  KOKKOS_FORCEINLINE_FUNCTION float operator()(std::size_t j) const {
    return old_share * old[j] + new_share * (factor * x[j]);
  }
};

/// c ← x + f (c − C(c)), where C has the scales that c was sent with; codes ← the codes of the new c, if they need no
/// scales.
template <class Codec, class Source>
struct Compensate {
  const Codec& codec;
  const std::uint32_t* sent_scales;
  float residual_factor;
  Source x;
  float* c;
  std::uint32_t* codes;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t slot, std::size_t first, std::size_t last) const {
    const auto sent = codec.values(sent_scales + slot * Codec::scales);
    for (std::size_t j = first; j < last; ++j) {
      const float residual = c[j] - codec.decode(sent, codec.encode(sent, c[j]));
      c[j] = x(j) + residual_factor * residual;
      if constexpr (Codec::codes_before_scales) codes[j] = codec.encode(sent, c[j]);
    }
  }
};

/// What the words of a chunk are compressed from: each is called with a word, with its first element counted from the
/// begin of the compression's vectors, and with room for the values of a share.
template <class Exec>
struct FromVector {
  Vector<Exec, const float> x;

  KOKKOS_FORCEINLINE_FUNCTION Given operator()(const Word&, std::size_t at, float*) const {
    return Given{x.data() + at};  // nvcc loses the braces of a type that is not named
  }
};
template <class Exec, class Codec>
struct FromMovingAverage {
  Decoder<Exec, Codec> old;
  Vector<Exec, const float> x;
  float old_share, new_share, factor;

  KOKKOS_FORCEINLINE_FUNCTION Averaged operator()(const Word& word, std::size_t at, float* values) const {
    old.decode(word, values);
    return Averaged{x.data() + at, values, old_share, new_share, factor};
  }
};
template <class Exec, class Codec>
struct FromMessages {
  Codec codec;
  WordTable<Exec> table;
  std::size_t message_words;
  MeanOfMessages<Exec> mean;

  KOKKOS_FORCEINLINE_FUNCTION Given operator()(const Word& word, std::size_t, float* values) const {
    constexpr std::size_t share = WordTable<Exec>::share;
    float sums[share] = {};
    int sender = 0;
    for (; sender + 4 <= mean.senders; sender += 4) add<4>(word, sender, sums);
    for (; sender + 2 <= mean.senders; sender += 2) add<2>(word, sender, sums);
    for (; sender < mean.senders; ++sender) add<1>(word, sender, sums);
    for (std::size_t j = 0; j < share; ++j) values[j] = sums[j] / static_cast<float>(mean.senders);
    return Given{values};
  }

  /// Adds the values of some senders, of several at a time because the sums would go through memory for each.
  template <int senders>
  KOKKOS_FORCEINLINE_FUNCTION void add(const Word& word, int first_sender, float* sums) const {
    const std::uint32_t* messages[senders];
    Codes<Exec, Codec> codes[senders];
    for (int i = 0; i < senders; ++i) {
      messages[i] = mean.messages.data() + (first_sender + i) * message_words;
      codes[i] = Codes<Exec, Codec>(codec, table, word, messages[i]);
    }
    table.for_each_slot(word, [&](std::size_t slot, std::size_t first, std::size_t last) {
      typename Codec::Values group[senders];
      for (int i = 0; i < senders; ++i) group[i] = codec.values(messages[i] + slot * Codec::scales);
      for (std::size_t j = first; j < last; ++j) {
        float sum = sums[j];
        for (int i = 0; i < senders; ++i) sum += codec.decode(group[i], codes[i](j));
        sums[j] = sum;
      }
    });
  }
};

/// Compensates and encodes words of one chunk.
template <class Exec, class Codec, class From>
struct EncodeWord {
  Codec codec;
  WordTable<Exec> table;
  Compression<Exec> own;
  std::size_t message_words;
  std::size_t relative, base;  ///< the chunk, among those of `own`, and the first element of its vectors
  From from;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(const Word& word) const {
    const std::size_t scales = table.slots * Codec::scales, at = word.begin - base;
    std::uint32_t codes[WordTable<Exec>::share] = {};
    float values[WordTable<Exec>::share] = {};
    const auto source = from(word, at, values);
    table.for_each_slot(word, Compensate<Codec, std::decay_t<decltype(source)>>{
                                  codec, own.feedback.scales.data() + relative * scales, own.residual_factor, source,
                                  own.feedback.c.data() + at, codes});
    if (Codec::codes_before_scales)
      pack<Exec>(word, codes, codec.planes,
                 own.messages.data() + relative * message_words + scales + word.in_chunk * codec.planes);
  }
};

/// codes ← the codes of a word's elements.
template <class Codec>
struct Encode {
  const Codec& codec;
  const std::uint32_t* scales;
  const float* c;
  std::uint32_t* codes;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t slot, std::size_t first, std::size_t last) const {
    const auto values = codec.values(scales + slot * Codec::scales);
    for (std::size_t j = first; j < last; ++j) codes[j] = codec.encode(values, c[j]);
  }
};

/// residual ← c − C(c).
template <class Codec>
struct Subtract {
  const Codec& codec;
  const std::uint32_t* scales;
  const float* c;
  float* residual;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t slot, std::size_t first, std::size_t last) const {
    const auto values = codec.values(scales + slot * Codec::scales);
    for (std::size_t j = first; j < last; ++j) residual[j] = c[j] - codec.decode(values, codec.encode(values, c[j]));
  }
};

/// (pieces) slot of each piece, counted over all chunks.
inline std::vector<std::uint32_t> slots_of_pieces(const Layout& layout) {
  std::vector<std::uint32_t> slots;
  for (std::size_t slot = 0; slot + 1 < layout.slot_pieces.size(); ++slot)
    slots.resize(layout.slot_pieces[slot + 1], static_cast<std::uint32_t>(slot));
  return slots;
}

/// A codec (compress/codecs.hpp) as a compressor: kernels, messages and residuals of compressor.hpp.
template <class Exec, class Codec>
class CodecCompressor final : public Compressor<Exec> {
public:
  using typename Compressor<Exec>::Words;

  CodecCompressor(const Layout& layout, const Codec& codec)
      : m_layout(layout),
        m_codec(codec),
        m_table{layout.words, layout.slots, copy_to_device<Exec>("OneBit::compress::chunk_begins", layout.chunk_begins),
                copy_to_device<Exec>("OneBit::compress::slot_begins", layout.slot_begins),
                copy_to_device<Exec>("OneBit::compress::word_slots", layout.word_slots)},
        m_slot_pieces(copy_to_device<Exec>("OneBit::compress::slot_pieces", layout.slot_pieces)),
        m_piece_begins(copy_to_device<Exec>("OneBit::compress::piece_begins", layout.piece_begins)),
        m_piece_slots(copy_to_device<Exec>("OneBit::compress::piece_slots", slots_of_pieces(layout))),
        m_piece_squares("OneBit::compress::piece_squares", pieces()),
        m_square("OneBit::compress::square", 1),
        m_piece_statistics("OneBit::compress::piece_statistics", statistics * pieces()),
        m_slot_statistics("OneBit::compress::slot_statistics", statistics * slots()),
        m_vector_statistics("OneBit::compress::vector_statistics", statistics) {}

  const Layout& layout() const override { return m_layout; }
  std::size_t scale_words() const override { return m_layout.slots * Codec::scales; }
  std::size_t run_words() const override { return static_cast<std::size_t>(m_codec.planes); }
  std::size_t message_words() const override { return scale_words() + m_layout.words * run_words(); }
  bool codes_before_scales() const override { return Codec::codes_before_scales; }

  // The runs are compensated and encoded in one pass, and their statistics taken while c is in the cache.
  void encode(const Exec& exec, const Compression<Exec>& compression, int chunk, Runs runs) const override {
    const Region region("OneBit::compress::encode");
    const std::size_t base = m_layout.chunk_begins[compression.first_chunk];
    const MovingAverage<Exec>& average = compression.average;
    if (compression.mean.senders > 0)
      encode_words(exec, compression, chunk, runs,
                   FromMessages<Exec, Codec>{m_codec, m_table, message_words(), compression.mean});
    else if (average.old.extent(0) > 0)
      encode_words(exec, compression, chunk, runs,
                   FromMovingAverage<Exec, Codec>{
                       {m_codec, m_table, static_cast<std::size_t>(m_layout.chunks), message_words(), average.old},
                       compression.x,
                       average.old_share,
                       average.new_share,
                       average.factor});
    else
      encode_words(exec, compression, chunk, runs, FromVector<Exec>{compression.x});

    // Pieces that end in these runs. One that began in runs before them is complete now.
    const std::size_t chunk_begin = m_layout.chunk_begins[chunk], chunk_end = m_layout.chunk_begins[chunk + 1];
    const auto pieces_that_end_by = [&](std::size_t run) {
      const std::size_t element = std::min(chunk_end, chunk_begin + run * bits_per_word);
      const auto ends = m_layout.piece_begins.begin() + 1;
      return static_cast<std::size_t>(std::upper_bound(ends, m_layout.piece_begins.end(), element) - ends);
    };
    take_statistics(exec, pieces_that_end_by(runs.begin), pieces_that_end_by(runs.end), base, compression.feedback.c,
                    std::make_index_sequence<statistics>());
  }

  void finish(const Exec& exec, const Compression<Exec>& compression) const override {
    const Region region("OneBit::compress::finish");
    join_statistics(exec, compression, std::make_index_sequence<statistics>());
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
        KOKKOS_LAMBDA(const Word& word) {
          const std::size_t at = word.begin - base;
          table.for_each_slot(word, Subtract<Codec>{codec, own.scales.data() + (word.chunk - first_chunk) * scales,
                                                    own.c.data() + at, residual.data() + at});
        });
  }

  double residual_l2(const Exec& exec, int first_chunk, int chunks, const Feedback<Exec>& feedback) const override {
    const Region region("OneBit::compress::residual_l2");
    const Codec codec = m_codec;
    const Feedback<Exec> own = feedback;
    const auto piece_begins = m_piece_begins;
    const auto piece_slots = m_piece_slots;
    const std::size_t base = m_layout.chunk_begins[first_chunk], first_slot = first_chunk * m_layout.slots;
    const std::size_t first_piece = m_layout.slot_pieces[first_slot];
    const std::size_t count = m_layout.slot_pieces[first_slot + chunks * m_layout.slots] - first_piece;
    const Vector<Exec, double> squares = Kokkos::subview(m_piece_squares, std::make_pair(std::size_t{0}, count));
    reduce_pieces<Sum>(
        exec, "OneBit::compress::residual_squares",
        KOKKOS_LAMBDA(std::size_t piece) { return piece_begins(first_piece + piece); }, squares,
        KOKKOS_LAMBDA(std::size_t piece, std::size_t i) {
          const std::size_t slot = piece_slots(first_piece + piece) - first_slot;
          const auto values = codec.values(own.scales.data() + slot * Codec::scales);
          const float c = own.c(i - base);
          const double residual = c - codec.decode(values, codec.encode(values, c));
          return residual * residual;
        });
    reduce_pieces<Sum>(
        exec, "OneBit::compress::residual_l2",
        KOKKOS_LAMBDA(std::size_t end) { return end == 0 ? std::size_t{0} : count; }, m_square,
        KOKKOS_LAMBDA(std::size_t piece) { return squares(piece); });
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
        KOKKOS_LAMBDA(const Word& word) {
          const std::uint32_t* const message = messages.data() + (word.chunk - first_chunk) * length;
          decode(codec, table, word, message, x.data() + (word.begin - base));
        });
  }

  AnyDecoder<Exec> decoder(const Vector<Exec, const std::uint32_t>& messages) const override {
    const auto codec = reading(m_codec);
    using Reading = Decoder<Exec, std::decay_t<decltype(codec)>>;
    if constexpr (std::is_constructible_v<AnyDecoder<Exec>, Reading>)
      return Reading{codec, m_table, static_cast<std::size_t>(m_layout.chunks), message_words(), messages};
    else
      throw std::logic_error("this codec is not among those of AnyDecoder (compress/decode.hpp)");
  }

  // The steps of `encode` and `finish`, public because they hold lambdas for the device.

  template <class From>
  void encode_words(const Exec& exec, const Compression<Exec>& compression, int chunk, Runs runs,
                    const From& from) const {
    for_each_word(exec, "OneBit::compress::compensate", m_table, chunk, 1, runs,
                  EncodeWord<Exec, Codec, From>{m_codec, m_table, compression, message_words(),
                                                static_cast<std::size_t>(chunk - compression.first_chunk),
                                                m_layout.chunk_begins[compression.first_chunk], from});
  }

  template <std::size_t... K>
  void take_statistics(const Exec& exec, std::size_t first_piece, std::size_t end_piece, std::size_t base,
                       const Vector<Exec, float>& c, std::index_sequence<K...>) const {
    (take_statistic<K>(exec, first_piece, end_piece, base, c), ...);
  }

  /// Statistic K of pieces. \param base first element of c
  template <std::size_t K>
  void take_statistic(const Exec& exec, std::size_t first_piece, std::size_t end_piece, std::size_t base,
                      const Vector<Exec, float>& c) const {
    using Statistic = std::tuple_element_t<K, typename Codec::Statistics>;
    const Statistic term;
    const auto piece_begins = m_piece_begins;
    const std::size_t first = K * pieces();
    reduce_pieces<typename Statistic::Join>(
        exec, "OneBit::compress::piece_statistic",
        KOKKOS_LAMBDA(std::size_t piece) { return piece_begins(first_piece + piece); },
        Vector<Exec, double>(
            Kokkos::subview(m_piece_statistics, std::make_pair(first + first_piece, first + end_piece))),
        KOKKOS_LAMBDA(std::size_t i) { return term(c(i - base)); });
  }

  template <std::size_t... K>
  void join_statistics(const Exec& exec, const Compression<Exec>& compression, std::index_sequence<K...>) const {
    (join_statistic<K>(exec, compression), ...);
  }

  /// Statistic K of each slot and, where it is one group, of the vector.
  template <std::size_t K>
  void join_statistic(const Exec& exec, const Compression<Exec>& compression) const {
    using Join = typename std::tuple_element_t<K, typename Codec::Statistics>::Join;
    const std::size_t first_slot = compression.first_chunk * m_layout.slots;
    const std::size_t slot_count = compression.chunks * m_layout.slots;
    const std::size_t first_piece = K * pieces();
    const auto slot_pieces = m_slot_pieces;
    const auto piece_statistics = m_piece_statistics;
    const Vector<Exec, double> of_slots = Kokkos::subview(
        m_slot_statistics, std::make_pair(K * slots() + first_slot, K * slots() + first_slot + slot_count));
    reduce_pieces<Join>(
        exec, "OneBit::compress::slot_statistic",
        KOKKOS_LAMBDA(std::size_t slot) { return slot_pieces(first_slot + slot); }, of_slots,
        KOKKOS_LAMBDA(std::size_t piece) { return piece_statistics(first_piece + piece); });
    if (is_one_group(compression))
      reduce_pieces<Join>(
          exec, "OneBit::compress::vector_statistic",
          KOKKOS_LAMBDA(std::size_t end) { return end == 0 ? std::size_t{0} : slot_count; },
          Vector<Exec, double>(Kokkos::subview(m_vector_statistics, std::make_pair(K, K + 1))),
          KOKKOS_LAMBDA(std::size_t slot) { return of_slots(slot); });
  }

  /// The scales of each slot into its chunk's message and the feedback; 0 for a slot without elements.
  void write_scales(const Exec& exec, const Compression<Exec>& compression) const {
    const Codec codec = m_codec;
    const Compression<Exec> own = compression;
    const auto slot_begins = m_table.slot_begins;
    const auto slot_statistics = m_slot_statistics;
    const auto vector_statistics = m_vector_statistics;
    const std::size_t slots_of_chunk = m_table.slots, all_slots = slots();
    const std::size_t first_slot = own.first_chunk * slots_of_chunk;
    const std::size_t message_length = message_words(), length = m_layout.length;
    const bool one_group = is_one_group(compression);
    Kokkos::parallel_for(
        "OneBit::compress::scales", UnitPolicy<Exec>(exec, 0, own.chunks * slots_of_chunk),
        KOKKOS_LAMBDA(std::size_t slot) {
          double taken[statistics];
          for (std::size_t k = 0; k < statistics; ++k)
            taken[k] = one_group ? vector_statistics(k) : slot_statistics(k * all_slots + first_slot + slot);
          const std::size_t count =
              one_group ? length : slot_begins(first_slot + slot + 1) - slot_begins(first_slot + slot);
          float scales[Codec::scales] = {};
          if (count > 0) codec.set_scales(taken, static_cast<double>(count), scales);
          const std::size_t first = slot / slots_of_chunk * message_length + slot % slots_of_chunk * Codec::scales;
          for (int k = 0; k < Codec::scales; ++k) {
            own.messages(first + k) = as_bits(scales[k]);
            own.feedback.scales(slot * Codec::scales + k) = as_bits(scales[k]);
          }
        });
  }

  /// The planes of each chunk into its message.
  void write_codes(const Exec& exec, const Compression<Exec>& compression) const {
    const WordTable<Exec> table = m_table;
    const Codec codec = m_codec;
    const Compression<Exec> own = compression;
    const std::size_t length = message_words(), base = m_layout.chunk_begins[own.first_chunk];
    for_each_word(
        exec, "OneBit::compress::write_codes", table, own.first_chunk, own.chunks, {0, m_layout.words},
        KOKKOS_LAMBDA(const Word& word) {
          std::uint32_t* const message = own.messages.data() + (word.chunk - own.first_chunk) * length;
          std::uint32_t codes[WordTable<Exec>::share] = {};
          table.for_each_slot(word, Encode<Codec>{codec, message, own.feedback.c.data() + (word.begin - base), codes});
          pack<Exec>(word, codes, codec.planes, message + table.slots * Codec::scales + word.in_chunk * codec.planes);
        });
  }

private:
  static constexpr std::size_t statistics = std::tuple_size_v<typename Codec::Statistics>;

  std::size_t pieces() const { return m_layout.piece_begins.size() - 1; }
  std::size_t slots() const { return m_layout.slot_begins.size() - 1; }
  /// Whether all slots share the scales of the whole vector.
  bool is_one_group(const Compression<Exec>& compression) const {
    return m_layout.grouping == Grouping::vector && compression.chunks == m_layout.chunks;
  }

  Layout m_layout;
  Codec m_codec;
  WordTable<Exec> m_table;
  Vector<Exec, std::size_t> m_slot_pieces, m_piece_begins;
  Vector<Exec, std::uint32_t> m_piece_slots;       ///< (pieces) slot, among all chunks'
  Vector<Exec, double> m_piece_squares, m_square;  ///< (pieces), (1) of residuals
  Vector<Exec, double> m_piece_statistics;         ///< (statistics * pieces)
  Vector<Exec, double> m_slot_statistics;          ///< (statistics * chunks * S)
  Vector<Exec, double> m_vector_statistics;        ///< (statistics)
};

}  // namespace onebit::compress
