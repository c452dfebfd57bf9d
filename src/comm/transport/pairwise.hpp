#pragma once
/// \file pairwise.hpp
/// The collectives of a step as messages between all pairs of ranks. Every rank posts all receives and sends at once
/// and begins with its successor, so all links are busy in both directions from the start. MPI's collectives, which
/// take turns or use trees, leave links idle on networks whose bandwidth is the limit.

#include <cstddef>
#include <vector>

#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "base/range.hpp"

namespace onebit::comm {

/// Messages under way. A longer buffer is sent as several messages of at most `message_bytes`, so no count overflows an
/// int. Short messages are also faster on some networks: MPI libraries send them at once, but a long message only after
/// the receiver has answered. Over TCP, Open MPI 4.1 then leaves one direction of a busy link idle
/// (docs/guide/network.md).
class Messages {
public:
  /// \param tag tells these messages from others under way between the same ranks
  Messages(const Communicator& communicator, std::size_t message_bytes, int tag = 0)
      : m_communicator(&communicator), m_message_bytes(message_bytes), m_tag(tag) {}

  void receive(int from, void* buffer, std::size_t bytes);
  void send(int to, const void* buffer, std::size_t bytes);
  /// Waits for all.
  void wait();

private:
  const Communicator* m_communicator;
  std::size_t m_message_bytes;
  int m_tag;
  std::vector<MPI_Request> m_requests;
};

/// Sends `bytes` at send + r · send_stride to each rank r, and receives those of rank r at received + r · bytes. An
/// all-to-all has send_stride = bytes; an all-gather has 0.
void exchange_messages(const Communicator& communicator, std::size_t message_bytes, const void* send,
                       std::size_t send_stride, void* received, std::size_t bytes);

/// Sends range r of `values` to each other rank r, and receives that of `received` from it, as
/// Transport::exchange_ranges. \param sent, received (ranks)
void exchange_ranges(const Communicator& communicator, std::size_t message_bytes, float* values,
                     const std::vector<Range>& sent, const std::vector<Range>& received);

/// own[i] ← Σ terms[rank * stride + i], added in rank order; the term of rank `self` is own[i].
/// \param own (length) \param terms (ranks * stride); those of `self` are not read
template <class Exec>
void sum_terms(const Exec& exec, int ranks, int self, const float* terms, std::size_t stride, std::size_t length,
               float* own);

/// Sums over ranks, added in rank order, so the bits do not depend on the algorithm that an MPI library takes.
///
/// Rank k sums chunk k and sends the sums to all ranks that need them. It works on one range of the chunk after the
/// other: while the sums of one range travel, so do the terms of the next.
template <class Exec>
class PairwiseSum {
public:
  PairwiseSum(const Communicator& communicator, std::size_t message_bytes)
      : m_communicator(communicator), m_message_bytes(message_bytes) {}

  /// values ← their sum. \param values (length) in memory that both MPI and `exec` can use
  void operator()(const Exec& exec, float* values, std::size_t length);
  /// Only rank k's elements [begins[k], begins[k+1]) ← their sum. \param begins (ranks + 1)
  void scatter(const Exec& exec, float* values, const std::vector<std::size_t>& begins);
  /// Frees the memory for terms. The next sum allocates it again.
  void free_terms() { m_terms[0] = m_terms[1] = {}; }

private:
  void sum(const Exec& exec, float* values, const std::vector<std::size_t>& begins, bool gathers);

  /// Most elements of a range: enough that messages take longer than ranks wait for each other.
  static constexpr std::size_t range_length = std::size_t{1} << 19;

  const Communicator& m_communicator;
  std::size_t m_message_bytes;
  Vector<Exec, float> m_terms[2];  ///< (ranks * range) terms of this rank's range: one is summed, the next arrives
};

}  // namespace onebit::comm
