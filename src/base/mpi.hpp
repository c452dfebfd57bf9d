#pragma once
/// \file mpi.hpp
/// MPI with C++ lifetimes, and agreement: how ranks learn that one of them failed, so that all end together.
/// The collectives that a training step is measured by are not here but in `comm`, which counts their bytes.

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace onebit {

/// Starts MPI for its scope, for calls by one thread of a rank at a time. A library that takes calls by the main thread
/// alone will do: `any_thread_may_call` tells.
class MpiSession {
public:
  MpiSession(int& argc, char**& argv);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
};

/// A private duplicate of a communicator.
class Communicator {
public:
  explicit Communicator(MPI_Comm parent = MPI_COMM_WORLD);
  /// The ranks of `parent` that name the same group, by ascending `order` and then rank. Collective.
  Communicator(const Communicator& parent, int group, int order);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return m_rank; }
  int size() const { return m_size; }
  MPI_Comm get() const { return m_comm; }

  /// Rank of this process among those on its host, which chooses its GPU, and their number, which divides the host's
  /// memory. Collective.
  int local_rank() const;
  int local_size() const;
  /// (size) the lowest rank on each rank's host: a number of the host. Collective.
  std::vector<int> hosts() const;
  void barrier() const;
  /// Sums element by element in place, on all ranks.
  void sum(double* values, int count) const;
  /// Σ over ranks, modulo 2⁶⁴.
  std::uint64_t sum(std::uint64_t value) const;
  /// The values of all ranks, rank by rank: (size() * count).
  std::vector<double> gather(const double* values, int count) const;
  /// Root's text on all ranks.
  std::string broadcast(std::string text, int root) const;

  /// Runs `work` on every rank. If it throws on any, all ranks throw one AgreedError that holds the message of the
  /// lowest rank that failed, and its number unless that is 0. `work` must not communicate.
  void collectively(const std::function<void()>& work) const;

private:
  MPI_Comm m_comm = MPI_COMM_NULL;
  int m_rank = 0;
  int m_size = 1;
};

/// Whether threads of a rank may take turns in calling MPI (MPI_THREAD_SERIALIZED or more).
bool any_thread_may_call();

/// Library and version, e.g. "Open MPI v4.1.4".
std::string mpi_library();

}  // namespace onebit
