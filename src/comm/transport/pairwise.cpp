#include "comm/transport/pairwise.hpp"

#include <algorithm>
#include <thread>

#include "base/device/parallel.hpp"
#include "base/system/activity.hpp"

namespace onebit::comm {
namespace {

/// Visits the successor of this rank first, so that all ranks do not send to the same one at once.
template <class Visit>
void for_each_other(const Communicator& communicator, const Visit& visit) {
  const int ranks = communicator.size();
  for (int distance = 1; distance < ranks; ++distance) visit((communicator.rank() + distance) % ranks);
}

}  // namespace

void Messages::receive(int from, void* buffer, std::size_t bytes) {
  char* const begin = static_cast<char*>(buffer);
  for (std::size_t done = 0; done < bytes; done += m_message_bytes) {
    const int count = static_cast<int>(std::min(m_message_bytes, bytes - done));
    MPI_Irecv(begin + done, count, MPI_BYTE, from, m_tag, m_communicator->get(), &m_requests.emplace_back());
  }
}

void Messages::send(int to, const void* buffer, std::size_t bytes) {
  const char* const begin = static_cast<const char*>(buffer);
  for (std::size_t done = 0; done < bytes; done += m_message_bytes) {
    const int count = static_cast<int>(std::min(m_message_bytes, bytes - done));
    MPI_Isend(begin + done, count, MPI_BYTE, to, m_tag, m_communicator->get(), &m_requests.emplace_back());
  }
}

void Messages::wait() {
  const Activity activity("OneBit::comm::messages", waits_for_ranks);
  // MPI_Waitall would keep the core busy, which another thread or rank may need (OverlappedAverage).
  for (int complete = 0; complete == 0;) {
    // An error ends the run, unless a handler keeps it (probe.hpp).
    if (MPI_Testall(static_cast<int>(m_requests.size()), m_requests.data(), &complete, MPI_STATUSES_IGNORE) !=
        MPI_SUCCESS)
      break;
    if (complete == 0) std::this_thread::yield();
  }
  m_requests.clear();
}

void exchange_messages(const Communicator& communicator, std::size_t message_bytes, const void* send,
                       std::size_t send_stride, void* received, std::size_t bytes) {
  const auto* const from = static_cast<const char*>(send);
  auto* const to = static_cast<char*>(received);
  const int self = communicator.rank();
  Messages messages(communicator, message_bytes);
  for_each_other(communicator, [&](int rank) { messages.receive(rank, to + rank * bytes, bytes); });
  for_each_other(communicator, [&](int rank) { messages.send(rank, from + rank * send_stride, bytes); });
  // MPI copies this rank's own message too, because it may be device memory.
  messages.receive(self, to + self * bytes, bytes);
  messages.send(self, from + self * send_stride, bytes);
  messages.wait();
}

void exchange_ranges(const Communicator& communicator, std::size_t message_bytes, float* values,
                     const std::vector<Range>& sent, const std::vector<Range>& received) {
  Messages messages(communicator, message_bytes);
  for_each_other(communicator, [&](int rank) {
    messages.receive(rank, values + received[rank].begin, received[rank].length() * sizeof(float));
  });
  for_each_other(communicator, [&](int rank) {
    messages.send(rank, values + sent[rank].begin, sent[rank].length() * sizeof(float));
  });
  messages.wait();
}

template <class Exec>
void sum_terms(const Exec& exec, int ranks, int self, const float* terms, std::size_t stride, std::size_t length,
               float* own) {
  for_each(
      exec, "OneBit::comm::sum_terms", length, KOKKOS_LAMBDA(std::size_t i) {
        float sum = 0;
        for (int rank = 0; rank < ranks; ++rank) sum += rank == self ? own[i] : terms[rank * stride + i];
        own[i] = sum;
      });
}

template <class Exec>
void PairwiseSum<Exec>::operator()(const Exec& exec, float* values, std::size_t length) {
  const std::size_t ranks = m_communicator.size(), chunk = (length + ranks - 1) / ranks;
  std::vector<std::size_t> begins;
  for (std::size_t rank = 0; rank <= ranks; ++rank) begins.push_back(std::min(length, rank * chunk));
  sum(exec, values, begins, true);
}

template <class Exec>
void PairwiseSum<Exec>::scatter(const Exec& exec, float* values, const std::vector<std::size_t>& begins) {
  sum(exec, values, begins, false);
}

template <class Exec>
void PairwiseSum<Exec>::sum(const Exec& exec, float* values, const std::vector<std::size_t>& begins, bool gathers) {
  const Region region("OneBit::comm::pairwise_sum");
  const int ranks = m_communicator.size(), self = m_communicator.rank();
  std::size_t longest_chunk = 0;
  for (int rank = 0; rank < ranks; ++rank) longest_chunk = std::max(longest_chunk, begins[rank + 1] - begins[rank]);
  const std::size_t stride = std::min(range_length, longest_chunk);
  if (stride == 0) return;
  if (m_terms[0].extent(0) < ranks * stride)
    for (auto& terms : m_terms) terms = make_uninitialized<Exec, float>("OneBit::comm::terms", ranks * stride);

  const auto range_of = [&](int rank, std::size_t number) {
    const std::size_t begin = std::min(begins[rank + 1], begins[rank] + number * stride);
    return Range{begin, std::min(begins[rank + 1], begin + stride)};
  };
  const auto bytes = [](const Range& range) { return (range.end - range.begin) * sizeof(float); };
  const auto post_terms = [&](std::size_t number, Messages& messages) {
    float* const terms = m_terms[number % 2].data();
    const Range mine = range_of(self, number);
    for_each_other(m_communicator, [&](int rank) { messages.receive(rank, terms + rank * stride, bytes(mine)); });
    for_each_other(m_communicator, [&](int rank) {
      const Range theirs = range_of(rank, number);
      messages.send(rank, values + theirs.begin, bytes(theirs));
    });
  };
  const auto post_sums = [&](std::size_t number, Messages& messages) {
    const Range mine = range_of(self, number);
    for_each_other(m_communicator, [&](int rank) {
      const Range theirs = range_of(rank, number);
      messages.receive(rank, values + theirs.begin, bytes(theirs));
    });
    for_each_other(m_communicator, [&](int rank) { messages.send(rank, values + mine.begin, bytes(mine)); });
  };

  // One tag is enough: MPI matches the messages of two ranks in the order in which they are posted,
  // and all ranks post terms 0, (terms 1, sums 0), (terms 2, sums 1), …
  const std::size_t ranges = (longest_chunk + stride - 1) / stride;
  Messages terms_under_way(m_communicator, m_message_bytes), sums_under_way(m_communicator, m_message_bytes);
  post_terms(0, terms_under_way);
  for (std::size_t number = 0; number < ranges; ++number) {
    terms_under_way.wait();
    if (number + 1 < ranges) post_terms(number + 1, terms_under_way);
    const Range mine = range_of(self, number);
    sum_terms(exec, ranks, self, m_terms[number % 2].data(), stride, mine.end - mine.begin, values + mine.begin);
    fence(exec, "OneBit::comm::sum_terms");
    if (!gathers) continue;
    sums_under_way.wait();
    post_sums(number, sums_under_way);
  }
  sums_under_way.wait();
}

#define ONEBIT_INSTANTIATE(Exec)    \
  template class PairwiseSum<Exec>; \
  template void sum_terms(const Exec&, int, int, const float*, std::size_t, std::size_t, float*);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
