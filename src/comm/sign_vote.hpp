#pragma once
/// \file sign_vote.hpp
/// The vote of the ranks on the sign of each element: the majority (Bernstein et al., *signSGD with Majority Vote*,
/// ICLR 2019), or the average of the signs (Liu et al., *Distributed Lion*, NeurIPS 2024). It sends neither scales nor
/// residuals.

#include <cstdint>

#include "base/random.hpp"
#include "base/timer.hpp"
#include "comm/transport/transport.hpp"

namespace onebit::comm {

/// Fair coins for elements 32 w to 32 w + 31, a bit each: word w % 4 of Philox at (⌊w/4⌋; step, tosser).
/// \param tosser i + 1 for the zeros of rank i, 0 for the ties
KOKKOS_INLINE_FUNCTION std::uint32_t vote_coins(std::uint64_t seed, long step, int tosser, std::size_t word) {
  const Philox4 random = philox(stream_key(seed, Stream::votes), word / 4,
                                static_cast<std::uint64_t>(step) << 32 | static_cast<std::uint32_t>(tosser));
  return random.word[word % 4];
}

/// v ← the vote on the signs s_i of v_i, each +1 or −1.
///
/// 1. Chunk k of the bits of s_i goes to rank k (all-to-all).
/// 2. Rank k counts the q ranks with s_i = +1, element by element.
/// 3. The votes go to all ranks (all-gather), which decode the same bits.
///
/// | vote | value | bits that a server sends for an element |
/// |---|---|---|
/// | `majority` | +1 where 2q > n, −1 where 2q < n | 1 |
/// | `average` | (2q − n) / n | p = ⌈log₂(n+1)⌉, those of q |
///
/// One bit has no 0. So a fair coin decides how a vector's 0 votes, one for each rank, and which sign a tie of an even
/// number of ranks elects; the server tosses that one. A fixed sign would move x in its direction in every step. The
/// coins depend on seed, step and element alone (`vote_coins`).
///
/// A rank sends (n−1) · 4 W and (n−1) · 4 p W bytes, W = ⌈⌈length/32⌉ / n⌉, p = 1 for `majority`. One rank alone sends
/// nothing. The vote is flat where averages are hierarchical, because it counts ranks and not hosts.
template <class Exec>
class SignVote {
public:
  SignVote(Transport<Exec>& transport, std::size_t length, Vote vote, std::uint64_t seed);

  /// \param v (length) this rank's vector, then the vote \param step whose coins are tossed
  void operator()(const Exec& exec, const Vector<Exec, float>& v, long step, PhaseTimes& times);

private:
  using Words = Vector<Exec, std::uint32_t>;

  Transport<Exec>& m_transport;
  Vote m_vote;
  std::uint64_t m_seed;
  std::size_t m_words;          ///< W
  int m_planes;                 ///< p
  Words m_send, m_received;     ///< (ranks * W) bit j of word w is the sign of element 32 w + j
  Words m_elected, m_gathered;  ///< (W * p), (ranks * W * p) bit j of word w p + k is bit k of element 32 w + j
};

}  // namespace onebit::comm
