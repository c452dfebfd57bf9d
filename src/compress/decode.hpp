#pragma once
/// \file decode.hpp
/// Messages read element by element, for kernels that need the values that they stand for and no vector of them: the
/// averaged momentum of a step is one bit an element and never written as floats.

#include <type_traits>
#include <variant>

#include "base/warps.hpp"
#include "compress/codecs.hpp"
#include "compress/layout.hpp"

namespace onebit::compress {

/// A thread's share of a word of a chunk: on the host the elements [begin, begin + 32) of the whole vector, on a device,
/// where a warp shares the word, element `begin` for its lane; less what lies behind the chunk's end. The first is in slot
/// `slot`, which ends at `slot_end`.
struct Word {
  std::size_t chunk, in_chunk, lane, begin, slot, slot_end;
};

/// A layout's tables on the device.
template <class Exec>
struct WordTable {
  /// Elements of a word that one thread takes.
  static constexpr std::size_t share = bits_per_word / lanes_of_unit<Exec>;
  /// Words that one unit of parallel work takes one after the other: look-ups for each word would show.
  static constexpr std::size_t words_per_unit = is_host<Exec> ? 32 : 8;

  std::size_t words, slots;
  Vector<Exec, const std::size_t> chunk_begins, slot_begins;
  Vector<Exec, const std::uint32_t> word_slots;

  static std::size_t first_unit(Runs runs) { return runs.begin / words_per_unit; }
  static std::size_t units(Runs runs) { return (runs.end + words_per_unit - 1) / words_per_unit - first_unit(runs); }

