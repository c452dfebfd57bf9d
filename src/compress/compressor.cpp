/// \file compressor.cpp
/// The pipeline of all codecs. A run of 32 elements, a word of each plane, is one unit of work; its values are looked up
/// by slot, and a run that lies in one slot (almost all do) takes a loop of fixed length without look-ups.

#include "compress/compressor.hpp"

#include <utility>

#include "base/parallel.hpp"
#include "compress/codecs.hpp"

namespace onebit::compress {
namespace {

template <class T, class Exec>
Vector<Exec, T> on_device(const Exec&, const char* label, const std::vector<T>& table) {
  Vector<Exec, T> copy = make_uninitialized<Exec, T>(label, table.size());
  Kokkos::deep_copy(copy,
                    Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(table.data(), table.size()));
  return copy;
}

/// A word of a chunk: elements [begin, begin + 32) of the whole vector, less what lies behind the chunk's end; the first
/// is in slot `slot`, which ends at `slot_end`.
struct Word {
  std::size_t chunk, in_chunk, begin, slot, slot_end;
};

/// A layout's tables on the device.
template <class Exec>
struct WordTable {
  /// Words that one unit of parallel work takes one after the other: on the host, look-ups for each word would show.
  static constexpr std::size_t words_per_unit = is_host<Exec> ? 32 : 1;

  std::size_t words, slots;
  Vector<Exec, const std::size_t> chunk_begins, slot_begins;
  Vector<Exec, const std::uint32_t> word_slots;

  std::size_t units_per_chunk() const { return (words + words_per_unit - 1) / words_per_unit; }

  /// Behind the last word, counted in its chunk, of the unit that begins with `word`.
  KOKKOS_FUNCTION std::size_t unit_end(const Word& word) const {
    const std::size_t end = word.in_chunk + words_per_unit;
    return end < words ? end : words;
  }
  /// First word of unit `unit` of chunk `chunk`.
  KOKKOS_FUNCTION Word unit_begin(std::size_t chunk, std::size_t unit) const {
    const std::size_t in_chunk = unit * words_per_unit, slot = word_slots(chunk * words + in_chunk);
    return {chunk, in_chunk, chunk_begins(chunk) + in_chunk * bits_per_word, slot, slot_end(chunk, slot)};
  }
  KOKKOS_FORCEINLINE_FUNCTION void advance(Word& word) const {
    ++word.in_chunk;
    word.begin += bits_per_word;
    if (word.begin >= word.slot_end && word.begin < chunk_begins(word.chunk + 1)) find_slot(word, word.begin);
  }
  /// Elements of a word that are not padding.
  KOKKOS_FUNCTION std::size_t length(const Word& word) const {
    const std::size_t end = chunk_begins(word.chunk + 1);
    return word.begin >= end ? 0 : end - word.begin < bits_per_word ? end - word.begin : bits_per_word;
  }
  /// Calls work(slot, first, last) for each run of elements [first, last) of a word that lies in one slot; elements
  /// count from the word's first.
  template <class Work>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_slot(Word word, const Work& work) const {
    if (word.begin + bits_per_word <= word.slot_end) {
      work(word.slot, std::size_t{0}, bits_per_word);
      return;
    }
    const std::size_t count = length(word);
    for (std::size_t first = 0; first < count;) {
      find_slot(word, word.begin + first);
      const std::size_t left = word.slot_end - word.begin, last = left < count ? left : count;
      work(word.slot, first, last);
      first = last;
    }
  }

private:
  KOKKOS_FUNCTION std::size_t slot_end(std::size_t chunk, std::size_t slot) const {
    return slot_begins(chunk * slots + slot + 1);
  }
  /// Goes on to the slot of element `element`.
  KOKKOS_FUNCTION void find_slot(Word& word, std::size_t element) const {
    while (word.slot_end <= element) word.slot_end = slot_end(word.chunk, ++word.slot);
  }
};

/// codes ← the codes of a word's elements, c ← c − C(c).
template <class Codec>
struct EncodeAndSubtract {
  const Codec& codec;
  const std::uint32_t* scales;
  float* c;
  std::uint32_t* codes;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t slot, std::size_t first, std::size_t last) const {
    const auto values = codec.values(scales + slot * Codec::scales);
    for (std::size_t j = first; j < last; ++j) {
      codes[j] = codec.encode(values, c[j]);
      c[j] -= codec.decode(values, codes[j]);
    }
  }
};

/// result ← result + the values of a word's codes.
template <class Codec>
struct DecodeAndAdd {
  const Codec& codec;
  const std::uint32_t* scales;
  const std::uint32_t* codes;
  float* result;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t slot, std::size_t first, std::size_t last) const {
    const auto values = codec.values(scales + slot * Codec::scales);
    for (std::size_t j = first; j < last; ++j) result[j] += codec.decode(values, codes[j]);
  }
};

