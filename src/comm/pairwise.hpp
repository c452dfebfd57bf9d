#pragma once
/// \file pairwise.hpp
/// The collectives of a step as plain messages: every rank posts its receives and sends to all others at once, each rank
/// beginning with its successor, so that all links are busy in both directions from the first moment. Library
/// collectives that take turns, or a tree, leave links idle on networks where bandwidth is what counts.

#include <cstddef>
#include <vector>

#include "base/kokkos.hpp"
#include "base/mpi.hpp"

namespace onebit::comm {

/// Messages under way. What is longer than `message_bytes` goes in several messages, which makes counts that overflow
/// an int impossible, and has a purpose: a library sends messages up to some length at once, and longer ones only
/// after an answer from the receiver. Open MPI 4.1 over TCP then leaves one direction of a busy link idle (measured:
/// docs/guide/network.md).
class Messages {
public:
  Messages(const Communicator& communicator, std::size_t message_bytes)
      : m_communicator(&communicator), m_message_bytes(message_bytes) {}

  void receive(int from, void* buffer, std::size_t bytes);
  void send(int to, const void* buffer, std::size_t bytes);
  /// Until all are complete.
  void wait();

private:
  const Communicator* m_communicator;
  std::size_t m_message_bytes;
  std::vector<MPI_Request> m_requests;
};

/// Block r of `send` goes to rank r; block r of `received` came from rank r. \param block_bytes of one block
void all_to_all(const Communicator& communicator, std::size_t message_bytes, const void* send, void* received,
                std::size_t block_bytes);

/// Block r of `received` is rank r's `send`.
void all_gather(const Communicator& communicator, std::size_t message_bytes, const void* send, void* received,
                std::size_t block_bytes);

/// Rank r's elements [begins[r], begins[r+1]) are copied to all others. \param begins (ranks + 1)
void all_gather_ranges(const Communicator& communicator, std::size_t message_bytes, float* values,
                       const std::vector<std::size_t>& begins);

/// Adds in the order of the ranks: own[i] ← Σ terms[rank * stride + i], where rank `self`'s term is own[i].
/// \param own (length) \param terms (ranks * stride), of which those of `self` are not looked at
template <class Exec>
void sum_terms(const Exec& exec, int ranks, int self, const float* terms, std::size_t stride, std::size_t length,
               float* own);

/// Sums over ranks, in the order of the ranks, so the bits depend on no library's choice of an algorithm.
///
/// Rank k sums chunk k and, for a sum that all need, sends it to all. Chunks are cut into slices: while one slice's sums
/// travel back the next slice's terms are on their way.
template <class Exec>
class PairwiseSum {
public:
  PairwiseSum(const Communicator& communicator, std::size_t message_bytes)
      : m_communicator(communicator), m_message_bytes(message_bytes) {}

  /// \param values (length) in memory that both MPI and `exec` can use; overwritten by the sum
  void operator()(const Exec& exec, float* values, std::size_t length);
  /// Rank k's elements [begins[k], begins[k+1]) are overwritten by their sum, and no others. \param begins (ranks + 1)
  void scatter(const Exec& exec, float* values, const std::vector<std::size_t>& begins);

private:
  /// What both do.
  void sum(const Exec& exec, float* values, const std::vector<std::size_t>& begins, bool gathers);

  /// Elements of a slice: enough to cover the time in which ranks wait for each other.
  static constexpr std::size_t slice_length = std::size_t{1} << 19;

  const Communicator& m_communicator;
  std::size_t m_message_bytes;
  Vector<Exec, float> m_terms[2];  ///< (n * slice) terms of this rank's slice, by rank; one set is summed, one arrives
};

}  // namespace onebit::comm
