#pragma once
/// \file transport.hpp
/// The collectives of a training step, between the memories of an execution space. A transport hands device memory to
/// MPI or stages it through host buffers, and counts the bytes that this rank hands over for other ranks.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "base/kokkos.hpp"
#include "base/mpi.hpp"

namespace onebit::comm {

/// Bytes that this rank handed over for other ranks, by collective. An allreduce is counted as the ring's volume,
/// 2 (n−1)/n of the vector, whatever algorithm the MPI library takes.
struct Traffic {
  std::uint64_t allreduce = 0;
  std::uint64_t all_to_all = 0;
  std::uint64_t all_gather = 0;

  std::uint64_t total() const { return allreduce + all_to_all + all_gather; }
};

/// Collectives on Views of one execution space. Every call returns when its result is complete in `Exec`'s memory.
/// Counts beyond INT_MAX work.
template <class Exec>
class Transport {
public:
  using Words = Vector<Exec, std::uint32_t>;
  virtual ~Transport() = default;

  /// Block r of `send` goes to rank r; block r of `received` came from rank r. One MPI_Alltoall.
  /// \param send, received (ranks * words)
  virtual void all_to_all(const Exec& exec, const Words& send, const Words& received) = 0;
  /// Block r of `received` is rank r's `send`. One MPI_Allgather.
  /// \param send (words) \param received (ranks * words)
  virtual void all_gather(const Exec& exec, const Words& send, const Words& received) = 0;
  /// Sums element by element over ranks, in place.
  virtual void allreduce(const Exec& exec, const Vector<Exec, float>& values) = 0;

  /// "host" or "device".
  virtual std::string name() const = 0;
  const Traffic& traffic() const { return m_traffic; }

protected:
  Traffic m_traffic;
};

enum class TransportKind { automatic, host, device };

/// How ranks exchange: by the library's collectives, one call each, or by messages between all pairs (pairwise.hpp) of
/// at most so many bytes.
struct Exchange {
  std::size_t message_bytes = 0;  ///< 0: by collectives
};

/// Whether the MPI library takes device memory of `Exec`, and how that was found out, in a few words.
struct DeviceSupport {
  bool supported;
  std::string evidence;
};
template <class Exec>
DeviceSupport device_support();

/// \param largest_count elements that one MPI argument may count; smaller in tests of the large-count path
/// \param exchange      the same on every rank
/// \throws InputError for `device` where the MPI library says that it cannot take device memory
template <class Exec>
std::unique_ptr<Transport<Exec>> make_transport(TransportKind kind, const Communicator& communicator,
                                                std::size_t largest_count = std::numeric_limits<int>::max(),
                                                Exchange exchange = {});

}  // namespace onebit::comm
