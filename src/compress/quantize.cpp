/// \file quantize.cpp
/// See quantize.hpp. A thread takes 32 elements, which fill `bits` whole words.

#include "compress/quantize.hpp"

#include "base/float_bits.hpp"
#include "compress/layout.hpp"

namespace onebit::compress {

template <class Exec>
Quantizer<Exec>::Quantizer(std::size_t length, int chunks, int bits)
    : m_length(length), m_chunks(chunks), m_bits(bits), m_words(words_of_chunk(length, chunks)) {
  m_blocks = (chunk_length() + quantizer_block - 1) / quantizer_block;
}

template <class Exec>
std::size_t Quantizer<Exec>::chunk_length() const {
  return m_words * bits_per_word;
}

template <class Exec>
void Quantizer<Exec>::quantize(const Exec& exec, const Vector<Exec, const float>& v, const RoundingKey& key,
                               const Words& messages) const {
  const Region region("OneBit::compress::quantize");
  const std::size_t length = m_length, chunk = chunk_length(), blocks = m_blocks, words = m_words;
  const std::size_t message = message_words();
  const std::uint32_t bits = m_bits, levels = (1u << bits) - 1;
  if (words == 0) return;

  // A warp a block on a device; a maximum does not depend on the order.
  using Policy = Kokkos::TeamPolicy<Exec>;
  Kokkos::parallel_for(
      "OneBit::compress::block_maxima",
      Policy(exec, static_cast<int>(m_chunks * blocks), 1, is_host<Exec> ? 1 : static_cast<int>(bits_per_word)),
      KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const std::size_t k = team.league_rank() / blocks, block = team.league_rank() % blocks;
        const std::size_t begin = k * chunk + block * quantizer_block;
        std::size_t end = block + 1 < blocks ? begin + quantizer_block : (k + 1) * chunk;
        if (end > length) end = length;
        const int count = begin < end ? static_cast<int>(end - begin) : 0;
        float largest = 0;
        Kokkos::parallel_reduce(
            Kokkos::ThreadVectorRange(team, count),
            [&](int i, float& most) {
              const float value = v(begin + i);
              if (value > most) most = value;
            },
            Kokkos::Max<float>(largest));
        Kokkos::single(Kokkos::PerTeam(team),
                       [&]() { messages(k * message + block) = as_bits(largest > 0 ? largest : 0.0f); });
      });

  Kokkos::parallel_for(
      "OneBit::compress::quantize",
      Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, m_chunks * words),
      KOKKOS_LAMBDA(std::size_t range) {
        const std::size_t k = range / words, in_chunk = range % words, first = range * bits_per_word;
        const float largest = as_float(messages(k * message + in_chunk * bits_per_word / quantizer_block));
        std::size_t word = k * message + blocks + in_chunk * bits;
        std::uint64_t pending = 0;
        std::uint32_t filled = 0;
        for (std::size_t four = 0; four < bits_per_word / 4; ++four) {
          const Philox4 random = key.words(first / 4 + four);
          for (std::size_t j = 0; j < 4; ++j) {
            const std::size_t i = first + 4 * four + j;
            const std::uint64_t q = i < length ? quantized(v(i), largest, levels, uniform(random.word[j])) : 0;
            pending |= q << filled;
            filled += bits;
            if (filled >= bits_per_word) {
              messages(word++) = static_cast<std::uint32_t>(pending);
              pending >>= bits_per_word;
              filled -= bits_per_word;
            }
          }
        }
      });
}

template <class Exec>
void Quantizer<Exec>::average_chunk(const Exec& exec, int senders, const Words& messages,
                                    const Vector<Exec, float>& mean) const {
  const Region region("OneBit::compress::average_quantized");
  const std::size_t blocks = m_blocks, message = message_words();
  const std::uint32_t bits = m_bits, levels = (1u << bits) - 1;
  Kokkos::parallel_for(
      "OneBit::compress::average_quantized",
      Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, m_words), KOKKOS_LAMBDA(std::size_t range) {
        float sums[bits_per_word] = {};
        for (int sender = 0; sender < senders; ++sender) {
          const float largest = as_float(messages(sender * message + range * bits_per_word / quantizer_block));
          std::size_t word = sender * message + blocks + range * bits;
          std::uint64_t pending = 0;
          std::uint32_t filled = 0;
          for (std::size_t j = 0; j < bits_per_word; ++j) {
            if (filled < bits) {
              pending |= static_cast<std::uint64_t>(messages(word++)) << filled;
              filled += bits_per_word;
            }
            sums[j] += dequantized(static_cast<std::uint32_t>(pending) & levels, largest, levels);
            pending >>= bits;
            filled -= bits;
          }
        }
        for (std::size_t j = 0; j < bits_per_word; ++j)
          mean(range * bits_per_word + j) = sums[j] / static_cast<float>(senders);
      });
}

#define ONEBIT_INSTANTIATE(Exec) template class Quantizer<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::compress