/// result ← the values of a word's codes.
template <class Codec>
struct Decode {
  const Codec& codec;
  const std::uint32_t* scales;
  const std::uint32_t* codes;
  float* result;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t slot, std::size_t first, std::size_t last) const {
    const auto values = codec.values(scales + slot * Codec::scales);
    for (std::size_t j = first; j < last; ++j) result[j] = codec.decode(values, codes[j]);
  }
};

/// 32 codes into a word for each plane.
KOKKOS_FORCEINLINE_FUNCTION void pack(const std::uint32_t* codes, int planes, std::uint32_t* words) {
  for (int plane = 0; plane < planes; ++plane) {
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < bits_per_word; ++j) word |= (codes[j] >> plane & 1u) << j;
    words[plane] = word;
  }
}
KOKKOS_FORCEINLINE_FUNCTION void unpack(const std::uint32_t* words, int planes, std::uint32_t* codes) {
  for (std::size_t j = 0; j < bits_per_word; ++j) codes[j] = 0;
  for (int plane = 0; plane < planes; ++plane)
    for (std::size_t j = 0; j < bits_per_word; ++j) codes[j] |= (words[plane] >> j & 1u) << plane;
}

template <class Exec>
using UnitPolicy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>;

/// The chunks of one call of `compress`, as ranges of the layout's tables.
struct Part {
  std::size_t first_chunk, chunks;
  std::size_t base;  ///< first element
  std::size_t first_slot, slot_count, first_piece, piece_count;
  bool one_group;  ///< all slots share the scales of the whole vector
};

Part part_of(const Layout& layout, std::size_t first_chunk, std::size_t chunks) {
  const std::size_t first_slot = first_chunk * layout.slots, slot_count = chunks * layout.slots;
  const std::size_t first_piece = layout.slot_pieces[first_slot];
  const std::size_t piece_count = layout.slot_pieces[first_slot + slot_count] - first_piece;
  const bool all = chunks == static_cast<std::size_t>(layout.chunks);
  return {first_chunk, chunks,      layout.chunk_begins[first_chunk],          first_slot, slot_count,
          first_piece, piece_count, layout.grouping == Grouping::vector && all};
}

template <class Exec, class Codec>
class CodecCompressor final : public Compressor<Exec> {
public:
  using typename Compressor<Exec>::Words;

  CodecCompressor(const Layout& layout, const Codec& codec)
      : m_layout(layout),
        m_codec(codec),
        m_table{layout.words, layout.slots, on_device(Exec(), "OneBit::compress::chunk_begins", layout.chunk_begins),
                on_device(Exec(), "OneBit::compress::slot_begins", layout.slot_begins),
                on_device(Exec(), "OneBit::compress::word_slots", layout.word_slots)},
        m_slot_pieces(on_device(Exec(), "OneBit::compress::slot_pieces", layout.slot_pieces)),
        m_piece_begins(on_device(Exec(), "OneBit::compress::piece_begins", layout.piece_begins)),
        m_piece_statistics("OneBit::compress::piece_statistics", layout.piece_begins.size() - 1),
        m_slot_statistics("OneBit::compress::slot_statistics", statistics * (layout.slot_begins.size() - 1)),
        m_vector_statistics("OneBit::compress::vector_statistics", statistics) {}

  const Layout& layout() const override { return m_layout; }

  std::size_t message_words() const override {
    return m_layout.slots * Codec::scales + m_layout.words * static_cast<std::size_t>(m_codec.planes);
  }

  // Statistics, scales, codes. The first statistic's pass leaves c in the residual, the last makes it c − C(c).
  void compress(const Exec& exec, int first_chunk, int chunks, const Vector<Exec, const float>& x,
                const Vector<Exec, float>& residual, const Words& messages) const override {
    const Region region("OneBit::compress::compress");
    const Part part = part_of(m_layout, first_chunk, chunks);
    take_statistics(exec, part, x, residual, std::make_index_sequence<statistics>());
    write_scales(exec, part, messages);
    encode(exec, part, residual, messages);
  }

