#pragma once
/// \file decode.hpp
/// Messages read element by element, for kernels that need the values that they stand for and no vector of them: the
/// averaged momentum of a step is one bit an element and never written as floats.

#include <variant>

#include "compress/codecs.hpp"
#include "compress/layout.hpp"

namespace onebit::compress {

/// One unit of work for each index.
template <class Exec>
using UnitPolicy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>;

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

  static std::size_t first_unit(Runs runs) { return runs.begin / words_per_unit; }
  static std::size_t units(Runs runs) { return (runs.end + words_per_unit - 1) / words_per_unit - first_unit(runs); }

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

  KOKKOS_FUNCTION std::size_t slot_end(std::size_t chunk, std::size_t slot) const {
    return slot_begins(chunk * slots + slot + 1);
  }
  /// Goes on to the slot of element `element`.
  KOKKOS_FUNCTION void find_slot(Word& word, std::size_t element) const {
    while (word.slot_end <= element) word.slot_end = slot_end(word.chunk, ++word.slot);
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
/// A word of each plane into 32 codes.
KOKKOS_FORCEINLINE_FUNCTION void unpack(const std::uint32_t* words, int planes, std::uint32_t* codes) {
  for (std::size_t j = 0; j < bits_per_word; ++j) codes[j] = 0;
  for (int plane = 0; plane < planes; ++plane)
    for (std::size_t j = 0; j < bits_per_word; ++j) codes[j] |= (words[plane] >> j & 1u) << plane;
}

/// The messages of all chunks of a layout.
template <class Exec, class Codec>
struct Decoder {
  Codec codec;
  WordTable<Exec> table;
  std::size_t chunks, message_words;
  Vector<Exec, const std::uint32_t> messages;  ///< (chunks * message_words)

  /// values(j) ← what the codes of a word stand for; padding is left out.
  KOKKOS_FORCEINLINE_FUNCTION void decode(const Word& word, float* values) const {
    const std::uint32_t* const scales = messages.data() + word.chunk * message_words;
    std::uint32_t codes[bits_per_word];
    unpack(scales + table.slots * Codec::scales + word.in_chunk * codec.planes, codec.planes, codes);
    table.for_each_slot(word, [&](std::size_t slot, std::size_t first, std::size_t last) {
      const auto group = codec.values(scales + slot * Codec::scales);
      for (std::size_t j = first; j < last; ++j) values[j] = codec.decode(group, codes[j]);
    });
  }

  /// The value of element j of a word, which is not padding.
  KOKKOS_FORCEINLINE_FUNCTION float decode(Word word, std::size_t j) const {
    const std::uint32_t* const scales = messages.data() + word.chunk * message_words;
    const std::uint32_t* const planes = scales + table.slots * Codec::scales + word.in_chunk * codec.planes;
    std::uint32_t code = 0;
    for (int plane = 0; plane < codec.planes; ++plane) code |= (planes[plane] >> j & 1u) << plane;
    table.find_slot(word, word.begin + j);
    return codec.decode(codec.values(scales + word.slot * Codec::scales), code);
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
/// whole words on the host, where f's loop is vectorised, and single elements on a device.
template <class Exec, class Codec, class F>
void for_each_decoded(const Exec& exec, const char* label, const Decoder<Exec, Codec>& decoder, const F& f) {
  const WordTable<Exec> table = decoder.table;
  const std::size_t units = table.units({0, table.words});
  if constexpr (is_host<Exec>) {
    Kokkos::parallel_for(label, UnitPolicy<Exec>(exec, 0, decoder.chunks * units), [=](std::size_t unit) {
      Word word = table.unit_begin(unit / units, unit % units);
      for (const std::size_t end = table.unit_end(word); word.in_chunk < end; table.advance(word)) {
        float values[bits_per_word];
        decoder.decode(word, values);
        const std::size_t begin = word.begin, count = table.length(word);
        f(begin, count, values);
      }
    });
  } else {
    Kokkos::parallel_for(
        label, UnitPolicy<Exec>(exec, 0, decoder.chunks * units * bits_per_word), KOKKOS_LAMBDA(std::size_t element) {
          const std::size_t unit = element / bits_per_word, j = element % bits_per_word;
          const Word word = table.unit_begin(unit / units, unit % units);
          if (j >= table.length(word)) return;
          const float value = decoder.decode(word, j);
          f(word.begin + j, 1, &value);
        });
  }
}

}  // namespace onebit::compress
