#pragma once
/// \file transport.hpp
/// The collectives of a training step on the memory of an execution space. A transport gives device memory to MPI,
/// copies it to host memory for MPI, or gives it to NCCL (nccl.hpp). It counts the bytes that this rank sends.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/choices.hpp"
#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "base/range.hpp"
#include "comm/transport/transfer.hpp"

namespace onebit::comm {

/// Bytes that this rank sent to other ranks, by collective. An allreduce counts as a ring's 2 (n−1)/n of the vector,
/// because MPI does not say which algorithm it takes.
struct Traffic {
  std::uint64_t allreduce = 0;
  std::uint64_t all_to_all = 0;
  std::uint64_t all_gather = 0;
  std::uint64_t reduce_scatter = 0;

  std::uint64_t total() const { return allreduce + all_to_all + all_gather + reduce_scatter; }
  Traffic& operator+=(const Traffic& other) {
    allreduce += other.allreduce;
    all_to_all += other.all_to_all;
    all_gather += other.all_gather;
    reduce_scatter += other.reduce_scatter;
    return *this;
  }
};

/// Whether the MPI library takes device memory of `Exec`, and how the program found out.
struct DeviceSupport {
  bool supported;
  std::string evidence;
};

template <class Exec>
class Transport;

/// The two steps of a hierarchical average: among the ranks of this host, and among the ranks of the same local number
/// on all hosts.
template <class Exec>
struct Hosts {
  Transport<Exec>& local;
  Transport<Exec>& across;
};

/// Exchanges messages of equal length between all ranks, in Views of one execution space: all that a compressed
/// allreduce needs. A call returns when its result is complete. Lengths may exceed INT_MAX.
template <class Exec>
class Messenger {
public:
  using Words = Vector<Exec, std::uint32_t>;
  virtual ~Messenger() = default;

  /// Message r of `send` goes to rank r; message r of `received` came from rank r.
  /// \param send, received (ranks * words)
  virtual void all_to_all(const Exec& exec, const Words& send, const Words& received) = 0;
  /// Message r of `received` is rank r's `send`.
  /// \param send (words) \param received (ranks * words)
  virtual void all_gather(const Exec& exec, const Words& send, const Words& received) = 0;

  /// Whether messages can be sent range by range.
  virtual bool overlaps() const = 0;
  /// Posts the receives of such an exchange; nullptr unless `overlaps()`. All ranks begin the same transfers in the
  /// same order. Several may be under way, and a rank may then send and receive them in any order. \param received
  /// (ranks * words) \param ranges of a message, in the order in which every rank sends them
  virtual std::unique_ptr<Transfer<Exec>> begin_transfer(const Words& /*received*/,
                                                         const std::vector<Range>& /*ranges*/,
                                                         std::uint64_t Traffic::* /*counter*/) {
    return nullptr;
  }

  int rank() const { return m_rank; }
  int ranks() const { return m_ranks; }
  /// Bytes to all other ranks; to other hosts if averages are hierarchical.
  virtual Traffic traffic() const { return m_traffic; }

protected:
  Messenger(int rank, int ranks) : m_rank(rank), m_ranks(ranks) {}

  void count_all_to_all(std::size_t words_of_all_messages) {
    m_traffic.all_to_all += words_of_all_messages / m_ranks * (m_ranks - 1) * sizeof(std::uint32_t);
  }
  void count_all_gather(std::size_t words) { m_traffic.all_gather += words * (m_ranks - 1) * sizeof(std::uint32_t); }

  int m_rank, m_ranks;
  Traffic m_traffic;
};

/// A messenger with the dense collectives, over the ranks of a communicator.
template <class Exec>
class Transport : public Messenger<Exec> {
public:
  using Messenger<Exec>::all_gather;