  void average_chunk(const Exec& exec, int chunk, int senders, const Words& messages,
                     const Vector<Exec, float>& mean) const override {
    const Region region("OneBit::compress::average");
    // Local names here and below, because a lambda on the device may not hold `this`.
    const WordTable<Exec> table = m_table;
    const Codec codec = m_codec;
    const std::size_t length = message_words();
    Kokkos::parallel_for(
        "OneBit::compress::average", UnitPolicy<Exec>(exec, 0, table.units_per_chunk()),
        KOKKOS_LAMBDA(std::size_t unit) {
          Word word = table.unit_begin(chunk, unit);
          for (const std::size_t end = table.unit_end(word); word.in_chunk < end; table.advance(word)) {
            std::uint32_t codes[bits_per_word];
            float sums[bits_per_word] = {};
            for (int sender = 0; sender < senders; ++sender) {
              const std::uint32_t* const message = messages.data() + sender * length;
              unpack(message + table.slots * Codec::scales + word.in_chunk * codec.planes, codec.planes, codes);
              table.for_each_slot(word, DecodeAndAdd<Codec>{codec, message, codes, sums});
            }
            const std::size_t count = table.length(word);
            for (std::size_t j = 0; j < count; ++j)
              mean(word.in_chunk * bits_per_word + j) = sums[j] / static_cast<float>(senders);
          }
        });
  }

  void decompress_all(const Exec& exec, const Words& messages, const Vector<Exec, float>& x) const override {
    const Region region("OneBit::compress::decompress");
    const WordTable<Exec> table = m_table;
    const Codec codec = m_codec;
    const std::size_t length = message_words(), units = table.units_per_chunk();
    Kokkos::parallel_for(
        "OneBit::compress::decompress", UnitPolicy<Exec>(exec, 0, m_layout.chunks * units),
        KOKKOS_LAMBDA(std::size_t unit) {
          Word word = table.unit_begin(unit / units, unit % units);
          const std::uint32_t* const message = messages.data() + word.chunk * length;
          for (const std::size_t end = table.unit_end(word); word.in_chunk < end; table.advance(word)) {
            std::uint32_t codes[bits_per_word];
            unpack(message + table.slots * Codec::scales + word.in_chunk * codec.planes, codec.planes, codes);
            table.for_each_slot(word, Decode<Codec>{codec, message, codes, x.data() + word.begin});
          }
        });
  }

  // The steps of `compress`, public because they hold lambdas for the device.

  template <std::size_t... K>
  void take_statistics(const Exec& exec, const Part& part, const Vector<Exec, const float>& x,
                       const Vector<Exec, float>& residual, std::index_sequence<K...>) const {
    (take_statistic<K>(exec, part, x, residual), ...);
  }

  /// Statistic K of each slot and, where it is one group, of the vector.
  template <std::size_t K>
  void take_statistic(const Exec& exec, const Part& part, const Vector<Exec, const float>& x,
                      const Vector<Exec, float>& residual) const {
    using Statistic = std::tuple_element_t<K, typename Codec::Statistics>;
    using Join = typename Statistic::Join;
    const Statistic term;
    const auto piece_begins = m_piece_begins;
    const auto slot_pieces = m_slot_pieces;
    const std::size_t base = part.base, first_slot = part.first_slot, slot_count = part.slot_count;
    const std::size_t first_piece = part.first_piece;
    const Vector<Exec, double> pieces =
        Kokkos::subview(m_piece_statistics, std::make_pair(first_piece, first_piece + part.piece_count));
    const Vector<Exec, double> slots = slot_statistic(K, part);

    const auto begins = KOKKOS_LAMBDA(std::size_t piece) { return piece_begins(first_piece + piece); };
    if (K == 0)
      reduce_pieces<Join>(
          exec, "OneBit::compress::add_residual", begins, pieces, KOKKOS_LAMBDA(std::size_t i) {
            const float c = x(i - base) + residual(i - base);
            residual(i - base) = c;
            return term(c);
          });
    else
      reduce_pieces<Join>(
          exec, "OneBit::compress::statistic", begins, pieces,
          KOKKOS_LAMBDA(std::size_t i) { return term(residual(i - base)); });
    reduce_pieces<Join>(
        exec, "OneBit::compress::slot_statistic",
        KOKKOS_LAMBDA(std::size_t slot) { return slot_pieces(first_slot + slot) - first_piece; }, slots,
        KOKKOS_LAMBDA(std::size_t piece) { return pieces(piece); });
    if (part.one_group)
      reduce_pieces<Join>(
          exec, "OneBit::compress::vector_statistic",
          KOKKOS_LAMBDA(std::size_t end) { return end == 0 ? std::size_t{0} : slot_count; },
          Vector<Exec, double>(Kokkos::subview(m_vector_statistics, std::make_pair(K, K + 1))),
          KOKKOS_LAMBDA(std::size_t slot) { return slots(slot); });
  }

