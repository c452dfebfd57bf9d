#pragma once
/// \file word_traversal.hpp
/// The order in which kernels take the elements of a vector and the words of its message: a thread of the host takes
/// the 32 elements of a word, and a warp takes four words together.

#include "base/device/parallel.hpp"
#include "base/device/warps.hpp"
#include "base/kokkos.hpp"
#include "compress/layout.hpp"

namespace onebit::compress {

/// The elements of a chunk that one thread takes at once: begin + j · stride for j < per_thread (WordTable), counted
/// from the start of the vector, less the padding behind the chunk's end. On the host they are those of word `word`. On
/// a device they have bit `bit` of four words from `word` on: neighbouring ones, or every other one if 64 lanes work on
/// two words together. The first element is in group `group`, which ends at `group_end`.
struct Cursor {
  std::size_t chunk, word, bit, begin, group, group_end;
};

/// A layout's tables on the device.
template <class Exec>
struct WordTable {
  /// Elements that one thread takes at once, and the distance between them. A warp reads several of each lane before it
  /// votes on the first, because one load at a time would wait for memory.
  static constexpr std::size_t stride = lanes_of_block<Exec>;
  static constexpr std::size_t per_thread = stride == 1 ? bits_per_word : 4;
  /// Words that one thread or warp takes at once, and those between two elements of a lane.
  static constexpr std::size_t words_at_once = per_thread * stride / bits_per_word;
  static constexpr std::size_t word_stride = stride / bits_per_word;
  /// Words that a thread or a warp takes one after the other: one look-up for each word would take time.
  static constexpr std::size_t words_per_block = range_alignment;

  std::size_t words, groups;
  Vector<Exec, const std::size_t> chunk_begins, group_begins;
  Vector<Exec, const std::uint32_t> word_groups;

  static std::size_t first_block(Range range) { return range.begin / words_per_block; }
  static std::size_t blocks(Range range) {
    return (range.end + words_per_block - 1) / words_per_block - first_block(range);
  }

  /// End, in its chunk, of the words of the block that begins at the cursor.
  KOKKOS_FUNCTION std::size_t block_end(const Cursor& cursor) const {
    const std::size_t end = (cursor.word / words_per_block + 1) * words_per_block;
    return end < words ? end : words;
  }
  /// The first word of block `block` of chunk `chunk` that has an element for the lane.
  KOKKOS_FUNCTION Cursor block_begin(std::size_t chunk, std::size_t block, std::size_t lane) const {
    const std::size_t first = block * words_per_block, group = word_groups(chunk * words + first);
    const std::size_t begin = chunk_begins(chunk) + first * bits_per_word + lane;
    Cursor cursor{chunk, first + lane / bits_per_word, lane % bits_per_word, begin, group, group_end(chunk, group)};
    leave_group(cursor);
    return cursor;
  }
  KOKKOS_FORCEINLINE_FUNCTION void advance(Cursor& cursor) const {
    cursor.word += words_at_once;
    cursor.begin += words_at_once * bits_per_word;
    leave_group(cursor);
  }
  /// True if no element at the cursor is padding or outside the first element's group; almost always.
  KOKKOS_FORCEINLINE_FUNCTION bool is_in_one_group(const Cursor& cursor) const {
    return cursor.begin + (per_thread - 1) * stride < cursor.group_end;
  }
  /// Elements at the cursor that are not padding.
  KOKKOS_FUNCTION std::size_t length(const Cursor& cursor) const {
    if (is_in_one_group(cursor)) return per_thread;
    const std::size_t end = chunk_begins(cursor.chunk + 1);
    const std::size_t left = cursor.begin >= end ? 0 : (end - cursor.begin + stride - 1) / stride;
    return left < per_thread ? left : per_thread;
  }
  /// Calls work(group, first, last) for each range [first, last) of elements at the cursor that lies in one group;
  /// elements count from the first at the cursor. Almost always the range is all of them, and its length fixed.
  template <class Work>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_group(Cursor cursor, const Work& work) const {
    if (is_in_one_group(cursor)) {
      work(cursor.group, std::size_t{0}, per_thread);
      return;
    }
    const std::size_t count = length(cursor);
    if constexpr (stride == 1) {
      for (std::size_t first = 0; first < count;) {
        find_group(cursor, cursor.begin + first);
        const std::size_t left = cursor.group_end - cursor.begin, last = left < count ? left : count;
        work(cursor.group, first, last);
        first = last;
      }
    } else {
      ONEBIT_UNROLL
      for (std::size_t j = 0; j < per_thread; ++j) {
        if (j >= count) continue;
        find_group(cursor, cursor.begin + j * stride);
        work(cursor.group, j, j + 1);
      }
    }
  }