  /// Sums element by element over ranks, in place.
  virtual void allreduce(const Exec& exec, const Vector<Exec, float>& values) = 0;
  /// Rank r's elements [begins[r], begins[r+1]) of `values` ← their sum over ranks, added in rank order.
  /// \param begins (ranks + 1) the same on every rank
  virtual void reduce_scatter(const Exec& exec, const Vector<Exec, float>& values,
                              const std::vector<std::size_t>& begins) = 0;
  /// Sends range r of `values` to each other rank r, and receives that of `received` from it. What a rank receives it
  /// does not send. \param sent, received (ranks) \param counter of the bytes that are sent
  virtual void exchange_ranges(const Exec& exec, const Vector<Exec, float>& values, const std::vector<Range>& sent,
                               const std::vector<Range>& received, std::uint64_t Traffic::*counter) = 0;
  /// Copies rank r's elements [begins[r], begins[r+1]) to all other ranks.
  void all_gather(const Exec& exec, const Vector<Exec, float>& values, const std::vector<std::size_t>& begins) {
    const Region region("OneBit::comm::all_gather", waits_for_ranks);
    const std::vector<Range> sent(this->m_ranks, range_of(begins, this->m_rank));
    std::vector<Range> received;
    for (int rank = 0; rank < this->m_ranks; ++rank) received.push_back(range_of(begins, rank));
    exchange_ranges(exec, values, sent, received, &Traffic::all_gather);
  }
  /// Rank r, which has elements [from[r], from[r+1]) of `values`, gets elements [to[r], to[r+1]). It counts as an
  /// all-to-all. \param from, to (ranks + 1) the same on every rank
  void redistribute(const Exec& exec, const Vector<Exec, float>& values, const std::vector<std::size_t>& from,
                    const std::vector<std::size_t>& to) {
    const Region region("OneBit::comm::redistribute", waits_for_ranks);
    const Range has = range_of(from, this->m_rank), gets = range_of(to, this->m_rank);
    const std::size_t first = std::min(has.begin, gets.begin), end = std::max(has.end, gets.end);
    const auto in_both = [&](Range a, Range b) { return Range{common(a, b).begin - first, common(a, b).end - first}; };
    std::vector<Range> sent, received;
    for (int rank = 0; rank < this->m_ranks; ++rank) {
      sent.push_back(in_both(has, range_of(to, rank)));
      received.push_back(in_both(gets, range_of(from, rank)));
    }
    exchange_ranges(exec, Kokkos::subview(values, std::make_pair(first, end)), sent, received, &Traffic::all_to_all);
  }

  /// Frees the memory that sums take beside their vectors. The next sum allocates it again.
  virtual void free_sums() {}

  /// Not nullptr if averages are hierarchical.
  virtual const Hosts<Exec>* hosts() const { return nullptr; }

  /// Not `automatic`.
  virtual TransportKind kind() const = 0;
  const DeviceSupport& device_support() const { return m_device_support; }
  /// Bytes to ranks of this host if averages are hierarchical, else 0.
  virtual Traffic traffic_within_host() const { return {}; }

protected:
  explicit Transport(const Communicator& communicator) : Messenger<Exec>(communicator.rank(), communicator.size()) {}

  void count_allreduce(std::size_t length) {
    const std::uint64_t ranks = this->m_ranks;
    this->m_traffic.allreduce += 2 * (ranks - 1) * length * sizeof(float) / ranks;
  }
  void count_reduce_scatter(const std::vector<std::size_t>& begins) {
    const std::size_t own = begins[this->m_rank + 1] - begins[this->m_rank];
    this->m_traffic.reduce_scatter += (begins.back() - begins.front() - own) * sizeof(float);
  }
  void count_ranges(const std::vector<Range>& sent, std::uint64_t Traffic::*counter) {
    for (int rank = 0; rank < this->m_ranks; ++rank)
      if (rank != this->m_rank) this->m_traffic.*counter += sent[rank].length() * sizeof(float);
  }

  DeviceSupport m_device_support{true, "host memory"};
};

/// How ranks exchange: by MPI's collectives, by messages between all pairs of ranks (pairwise.hpp), or by MPI's
/// collectives along the rows and columns of a grid (combined/grid.hpp).
struct Exchange {
  std::size_t message_bytes = 0;  ///< most bytes of a pairwise message; 0: collectives
  bool stages_host = false;       ///< whether host memory is staged as well, so that tests reach that code anywhere
  bool grid = false;              ///< with message_bytes 0
  /// Most elements of a call of MPI's collectives; smaller in tests. Longer vectors go in several sums, or in messages.
  std::size_t largest_count = std::numeric_limits<int>::max();
};

/// Asks the MPI library whether it takes device memory of `Exec`.
template <class Exec>
DeviceSupport device_support();

/// What remains of a library's support if Kokkos allocates from a pool (`allocates_from_pool`): nothing, because a
/// library may take such memory in a trial and still crash with CUDA IPC or another network.
DeviceSupport without_pools(DeviceSupport said, bool from_pool);

/// Whether device memory is tried (`try_device_memory`). `automatic` believes a library that says no. `device` is the
/// user's word that the library takes it: one whose own answer is no may do so by another library (UCX). Neither tries
/// memory from a pool.
bool is_tried(TransportKind kind, const DeviceSupport& said, bool from_pool);

/// Tries every collective of a transport on device memory (probe.hpp), because an MPI library that was built for it may
/// still fail on this machine. The result reports an MPI error. If the library crashes, or does not answer within a
/// minute, the run ends with a message. Collective.
template <class Exec>
DeviceSupport try_device_memory(const Communicator& communicator, Exchange exchange);

/// Collective. `automatic` tries device memory if the MPI library says that it takes it, `device` in any case.
/// \param exchange the same on every rank; without effect on `nccl`
/// \throws InputError for `device` if MPI cannot take device memory, and for `nccl` if NCCL cannot be used
template <class Exec>
std::unique_ptr<Transport<Exec>> make_transport(TransportKind kind, const Communicator& communicator,
                                                Exchange exchange = {});

}  // namespace onebit::comm