  /// The scales of each slot into its chunk's message; 0 for a slot without elements.
  void write_scales(const Exec& exec, const Part& part, const Words& messages) const {
    const Codec codec = m_codec;
    const auto slot_begins = m_table.slot_begins;
    const auto slot_statistics = m_slot_statistics;
    const auto vector_statistics = m_vector_statistics;
    const std::size_t slots = m_table.slots, all_slots = slots * m_layout.chunks, first_slot = part.first_slot;
    const std::size_t message_length = message_words(), length = m_layout.length;
    const bool one_group = part.one_group;
    Kokkos::parallel_for(
        "OneBit::compress::scales", UnitPolicy<Exec>(exec, 0, part.slot_count), KOKKOS_LAMBDA(std::size_t slot) {
          double taken[statistics];
          for (std::size_t k = 0; k < statistics; ++k)
            taken[k] = one_group ? vector_statistics(k) : slot_statistics(k * all_slots + first_slot + slot);
          const std::size_t count =
              one_group ? length : slot_begins(first_slot + slot + 1) - slot_begins(first_slot + slot);
          float scales[Codec::scales] = {};
          if (count > 0) codec.set_scales(taken, static_cast<double>(count), scales);
          const std::size_t first = slot / slots * message_length + slot % slots * Codec::scales;
          for (int k = 0; k < Codec::scales; ++k) messages(first + k) = as_bits(scales[k]);
        });
  }

  /// The planes of each chunk into its message; residual ← c − C(c).
  void encode(const Exec& exec, const Part& part, const Vector<Exec, float>& c, const Words& messages) const {
    const WordTable<Exec> table = m_table;
    const Codec codec = m_codec;
    const std::size_t length = message_words(), units = table.units_per_chunk();
    const std::size_t base = part.base, first_chunk = part.first_chunk;
    Kokkos::parallel_for(
        "OneBit::compress::encode", UnitPolicy<Exec>(exec, 0, part.chunks * units), KOKKOS_LAMBDA(std::size_t unit) {
          Word word = table.unit_begin(first_chunk + unit / units, unit % units);
          std::uint32_t* const message = messages.data() + (word.chunk - first_chunk) * length;
          for (const std::size_t end = table.unit_end(word); word.in_chunk < end; table.advance(word)) {
            std::uint32_t codes[bits_per_word] = {};
            table.for_each_slot(word, EncodeAndSubtract<Codec>{codec, message, c.data() + (word.begin - base), codes});
            pack(codes, codec.planes, message + table.slots * Codec::scales + word.in_chunk * codec.planes);
          }
        });
  }

private:
  static constexpr std::size_t statistics = std::tuple_size_v<typename Codec::Statistics>;

  /// (slots of the part) statistic k.
  Vector<Exec, double> slot_statistic(std::size_t k, const Part& part) const {
    const std::size_t first = k * m_table.slots * m_layout.chunks + part.first_slot;
    return Kokkos::subview(m_slot_statistics, std::make_pair(first, first + part.slot_count));
  }

  Layout m_layout;
  Codec m_codec;
  WordTable<Exec> m_table;
  Vector<Exec, std::size_t> m_slot_pieces, m_piece_begins;
  Vector<Exec, double> m_piece_statistics;   ///< (pieces) one statistic at a time
  Vector<Exec, double> m_slot_statistics;    ///< (statistics * chunks * S)
  Vector<Exec, double> m_vector_statistics;  ///< (statistics)
};

template <class Exec, class Codec>
std::unique_ptr<const Compressor<Exec>> make(const Layout& layout, const Codec& codec) {
  return std::make_unique<CodecCompressor<Exec, Codec>>(layout, codec);
}

}  // namespace

template <class Exec>
std::unique_ptr<const Compressor<Exec>> make_compressor(const Layout& layout, const Options& options) {
  const bool l1 = options.scale == Scale::l1, mean = options.reconstruction == Reconstruction::mean;
  switch (options.kind) {
    case Kind::sign:
      return l1 ? make<Exec>(layout, SignCodec<SumOfMagnitudes>()) : make<Exec>(layout, SignCodec<SumOfSquares>());
    case Kind::sign_ternary:
      return l1 ? make<Exec>(layout, TernaryCodec<SumOfMagnitudes>())
                : make<Exec>(layout, TernaryCodec<SumOfSquares>());
    case Kind::column:
      return mean ? make<Exec>(layout, ColumnMeanCodec()) : make<Exec>(layout, ColumnRangeCodec());
    case Kind::nbit:
      break;
  }
  return make<Exec>(layout, NBitCodec(options.bits));
}

#define ONEBIT_INSTANTIATE(Exec) \
  template std::unique_ptr<const Compressor<Exec>> make_compressor(const Layout&, const Options&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::compress
