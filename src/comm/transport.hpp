#pragma once
/// \file transport.hpp
/// The collectives of a training step, between the memories of an execution space. A transport hands device memory to
/// MPI, stages it through host buffers for MPI, or hands it to NCCL (nccl.hpp), and counts the bytes that this rank hands
/// over for other ranks.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/choices.hpp"
#include "base/kokkos.hpp"
#include "base/mpi.hpp"

namespace onebit::comm {

/// Bytes that this rank handed over for other ranks, by collective. An allreduce is counted as the ring's volume,
/// 2 (n−1)/n of the vector, whatever algorithm the MPI library takes.
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

/// Words [begin, end) of a block.
struct BlockPart {
  std::size_t begin, end;
};

/// One exchange of a block of words with every other rank, in parts: what is handed over travels while the caller
/// computes the next part. Receives are posted by `Transport::begin_transfer`.
template <class Exec>
class Transfer {
public:
  using Words = Vector<Exec, std::uint32_t>;
  virtual ~Transfer() = default;

  /// Hands the next part for `rank`, in the order agreed at the begin, over. \param block of words for that rank, which
  /// stay as they are until `finish` returns
  virtual void send(const Exec& exec, int rank, const Words& block) = 0;
  /// Returns when the block of `rank` has come, once for each other rank. This rank's own block is not touched.
  virtual void receive(const Exec& exec, int rank) = 0;
  /// Returns when all that was handed over was sent.
  virtual void finish() = 0;
};

/// Whether the MPI library takes device memory of `Exec`, and how that was found out, in a few words.
struct DeviceSupport {
  bool supported;
  std::string evidence;
};

template <class Exec>
class Transport;

/// The ranks of a hierarchical average: those that share this one's host, and those with its place on each host.
template <class Exec>
struct Hosts {
  Transport<Exec>& local;
  Transport<Exec>& across;
};

/// Collectives on Views of one execution space. Every call returns when its result is complete in `Exec`'s memory.
/// Counts beyond INT_MAX work.
template <class Exec>
class Transport {
public:
  using Words = Vector<Exec, std::uint32_t>;
  virtual ~Transport() = default;

  /// Block r of `send` goes to rank r; block r of `received` came from rank r.
  /// \param send, received (ranks * words)
  virtual void all_to_all(const Exec& exec, const Words& send, const Words& received) = 0;
  /// Block r of `received` is rank r's `send`.
  /// \param send (words) \param received (ranks * words)
  virtual void all_gather(const Exec& exec, const Words& send, const Words& received) = 0;
  /// Sums element by element over ranks, in place.
  virtual void allreduce(const Exec& exec, const Vector<Exec, float>& values) = 0;
  /// Sums elements [begins[r], begins[r+1]) of `values` over ranks, in their order, in place on rank r; the others' stay as
  /// they are. By messages between all pairs. \param begins (ranks + 1) the same on every rank
  virtual void reduce_scatter(const Exec& exec, const Vector<Exec, float>& values,
                              const std::vector<std::size_t>& begins) = 0;

  /// The inverse: rank r's elements [begins[r], begins[r+1]) are copied to all others.
  virtual void all_gather(const Exec& exec, const Vector<Exec, float>& values,
                          const std::vector<std::size_t>& begins) = 0;

  /// Whether exchanges can go in parts: with pairwise messages.
  virtual bool overlaps() const = 0;
  /// Posts the receives of an exchange in parts; nothing unless `overlaps()`.
  /// \param received (ranks * words) \param parts of a block, in the order in which every rank hands them over
  virtual std::unique_ptr<Transfer<Exec>> begin_transfer(const Words& /*received*/,
                                                         const std::vector<BlockPart>& /*parts*/,
                                                         std::uint64_t Traffic::* /*counter*/) {
    return nullptr;
  }

  /// Where averages are hierarchical; none where they are flat.
  virtual const Hosts<Exec>* hosts() const { return nullptr; }

  int rank() const { return m_rank; }
  int ranks() const { return m_ranks; }
  /// "host", "device" or "nccl".
  virtual std::string name() const = 0;
  const DeviceSupport& device_support() const { return m_device_support; }
  /// What went between hosts, or to any other rank where averages are flat.
  virtual Traffic traffic() const { return m_traffic; }
  /// What went through the memory of this host, where averages are hierarchical.
  virtual Traffic traffic_within_host() const { return {}; }

protected:
  explicit Transport(const Communicator& communicator) : m_rank(communicator.rank()), m_ranks(communicator.size()) {}

  // What a call hands over for other ranks.
  void count_all_to_all(std::size_t words_of_all_blocks) {
    m_traffic.all_to_all += words_of_all_blocks / m_ranks * (m_ranks - 1) * sizeof(std::uint32_t);
  }
  void count_all_gather(std::size_t words) { m_traffic.all_gather += words * (m_ranks - 1) * sizeof(std::uint32_t); }
  void count_allreduce(std::size_t length) {
    const std::uint64_t ranks = m_ranks;
    m_traffic.allreduce += 2 * (ranks - 1) * length * sizeof(float) / ranks;
  }
  void count_reduce_scatter(const std::vector<std::size_t>& begins) {
    const std::size_t own = begins[m_rank + 1] - begins[m_rank];
    m_traffic.reduce_scatter += (begins.back() - begins.front() - own) * sizeof(float);
  }

  int m_rank, m_ranks;
  Traffic m_traffic;
  DeviceSupport m_device_support{true, "host memory"};
};

/// How ranks exchange: by the library's collectives, one call each, or by messages between all pairs (pairwise.hpp) of
/// at most so many bytes.
struct Exchange {
  std::size_t message_bytes = 0;  ///< 0: by collectives
};

/// What the MPI library says of device memory of `Exec`.
template <class Exec>
DeviceSupport device_support();

/// Exchanges memory of `Exec` between all ranks by every collective of a transport (probe.hpp), because a library's word
/// is of its build, not of this machine. A library that fails is heard; one that crashes, or does not answer, ends the
/// run with a message that says by what. Collective. To be called where `device_support` says yes.
template <class Exec>
DeviceSupport try_device_memory(const Communicator& communicator, std::size_t largest_count, Exchange exchange);

/// Collective: `automatic` and `device` try device memory where the MPI library says that it takes it.
/// \param largest_count elements that one MPI argument may count; smaller in tests of the large-count path
/// \param exchange      the same on every rank; MPI's, so without effect on `nccl`
/// \throws InputError for `device` where MPI cannot take device memory, and for `nccl` where NCCL cannot be used
template <class Exec>
std::unique_ptr<Transport<Exec>> make_transport(TransportKind kind, const Communicator& communicator,
                                                std::size_t largest_count = std::numeric_limits<int>::max(),
                                                Exchange exchange = {});

}  // namespace onebit::comm
