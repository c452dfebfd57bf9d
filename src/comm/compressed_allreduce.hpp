#pragma once
/// \file compressed_allreduce.hpp
/// The compressed allreduce for other codes (docs/reference/library.md). This header is the one that is installed, so
/// it includes no other of OneBit, and takes pointers: a program needs MPI, and Kokkos only where it wants to.

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace onebit {

/// How vectors are compressed, exchanged and where; the same on every rank.
struct CompressedAllreduceOptions {
  int bits = 1;                   ///< of an element as it travels: 1 for signs, 2 to 16 for QSGD's grid
  std::size_t group = 0;          ///< elements that share a scale, a multiple of 32; 0 for all of a rank's vector
  bool error_feedback = true;     ///< false: what a compression loses is lost
  std::size_t message_bytes = 0;  ///< of messages between all pairs of ranks; 0 for MPI's collectives
  std::string backend;            ///< "serial", "openmp", or "cuda", whose vectors are device memory; empty: the host's
};

/// x ← (1/n) Σ_i x_i, where what travels is compressed and what that loses is added to the next call's vector (Tang et
/// al., ICML 2021, Sections 4.3 and 6). So one result is coarse, but the mean over many calls is that of the vectors: made
/// for momentum and gradients. docs/reference/algorithms.md says what is computed, exactly.
///
/// Kokkos is started where the program has not done so, and then runs until the program ends.
class CompressedAllreduce {
public:
  /// Collective; ends before MPI_Finalize, as the object has a communicator of its own.
  /// \param length of the vectors, the same on every rank
  /// \throws std::runtime_error that says what is wrong with an option, and what to do
  CompressedAllreduce(MPI_Comm communicator, std::size_t length, const CompressedAllreduceOptions& options = {});
  ~CompressedAllreduce();

  /// Collective; complete when it returns, and the same bits on every rank. \param x (length)
  /// \param residual_factor what was lost is multiplied by it before it is added, the same on every rank: where
  ///        averages are weighted by a learning rate γ_t, γ_{t−1}/γ_t makes the weighted sum the vectors' one
  void operator()(float* x, float residual_factor = 1);

  /// Bytes that this rank has handed to MPI for others.
  std::uint64_t bytes_sent() const;

private:
  struct Engine;
  template <class Exec>
  struct EngineOn;
  std::unique_ptr<Engine> m_engine;
};

}  // namespace onebit
