#pragma once
/// \file mpi.hpp
/// MPI with C++ lifetimes, and agreement: all ranks learn that one of them failed, so that they end together.
/// The collectives of a training step are in `comm`, which counts their bytes.

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace onebit {

/// Starts MPI for its scope, with MPI_THREAD_SERIALIZED where the library offers it (`any_thread_may_call`), and at
/// least MPI_THREAD_FUNNELED. All ranks learn the least that one of them got. Sets OMPI_MCA_sharedfp in the environment
/// where it is not set (mpi.cpp says why).
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
  /// \param parent MPI_COMM_NULL: this process alone, whether MPI runs or not
  explicit Communicator(MPI_Comm parent = MPI_COMM_WORLD);
  /// The ranks of `parent` with the same `group`, by ascending `order` and then rank. Collective.
  Communicator(const Communicator& parent, int group, int order);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return m_rank; }
  int size() const { return m_size; }
  MPI_Comm get() const { return m_comm; }

  /// Rank of this process among those on its host, and their number. Collective.
  int local_rank() const;
  int local_size() const;
  /// (size) the lowest rank on each rank's host, which identifies the host. Collective.
  std::vector<int> hosts() const;
  void barrier() const;
  /// Sums element by element in place, on all ranks.
  void sum(double* values, int count) const;
  /// The sum over ranks, modulo 2⁶⁴.
  std::uint64_t sum(std::uint64_t value) const;
  /// The values of all ranks, rank by rank: (size() * count).
  std::vector<double> gather(const double* values, int count) const;
  /// Root's text on all ranks. \param largest_count most bytes of one MPI argument; smaller in tests
  std::string broadcast(std::string text, int root, std::size_t largest_count = std::numeric_limits<int>::max()) const;

  /// Runs `work` on every rank. If it throws on any rank, all ranks throw an AgreedError with the message of the lowest
  /// rank that failed, and with its number unless that is 0. `work` must not communicate.
  void collectively(const std::function<void()>& work) const;
  /// The same on rank 0 alone.
  void on_root(const std::function<void()>& work) const {
    collectively([&] {
      if (m_rank == 0) work();
    });
  }
  /// The text that `work` returns on rank 0, on all ranks.
  std::string text_of_root(const std::function<std::string()>& work) const {
    std::string text;
    on_root([&] { text = work(); });
    return broadcast(text, 0);
  }

private:
  bool is_without_mpi() const { return m_comm == MPI_COMM_NULL; }

  MPI_Comm m_comm = MPI_COMM_NULL;
  int m_rank = 0;
  int m_size = 1;
};

/// Whether the threads of every rank may take turns in calling MPI (MPI_THREAD_SERIALIZED or more): the same answer on
/// all ranks of an MpiSession, because a rank that took another path than the others would wait for them for ever.
bool any_thread_may_call();

/// Library and version, e.g. "Open MPI v4.1.4".
std::string mpi_library();

}  // namespace onebit
