#pragma once
/// \file decode.hpp
/// Messages read element by element, for kernels that need the values of a message and no vector of them: the averaged
/// momentum of a step is one bit an element and is never written as floats.

#include <type_traits>
#include <variant>

#include "compress/codecs.hpp"
#include "compress/word_traversal.hpp"

namespace onebit::compress {

/// Bits of an element where a codec fixes them, and 0 where they are known at run time only.
template <class Codec>
KOKKOS_INLINE_FUNCTION constexpr int known_planes() {
  if constexpr (std::is_member_object_pointer_v<decltype(&Codec::planes)>)
    return 0;
  else
    return Codec::planes;
}

/// The codes at a cursor, from a word of each plane. They are extracted when they are read, or, where the number of
/// planes is known at run time only, at once.
template <class Exec, class Codec>
class Codes {
public:
  Codes() = default;
  /// \param message of the cursor's chunk
  KOKKOS_FORCEINLINE_FUNCTION Codes(const Codec& codec, const WordTable<Exec>& table, const Cursor& cursor,
                                    const std::uint32_t* message) {
    const std::uint32_t* const words = message + table.groups * Codec::scales + cursor.word * codec.planes;
    if constexpr (lanes_of_block<Exec> == 1 && planes > 0) {
      for (int plane = 0; plane < planes; ++plane) m_data[plane] = words[plane];
    } else if constexpr (lanes_of_block<Exec> == 1) {
      for (std::size_t j = 0; j < per_thread; ++j) m_data[j] = 0;
      for (int plane = 0; plane < codec.planes; ++plane)
        for (std::size_t j = 0; j < per_thread; ++j) m_data[j] |= (words[plane] >> j & 1u) << plane;
    } else {
      for (std::uint32_t& data : m_data) data = 0;
      ONEBIT_UNROLL
      for (std::size_t j = 0; j < per_thread; ++j) {
        // Instead of a word behind the chunk's end, whose bits belong to padding, another is read: no load is a branch.
        const std::size_t next = j * WordTable<Exec>::word_stride, word = cursor.word + next < table.words ? next : 0;
        for (int plane = 0; plane < codec.planes; ++plane) {
          const std::uint32_t bit = words[word * codec.planes + plane] >> cursor.bit & 1u;
          if constexpr (planes > 0)
            m_data[plane] |= bit << j;
          else
            m_data[j] |= bit << plane;
        }
      }
    }
  }
  /// The code of element j at the cursor.
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
  static constexpr std::size_t per_thread = WordTable<Exec>::per_thread;
  static constexpr int planes = known_planes<Codec>();
  std::uint32_t m_data[planes > 0 ? planes : per_thread];
};

/// values[j] ← the value of code j at the cursor; padding is left out. \param message of the cursor's chunk
template <class Exec, class Codec>
KOKKOS_FORCEINLINE_FUNCTION void decode(const Codec& codec, const WordTable<Exec>& table, const Cursor& cursor,
                                        const std::uint32_t* message, float* values) {
  const Codes<Exec, Codec> codes(codec, table, cursor, message);
  table.for_each_group(cursor, [&](std::size_t group, std::size_t first, std::size_t last) {
    const auto own = codec.values(message + group * Codec::scales);
    for (std::size_t j = first; j < last; ++j) values[j] = codec.decode(own, codes(j));
  });
}

/// The messages of all chunks of a layout.
template <class Exec, class Codec>
struct Decoder {
  Codec codec;
  WordTable<Exec> table;
  std::size_t chunks, message_words;
  Vector<Exec, const std::uint32_t> messages;  ///< (chunks * message_words)

  KOKKOS_FORCEINLINE_FUNCTION void decode(const Cursor& cursor, float* values) const {
    compress::decode(codec, table, cursor, messages.data() + cursor.chunk * message_words, values);
  }
};

template <class Exec, class... Lines>
std::variant<Decoder<Exec, typename Lines::Code>...> any_decoder(Table<Lines...>);
/// The decoder of any compressor of the table.
template <class Exec>
using AnyDecoder = decltype(any_decoder<Exec>(Compressors()));

/// Calls f(begin, count, values) for the elements begin + j · WordTable<Exec>::stride, j < count, with their values:
/// whole words on the host, where f's loop is vectorised. `count` is 0 for padding.
template <class Exec, class Codec, class F>
void for_each_decoded(const Exec& exec, const char* label, const Decoder<Exec, Codec>& decoder, const F& f) {
  const Decoder<Exec, Codec> own = decoder;
  for_each_word(
      exec, label, own.table, 0, own.chunks, {0, own.table.words}, KOKKOS_LAMBDA(const Cursor& cursor) {
        float values[WordTable<Exec>::per_thread];
        own.decode(cursor, values);
        const std::size_t begin = cursor.begin, count = own.table.length(cursor);
        f(begin, count, values);
      });
}

}  // namespace onebit::compress