  /// Behind the last word, counted in its chunk, of the unit that begins with `word`.
  KOKKOS_FUNCTION std::size_t unit_end(const Word& word) const {
    const std::size_t end = word.in_chunk + words_per_unit;
    return end < words ? end : words;
  }
  /// First word of unit `unit` of chunk `chunk`.
  KOKKOS_FUNCTION Word unit_begin(std::size_t chunk, std::size_t unit, std::size_t lane) const {
    const std::size_t in_chunk = unit * words_per_unit, slot = word_slots(chunk * words + in_chunk);
    Word word{
        chunk, in_chunk, lane, chunk_begins(chunk) + in_chunk * bits_per_word + lane, slot, slot_end(chunk, slot)};
    leave_slot(word);
    return word;
  }
  KOKKOS_FORCEINLINE_FUNCTION void advance(Word& word) const {
    ++word.in_chunk;
    word.begin += bits_per_word;
    leave_slot(word);
  }
  /// Elements of a thread's share that are not padding.
  KOKKOS_FUNCTION std::size_t length(const Word& word) const {
    const std::size_t end = chunk_begins(word.chunk + 1);
    return word.begin >= end ? 0 : end - word.begin < share ? end - word.begin : share;
  }
  /// Calls work(slot, first, last) for each run of elements [first, last) of a thread's share that lies in one slot;
  /// elements count from the first of the share.
  template <class Work>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_slot(Word word, const Work& work) const {
    if (word.begin + share <= word.slot_end) {
      work(word.slot, std::size_t{0}, share);
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

  KOKKOS_FUNCTION std::size_t slot_end(std::size_t chunk, std::size_t slot) const {
    return slot_begins(chunk * slots + slot + 1);
  }
  /// Goes on to the slot of the first element, unless that is padding.
  KOKKOS_FORCEINLINE_FUNCTION void leave_slot(Word& word) const {
    if (word.begin >= word.slot_end && word.begin < chunk_begins(word.chunk + 1)) find_slot(word, word.begin);
  }
  /// Goes on to the slot of element `element`.
  KOKKOS_FUNCTION void find_slot(Word& word, std::size_t element) const {
    while (word.slot_end <= element) word.slot_end = slot_end(word.chunk, ++word.slot);
  }
};

/// Calls f(word) for the words of the same runs of each of some chunks.
template <class Exec, class F>
void for_each_word(const Exec& exec, const char* label, const WordTable<Exec>& table, std::size_t first_chunk,
                   std::size_t chunks, Runs runs, const F& f) {
  const WordTable<Exec> own = table;  // a lambda on a device holds no reference
  const std::size_t units = table.units(runs), first_unit = table.first_unit(runs);
  for_each_unit(
      exec, label, chunks * units, KOKKOS_LAMBDA(std::size_t unit, std::size_t lane) {
        Word word = own.unit_begin(first_chunk + unit / units, first_unit + unit % units, lane);
        for (const std::size_t end = own.unit_end(word); word.in_chunk < end; own.advance(word)) f(word);
      });
}

/// The codes of a share into their bits of a word for each plane.
template <class Exec>
KOKKOS_FORCEINLINE_FUNCTION void pack(const Word& word, const std::uint32_t* codes, int planes, std::uint32_t* words) {
  for (int plane = 0; plane < planes; ++plane) {
    if constexpr (lanes_of_unit<Exec> == 1) {
      std::uint32_t bits = 0;
      for (std::size_t j = 0; j < bits_per_word; ++j) bits |= (codes[j] >> plane & 1u) << j;
      words[plane] = bits;
    } else {
      store_ballot(word.lane, (codes[0] >> plane & 1u) != 0, words + plane);
    }
  }
}
/// Bits of an element where a codec fixes them, and 0 where they are known at run time only.
template <class Codec>
constexpr int known_planes() {
  if constexpr (std::is_member_object_pointer_v<decltype(&Codec::planes)>)
    return 0;
  else
    return Codec::planes;
}

/// The codes of a share, from its bits in a word of each plane: taken out where they are read, or, where the number of
/// planes is known at run time only, at first.
template <class Exec, class Codec>
class Codes {
public:
  Codes() = default;
  /// \param message of the word's chunk
  KOKKOS_FORCEINLINE_FUNCTION Codes(const Codec& codec, const WordTable<Exec>& table, const Word& word,
                                    const std::uint32_t* message) {
    const std::uint32_t* const words = message + table.slots * Codec::scales + word.in_chunk * codec.planes;
    const std::size_t first = share == bits_per_word ? 0 : word.lane;
    if constexpr (planes > 0) {
      for (int plane = 0; plane < planes; ++plane) m_data[plane] = words[plane] >> first;
    } else {
      for (std::size_t j = 0; j < share; ++j) m_data[j] = 0;
      for (int plane = 0; plane < codec.planes; ++plane)
        for (std::size_t j = 0; j < share; ++j) m_data[j] |= (words[plane] >> (first + j) & 1u) << plane;
    }
  }
  /// Of element j of the share.
  KOKKOS_FORCEINLINE_FUNCTION std::uint32_t operator()(std::size_t j) const {
    if constexpr (planes > 0) {
      std::uint32_t code = 0;
      for (int plane = 0; plane < planes; ++plane) code |= (m_data[plane] >> j & 1u) << plane;
      return code;
    } else {
      return m_data[j];
    }
  }

private:
  static constexpr std::size_t share = WordTable<Exec>::share;
  static constexpr int planes = known_planes<Codec>();
  std::uint32_t m_data[planes > 0 ? planes : share];
};

/// values(j) ← what the codes of a share stand for; padding is left out. \param message of the word's chunk
template <class Exec, class Codec>
KOKKOS_FORCEINLINE_FUNCTION void decode(const Codec& codec, const WordTable<Exec>& table, const Word& word,
                                        const std::uint32_t* message, float* values) {
  const Codes<Exec, Codec> codes(codec, table, word, message);
  table.for_each_slot(word, [&](std::size_t slot, std::size_t first, std::size_t last) {
    const auto group = codec.values(message + slot * Codec::scales);
    for (std::size_t j = first; j < last; ++j) values[j] = codec.decode(group, codes(j));
  });
}

/// The messages of all chunks of a layout.
template <class Exec, class Codec>
struct Decoder {
  Codec codec;
  WordTable<Exec> table;
  std::size_t chunks, message_words;
  Vector<Exec, const std::uint32_t> messages;  ///< (chunks * message_words)

  KOKKOS_FORCEINLINE_FUNCTION void decode(const Word& word, float* values) const {
    compress::decode(codec, table, word, messages.data() + word.chunk * message_words, values);
  }
};

/// The codec that reads what a codec wrote: how scales are made does not matter to it.
template <class Codec>
Codec reading(const Codec& codec) {
  return codec;
}
/// Of `sign` with any norm.
template <class Norm>
SignCodec<SumOfMagnitudes> reading(const SignCodec<Norm>&) {
  return {};
}
/// Of `sign_ternary` with any norm.
template <class Norm>
TernaryCodec<SumOfMagnitudes> reading(const TernaryCodec<Norm>&) {
  return {};
}
/// Of `column` with the means of both signs.
inline TwoValues reading(const ColumnMeanCodec&) { return {}; }
/// Of `column` with the ends of the range.
inline TwoValues reading(const ColumnRangeCodec&) { return {}; }

/// The decoder of the compressor at hand.
template <class Exec>
using AnyDecoder = std::variant<Decoder<Exec, SignCodec<SumOfMagnitudes>>, Decoder<Exec, TernaryCodec<SumOfMagnitudes>>,
                                Decoder<Exec, TwoValues>, Decoder<Exec, NBitCodec>>;

/// Calls f(begin, count, values) for runs of elements [begin, begin + count), of at most 32, with what the messages stand for:
/// whole words on the host, where f's loop is vectorised, and single elements on a device. A run of padding has count 0.
template <class Exec, class Codec, class F>
void for_each_decoded(const Exec& exec, const char* label, const Decoder<Exec, Codec>& decoder, const F& f) {
  const Decoder<Exec, Codec> own = decoder;
  for_each_word(
      exec, label, own.table, 0, own.chunks, {0, own.table.words}, KOKKOS_LAMBDA(const Word& word) {
        float values[WordTable<Exec>::share];
        own.decode(word, values);
        const std::size_t begin = word.begin, count = own.table.length(word);
        f(begin, count, values);
      });
}

}  // namespace onebit::compress
