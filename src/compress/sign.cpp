/// \file sign.cpp
/// See sign.hpp. A word's 32 elements are one unit of work; its scales are looked up by slot, and a word that lies in
/// one slot (almost all do) takes a path without look-ups in the loop.

#include "compress/sign.hpp"

#include <cstring>

#include "base/parallel.hpp"

namespace onebit::compress {
namespace {

KOKKOS_INLINE_FUNCTION float as_float(std::uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
KOKKOS_INLINE_FUNCTION std::uint32_t as_bits(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

template <class T, class Exec>
Vector<Exec, T> on_device(const Exec&, const char* label, const std::vector<T>& table) {
  Vector<Exec, T> copy = make_uninitialized<Exec, T>(label, table.size());
  Kokkos::deep_copy(copy,
                    Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(table.data(), table.size()));
  return copy;
}

/// The elements of one word: [begin, end) of the whole vector, in chunk `chunk`, the first in slot `slot`.
struct WordRange {
  std::size_t chunk, begin, end, slot;
};

/// Finds the elements and scales of a word from the tables of a layout.
template <class Exec>
struct WordTable {
  std::size_t length, words, slots;
  Vector<Exec, const std::size_t> slot_begins;
  Vector<Exec, const std::uint32_t> word_slots;

  /// \param word index over the words of all chunks
  KOKKOS_FUNCTION WordRange range(std::size_t word) const {
    const std::size_t first = word * bits_per_word, last = first + bits_per_word;
    return {word / words, first < length ? first : length, last < length ? last : length, word_slots(word)};
  }
  /// First element behind slot `slot` of chunk `chunk`.
  KOKKOS_FUNCTION std::size_t slot_end(std::size_t chunk, std::size_t slot) const {
    return slot_begins(chunk * slots + slot + 1);
  }
};

template <class Exec>
using WordPolicy = Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>;

}  // namespace

template <class Exec>
SignCompressor<Exec>::SignCompressor(const Layout& layout, Scale scale)
    : m_layout(layout),
      m_scale(scale),
      m_slot_begins(on_device(Exec(), "OneBit::compress::slot_begins", layout.slot_begins)),
      m_slot_pieces(on_device(Exec(), "OneBit::compress::slot_pieces", layout.slot_pieces)),
      m_piece_begins(on_device(Exec(), "OneBit::compress::piece_begins", layout.piece_begins)),
      m_word_slots(on_device(Exec(), "OneBit::compress::word_slots", layout.word_slots)),
      m_piece_sums("OneBit::compress::piece_sums", layout.piece_begins.size() - 1),
      m_slot_sums("OneBit::compress::slot_sums", layout.slot_begins.size() - 1),
      m_total("OneBit::compress::total", 1) {}

// Norms, scales, signs: three launches. The norm pass leaves c in the residual, the sign pass makes it c − C(c).
template <class Exec>
void SignCompressor<Exec>::compress(const Exec& exec, int first_chunk, int chunks, const Vector<Exec, const float>& x,
                                    const Vector<Exec, float>& residual, const Words& messages) const {
  const Region region("OneBit::compress::compress");
  const std::size_t slots = m_layout.slots, words = m_layout.words, message_words = m_layout.message_words();
  const std::size_t base = m_layout.chunk_begin(first_chunk);
  const std::size_t first_slot = first_chunk * slots, slot_count = chunks * slots;
  const std::size_t first_piece = m_layout.slot_pieces[first_slot];
  const std::size_t last_piece = m_layout.slot_pieces[first_slot + slot_count];

  // Local names, because a lambda on the device may not hold `this`.
  const auto piece_begins = m_piece_begins;
  const auto slot_begins = m_slot_begins;
  const auto slot_pieces = m_slot_pieces;
  const Vector<Exec, double> piece_norms = Kokkos::subview(m_piece_sums, std::make_pair(first_piece, last_piece));
  const Vector<Exec, double> slot_norms =
      Kokkos::subview(m_slot_sums, std::make_pair(first_slot, first_slot + slot_count));
  const auto begins = KOKKOS_LAMBDA(std::size_t piece) { return piece_begins(first_piece + piece); };
  if (m_scale == Scale::l1) {
    piece_sums(
        exec, "OneBit::compress::norm_l1", begins, piece_norms, KOKKOS_LAMBDA(std::size_t i) {
          const float c = x(i - base) + residual(i - base);
          residual(i - base) = c;
          return c < 0 ? -c : c;
        });
  } else {
    // Squares in double are exact, so the sum is the same whether or not a compiler fuses multiply and add.
    piece_sums(
        exec, "OneBit::compress::norm_l2", begins, piece_norms, KOKKOS_LAMBDA(std::size_t i) {
          const float c = x(i - base) + residual(i - base);
          residual(i - base) = c;
          return static_cast<double>(c) * static_cast<double>(c);
        });
  }
  piece_sums(
      exec, "OneBit::compress::slot_norms",
      KOKKOS_LAMBDA(std::size_t slot) { return slot_pieces(first_slot + slot) - first_piece; }, slot_norms,
      KOKKOS_LAMBDA(std::size_t piece) { return piece_norms(piece); });

  const bool one_scale = m_layout.grouping == Grouping::vector && chunks == m_layout.chunks;
  const Vector<Exec, double> total = m_total;
  if (one_scale)
    piece_sums(
        exec, "OneBit::compress::vector_norm",
        KOKKOS_LAMBDA(std::size_t end) { return end == 0 ? std::size_t{0} : slot_count; }, total,
        KOKKOS_LAMBDA(std::size_t slot) { return slot_norms(slot); });

  const bool l1 = m_scale == Scale::l1;
  const std::size_t length = m_layout.length;
  Kokkos::parallel_for(
      "OneBit::compress::scales", WordPolicy<Exec>(exec, 0, slot_count), KOKKOS_LAMBDA(std::size_t slot) {
        const std::size_t count =
            one_scale ? length : slot_begins(first_slot + slot + 1) - slot_begins(first_slot + slot);
        const double norm = one_scale ? total(0) : slot_norms(slot);
        const double mean = count == 0 ? 0 : norm / static_cast<double>(count);
        messages(slot / slots * message_words + slot % slots) =
            as_bits(static_cast<float>(l1 ? mean : math::sqrt(mean)));
      });

  const WordTable<Exec> table{length, words, slots, m_slot_begins, m_word_slots};
  const std::size_t first_word = first_chunk * words;
  Kokkos::parallel_for(
      "OneBit::compress::signs", WordPolicy<Exec>(exec, first_word, first_word + chunks * words),
      KOKKOS_LAMBDA(std::size_t word) {
        const WordRange range = table.range(word);
        const std::size_t message = (range.chunk - first_chunk) * message_words;
        std::uint32_t bits = 0;
        std::size_t slot = range.slot;
        float scale = as_float(messages(message + slot));
        float* const c = residual.data() + (range.begin - base);
        if (range.end - range.begin == bits_per_word && table.slot_end(range.chunk, slot) >= range.end) {
          for (std::size_t j = 0; j < bits_per_word; ++j) {
            bits |= static_cast<std::uint32_t>(c[j] >= 0) << j;
            c[j] -= c[j] >= 0 ? scale : -scale;
          }
        } else {
          for (std::size_t j = 0; range.begin + j < range.end; ++j) {
            while (range.begin + j >= table.slot_end(range.chunk, slot)) scale = as_float(messages(message + ++slot));
            bits |= static_cast<std::uint32_t>(c[j] >= 0) << j;
            c[j] -= c[j] >= 0 ? scale : -scale;
          }
        }
        messages(message + slots + (word - range.chunk * words)) = bits;
      });
}

template <class Exec>
void SignCompressor<Exec>::average_chunk(const Exec& exec, int chunk, int senders, const Words& messages,
                                         const Vector<Exec, float>& mean) const {
  const Region region("OneBit::compress::average");
  const std::size_t slots = m_layout.slots, words = m_layout.words, message_words = m_layout.message_words();
  const WordTable<Exec> table{m_layout.length, words, slots, m_slot_begins, m_word_slots};
  const std::size_t first_word = chunk * words;
  Kokkos::parallel_for(
      "OneBit::compress::average", WordPolicy<Exec>(exec, 0, words), KOKKOS_LAMBDA(std::size_t word) {
        const WordRange range = table.range(first_word + word);
        float sums[bits_per_word] = {};
        const bool one_slot = table.slot_end(range.chunk, range.slot) >= range.end;
        for (int sender = 0; sender < senders; ++sender) {
          const std::size_t message = sender * message_words;
          const std::uint32_t bits = messages(message + slots + word);
          std::size_t slot = range.slot;
          float scale = as_float(messages(message + slot));
          if (one_slot) {
            for (std::size_t j = 0; j < bits_per_word; ++j) sums[j] += bits >> j & 1u ? scale : -scale;
          } else {
            for (std::size_t j = 0; range.begin + j < range.end; ++j) {
              while (range.begin + j >= table.slot_end(range.chunk, slot)) scale = as_float(messages(message + ++slot));
              sums[j] += bits >> j & 1u ? scale : -scale;
            }
          }
        }
        for (std::size_t j = 0; range.begin + j < range.end; ++j)
          mean(word * bits_per_word + j) = sums[j] / static_cast<float>(senders);
      });
}

template <class Exec>
void SignCompressor<Exec>::decompress_all(const Exec& exec, const Words& messages, const Vector<Exec, float>& x) const {
  const Region region("OneBit::compress::decompress");
  const std::size_t slots = m_layout.slots, words = m_layout.words, message_words = m_layout.message_words();
  const WordTable<Exec> table{m_layout.length, words, slots, m_slot_begins, m_word_slots};
  Kokkos::parallel_for(
      "OneBit::compress::decompress", WordPolicy<Exec>(exec, 0, m_layout.chunks * words),
      KOKKOS_LAMBDA(std::size_t word) {
        const WordRange range = table.range(word);
        const std::size_t message = range.chunk * message_words;
        const std::uint32_t bits = messages(message + slots + (word - range.chunk * words));
        std::size_t slot = range.slot;
        float scale = as_float(messages(message + slot));
        if (range.end - range.begin == bits_per_word && table.slot_end(range.chunk, slot) >= range.end) {
          for (std::size_t j = 0; j < bits_per_word; ++j) x(range.begin + j) = bits >> j & 1u ? scale : -scale;
        } else {
          for (std::size_t j = 0; range.begin + j < range.end; ++j) {
            while (range.begin + j >= table.slot_end(range.chunk, slot)) scale = as_float(messages(message + ++slot));
            x(range.begin + j) = bits >> j & 1u ? scale : -scale;
          }
        }
      });
}

#define ONEBIT_INSTANTIATE(Exec) template class SignCompressor<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::compress
