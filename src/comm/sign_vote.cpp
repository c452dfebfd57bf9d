#include "comm/sign_vote.hpp"

#include "base/device/parallel.hpp"
#include "base/device/warps.hpp"
#include "compress/layout.hpp"

namespace onebit::comm {
namespace {

using compress::bits_per_word;

/// Bits of a count from 0 to n.
int bits_of_count(int n) {
  int bits = 0;
  while (n >> bits != 0) ++bits;
  return bits;
}

/// Blocks of `length` elements: a word of them on the host, one for each lane of a warp on a device.
template <class Exec>
std::size_t blocks_of(std::size_t length) {
  constexpr std::size_t elements = lanes_of_block<Exec> == 1 ? bits_per_word : lanes_of_block<Exec>;
  return (length + elements - 1) / elements;
}

/// The coins of one step and one tosser (`vote_coins`).
struct Coins {
  std::uint64_t seed;
  long step;
  int tosser;

  KOKKOS_FUNCTION std::uint32_t operator()(std::size_t word) const { return vote_coins(seed, step, tosser, word); }
};

/// Bit j of word w ← v(32 w + j) > 0, or a coin where it is 0; 0 for padding. On a device the lanes of a warp make the
/// bits of a word.
template <class Exec>
struct PackSigns {
  static constexpr std::size_t lanes = lanes_of_block<Exec>;
  Vector<Exec, const float> v;
  Vector<Exec, std::uint32_t> words;
  Coins coins;

  KOKKOS_FUNCTION void operator()(std::size_t block, std::size_t lane) const {
    if constexpr (lanes == 1) {
      const std::size_t begin = block * bits_per_word, length = v.extent(0);
      const float* const values = v.data() + begin;
      std::uint32_t positive = 0, zero = 0;
      const auto take = [&](std::size_t j) {
        positive |= static_cast<std::uint32_t>(values[j] > 0) << j;
        zero |= static_cast<std::uint32_t>(values[j] == 0) << j;
      };
      if (begin + bits_per_word <= length) {  // a loop of fixed length is vectorised
        for (std::size_t j = 0; j < bits_per_word; ++j) take(j);
      } else {
        for (std::size_t j = 0; begin + j < length; ++j) take(j);
      }
      words(block) = zero == 0 ? positive : positive | (zero & coins(block));
    } else {
      const std::size_t i = block * lanes + lane, word = i / bits_per_word, bit = i % bits_per_word;
      if (word >= words.extent(0)) return;
      const bool inside = i < v.extent(0), zero = inside && v(i) == 0;
      store_ballot(bit, zero ? (coins(word) >> bit & 1u) != 0 : inside && v(i) > 0, &words(word));
    }
  }
};

/// Counts the votes of a word's 32 elements at once. The counts are in binary, bit k of all of them in `count[k]`, and
/// a ripple-carry adder adds the bits of one sender.
template <class Exec>
struct CountVotes {
  static constexpr int most_planes = 31;
  Vector<Exec, const std::uint32_t> received;  ///< (senders * words)
  Vector<Exec, std::uint32_t> elected;         ///< (words * (majority ? 1 : planes))
  std::size_t words;
  int senders, planes;
  bool majority;
  Coins coins;             ///< of ties
  std::size_t first_word;  ///< of this rank's chunk

  KOKKOS_FUNCTION void operator()(std::size_t word) const {
    std::uint32_t count[most_planes] = {};
    for (int sender = 0; sender < senders; ++sender) {
      std::uint32_t carry = received(sender * words + word);
      for (int k = 0; k < planes; ++k) {
        const std::uint32_t sum = count[k] ^ carry;
        carry &= count[k];
        count[k] = sum;
      }
    }
    if (majority)
      elected(word) = more_than_half(count, word);
    else
      for (int k = 0; k < planes; ++k) elected(word * planes + k) = count[k];
  }