  KOKKOS_FUNCTION std::size_t group_end(std::size_t chunk, std::size_t group) const {
    return group_begins(chunk * groups + group + 1);
  }
  /// Goes on to the group of the first element, unless that is padding.
  KOKKOS_FORCEINLINE_FUNCTION void leave_group(Cursor& cursor) const {
    if (cursor.begin >= cursor.group_end && cursor.begin < chunk_begins(cursor.chunk + 1))
      find_group(cursor, cursor.begin);
  }
  /// Goes on to the group of element `element`.
  KOKKOS_FUNCTION void find_group(Cursor& cursor, std::size_t element) const {
    while (cursor.group_end <= element) cursor.group_end = group_end(cursor.chunk, ++cursor.group);
  }
};

template <class Exec>
WordTable<Exec> word_table(const Layout& layout) {
  return {layout.words, layout.groups, copy_to_device<Exec>("OneBit::compress::chunk_begins", layout.chunk_begins),
          copy_to_device<Exec>("OneBit::compress::group_begins", layout.group_begins),
          copy_to_device<Exec>("OneBit::compress::word_groups", layout.word_groups)};
}

/// Room for the floats at a cursor. On the host it is their memory, because the loop over them is vectorised; on a
/// device `values`, which are registers.
template <class Exec>
KOKKOS_FORCEINLINE_FUNCTION float* staging(float* memory, float* values) {
  return WordTable<Exec>::stride == 1 ? memory : values;
}
/// The first `count` floats at a cursor, in their `staging`. A device reads all of them before the first is used.
template <class Exec>
KOKKOS_FORCEINLINE_FUNCTION const float* load(const float* memory, std::size_t count, float* values) {
  constexpr std::size_t per_thread = WordTable<Exec>::per_thread, stride = WordTable<Exec>::stride;
  if constexpr (stride == 1) {
    return memory;
  } else if (count == per_thread) {
    ONEBIT_UNROLL
    for (std::size_t j = 0; j < per_thread; ++j) values[j] = memory[j * stride];
  } else {
    ONEBIT_UNROLL
    for (std::size_t j = 0; j < per_thread; ++j) values[j] = j < count ? memory[j * stride] : 0;
  }
  return values;
}
/// Writes the first `count` floats at a cursor from their `staging` to memory.
template <class Exec>
KOKKOS_FORCEINLINE_FUNCTION void store(const float* values, std::size_t count, float* memory) {
  constexpr std::size_t per_thread = WordTable<Exec>::per_thread, stride = WordTable<Exec>::stride;
  if constexpr (stride > 1) {
    ONEBIT_UNROLL
    for (std::size_t j = 0; j < per_thread; ++j)
      if (j < count) memory[j * stride] = values[j];
  }
}

/// Calls f(cursor) at the words of one range of each of some chunks.
template <class Exec, class F>
void for_each_word(const Exec& exec, const char* label, const WordTable<Exec>& table, std::size_t first_chunk,
                   std::size_t chunks, Range range, const F& f) {
  const WordTable<Exec> own = table;  // a lambda on a device holds no reference
  const std::size_t blocks = table.blocks(range), first_block = table.first_block(range);
  for_each_block(
      exec, label, chunks * blocks, KOKKOS_LAMBDA(std::size_t block, std::size_t lane) {
        Cursor cursor = own.block_begin(first_chunk + block / blocks, first_block + block % blocks, lane);
        for (const std::size_t end = own.block_end(cursor); cursor.word < end; own.advance(cursor)) f(cursor);
      });
}

/// words[p] ← the bits of plane p of the codes at the cursor; on a device words[j * word_stride * planes + p] for
/// element j.
template <class Exec>
KOKKOS_FORCEINLINE_FUNCTION void pack(const WordTable<Exec>& table, const Cursor& cursor, const std::uint32_t* codes,
                                      int planes, std::uint32_t* words) {
  if constexpr (lanes_of_block<Exec> == 1) {
    for (int plane = 0; plane < planes; ++plane) {
      std::uint32_t bits = 0;
      for (std::size_t j = 0; j < bits_per_word; ++j) bits |= (codes[j] >> plane & 1u) << j;
      words[plane] = bits;
    }
  } else {
    ONEBIT_UNROLL
    for (std::size_t j = 0; j < WordTable<Exec>::per_thread; ++j) {
      const std::size_t word = j * WordTable<Exec>::word_stride;
      if (cursor.word + word >= table.words) continue;  // all lanes of the word
      for (int plane = 0; plane < planes; ++plane)
        store_ballot(cursor.bit, (codes[j] >> plane & 1u) != 0, words + word * planes + plane);
    }
  }
}

}  // namespace onebit::compress