  /// The bits of the elements with count > n/2, and coins for those with count = n/2.
  KOKKOS_FUNCTION std::uint32_t more_than_half(const std::uint32_t* count, std::size_t word) const {
    const std::uint32_t half = static_cast<std::uint32_t>(senders + 1) / 2;
    std::uint32_t at_least = ~0u, equal = ~0u;  // compared with ⌈n/2⌉ from the lowest bit to the highest
    for (int k = 0; k < planes; ++k) {
      const bool bit = (half >> k & 1u) != 0;
      at_least = bit ? count[k] & at_least : count[k] | at_least;
      equal &= bit ? count[k] : ~count[k];
    }
    if (senders % 2 != 0 || equal == 0) return at_least;
    return at_least & (~equal | coins(first_word + word));
  }
};

/// v(i) ← the value of its code, which has `planes` bits: ±1, or (2q − n) / n.
template <class Exec>
struct DecodeVotes {
  static constexpr std::size_t lanes = lanes_of_block<Exec>;
  Vector<Exec, const std::uint32_t> votes;
  Vector<Exec, float> v;
  int senders, planes;
  bool majority;

  KOKKOS_FUNCTION float value(std::uint32_t code) const {
    const int twice = 2 * static_cast<int>(code);
    return majority ? static_cast<float>(twice - 1) : static_cast<float>(twice - senders) / static_cast<float>(senders);
  }
  KOKKOS_FUNCTION void operator()(std::size_t block, std::size_t lane) const {
    if constexpr (lanes == 1) {
      std::uint32_t codes[bits_per_word] = {};
      for (int k = 0; k < planes; ++k) {
        const std::uint32_t word = votes(block * planes + k);
        for (std::size_t j = 0; j < bits_per_word; ++j) codes[j] |= (word >> j & 1u) << k;
      }
      float values[bits_per_word];
      for (std::size_t j = 0; j < bits_per_word; ++j) values[j] = value(codes[j]);
      const std::size_t begin = block * bits_per_word;
      for (std::size_t j = 0; j < bits_per_word && begin + j < v.extent(0); ++j) v(begin + j) = values[j];
    } else {
      const std::size_t i = block * lanes + lane, word = i / bits_per_word;
      if (i >= v.extent(0)) return;
      std::uint32_t code = 0;
      for (int k = 0; k < planes; ++k) code |= (votes(word * planes + k) >> i % bits_per_word & 1u) << k;
      v(i) = value(code);
    }
  }
};

}  // namespace

template <class Exec>
SignVote<Exec>::SignVote(Transport<Exec>& transport, std::size_t length, Vote vote, std::uint64_t seed)
    : m_transport(transport),
      m_vote(vote),
      m_seed(seed),
      m_words(compress::words_of_chunk(length, transport.ranks())),
      m_planes(vote == Vote::majority ? 1 : bits_of_count(transport.ranks())),
      m_send("OneBit::comm::votes", transport.ranks() * m_words),
      m_received("OneBit::comm::received_votes", transport.ranks() * m_words),
      m_elected("OneBit::comm::elected", m_words * m_planes),
      m_gathered("OneBit::comm::gathered_votes", transport.ranks() * m_words * m_planes) {}

template <class Exec>
void SignVote<Exec>::operator()(const Exec& exec, const Vector<Exec, float>& v, long step, PhaseTimes& times) {
  const Region region("OneBit::comm::sign_vote");
  const int ranks = m_transport.ranks(), rank = m_transport.rank();
  const bool alone = ranks == 1, majority = m_vote == Vote::majority;
  Stopwatch watch;
  const auto end_of = [&](Phase phase) {
    fence(exec, "OneBit::comm::end_of_phase");
    times.add(phase, watch.restart());
  };
  for_each_block(exec, "OneBit::comm::pack_signs", blocks_of<Exec>(m_send.extent(0) * bits_per_word),
                 PackSigns<Exec>{v, m_send, {m_seed, step, rank + 1}});
  end_of(Phase::compress);
  if (!alone) m_transport.all_to_all(exec, m_send, m_received);
  end_of(Phase::all_to_all);
  for_each(exec, "OneBit::comm::count_votes", m_words,
           CountVotes<Exec>{alone ? m_send : m_received,
                            m_elected,
                            m_words,
                            ranks,
                            bits_of_count(ranks),
                            majority,
                            {m_seed, step, 0},
                            rank * m_words});
  end_of(Phase::average);
  if (!alone) m_transport.all_gather(exec, m_elected, m_gathered);
  end_of(Phase::all_gather);
  for_each_block(exec, "OneBit::comm::decode_votes", blocks_of<Exec>(v.extent(0)),
                 DecodeVotes<Exec>{alone ? m_elected : m_gathered, v, ranks, m_planes, majority});
  end_of(Phase::update);
}

#define ONEBIT_INSTANTIATE(Exec) template class SignVote<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
