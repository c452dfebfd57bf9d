#pragma once
/// \file compressed_allreduce.hpp
/// The compressed allreduce for other codes (docs/reference/library.md). This is the header that is installed, so it
/// includes no other header of OneBit and takes pointers: a program needs MPI, but not Kokkos.

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

/// \cond as in onebit.h, whose macros the site shows
#define ONEBIT_VERSION "0.1.0"
#define ONEBIT_VERSION_NUMBER 100
/// \endcond

namespace onebit {

/// How vectors are compressed and exchanged; the same on every rank.
struct CompressedAllreduceOptions {
  int bits = 1;                   ///< sent for an element: 1 for signs, 2 to 16 for QSGD's grid
  std::size_t group = 0;          ///< elements that share a scale, a multiple of 32; 0 for the whole vector
  bool error_feedback = true;     ///< false: errors of compression are not corrected
  std::size_t message_bytes = 0;  ///< most bytes of a message between a pair of ranks; 0 for MPI's collectives
  std::string backend;            ///< "serial", "openmp", or "cuda" or "hip" for device memory; empty: the host's
  /// First element of each group of elements that share a scale, ascending from 0: for example the rows of matrices.
  /// They may have any length, and end with a rank's chunk as well. Takes the place of `group`; empty for `group`.
  std::vector<std::size_t> group_begins = {};
  /// Where a rank's chunk may begin, ascending from 0: for example at each matrix, so that no chunk has a part of one.
  /// Chunk k of n begins at the one nearest to k/n of the length. Empty for chunks of one length.
  std::vector<std::size_t> chunk_borders = {};
  /// Of the signs of a group of N elements c: "l1" for ‖c‖₁/N, which has the least error, or "l2" for ‖c‖₂/√N, which is
  /// greater. With one bit an element.
  std::string scale = "l1";
  /// Whether exchanges go along the rows and columns of a grid of ranks: in far fewer messages for hundreds of ranks,
  /// with up to 1.5 times the bytes and the same results. With `message_bytes` 0.
  bool grid = false;
};

/// What the caller makes of a chunk of the average, before it is compressed again and sent to all ranks; it overwrites
/// the chunk. `chunk` is x + first, memory of the object's backend. It is complete when the function is called, and
/// must be when it returns, for every kernel and copy that begins later.
using CallersServer = std::function<void(float* chunk, std::size_t first, std::size_t length)>;

/// Carries the messages of an object where MPI connects no ranks, for example by torch.distributed under torchrun.
/// Every rank calls the same functions in the same order, with the same number of bytes. The pointers are memory of the
/// object's backend, so of a GPU for "cuda" and "hip". `send` is complete when a function is called, and `received`
/// must be complete when it returns, for every kernel and copy that begins later. What a function throws leaves the
/// object's call.
struct CallersTransport {
  int rank = 0;   ///< of this process, from 0 on
  int ranks = 1;  ///< their number
  /// Block r of `send` goes to rank r, and block r of `received` comes from rank r. \param bytes of a block
  std::function<void(const void* send, void* received, std::size_t bytes)> all_to_all;
  /// Block r of `received` is rank r's `send`. \param bytes of `send`
  std::function<void(const void* send, void* received, std::size_t bytes)> all_gather;
};

/// x ← (1/n) Σ_i x_i, compressed with error feedback: the error of one call is added to the vector of the next (Tang et
/// al., ICML 2021, Sections 4.3 and 6). One result is coarse, but the mean over many calls is that of the vectors. This
/// suits momentum and gradients. docs/reference/algorithms/averages.md defines the result. A NaN or infinity in one
/// rank's vector, or numbers so large that float cannot hold their sums, make the call throw on every rank. They stay
/// in the residuals, so that later calls throw, until `set_residuals`. Check before the call.
///
/// Starts Kokkos if the program has not done so; Kokkos then runs until the program ends.
class CompressedAllreduce {
public:
  /// Collective. The object owns a communicator, so it must end before MPI_Finalize.
  /// \param communicator of the ranks that average; the object duplicates it
  /// \param length of the vectors, the same on every rank
  /// \param options the same on every rank
  /// \throws std::runtime_error that says what is wrong with an option, or differs between ranks, and what to do; or
  ///         that a launcher started several processes, of which MPI_COMM_WORLD has one (not for MPI_COMM_SELF)
  CompressedAllreduce(MPI_Comm communicator, std::size_t length, const CompressedAllreduceOptions& options = {});
  /// The same without MPI, which needs not be started; the results have the same bits.
  /// \param transport carries the messages
  /// \param length of the vectors, the same on every rank
  /// \param options the same on every rank, with `message_bytes` 0 and no `grid`
  CompressedAllreduce(CallersTransport transport, std::size_t length, const CompressedAllreduceOptions& options = {});
  ~CompressedAllreduce();

  /// Collective; complete when it returns, with the same bits on every rank. \param x (length)
  /// \param residual_factor multiplies the error of the last call; the same on every rank. If averages are weighted by
  ///        a learning rate γ_t, the factor γ_{t−1}/γ_t makes their weighted sum that of the vectors
  /// \throws std::runtime_error on all ranks if the average is not finite
  void operator()(float* x, float residual_factor = 1);

  /// The same with the caller's server: each rank calls it for its chunk of the average of what the ranks have sent,
  /// and all ranks get what the servers made of their chunks. The server's residual is then the error of what it made.
  /// Residual factors are 1. Collective. \param x (length) \param server not called for an empty chunk
  /// \throws what the server throws, on its rank; all other ranks then throw that the average is not finite
  void run_served(float* x, const CallersServer& server);

  /// Elements of a vector that one rank averages.
  struct Chunk {
    std::size_t first;   ///< element
    std::size_t length;  ///< without padding; 0 for a rank that has none
  };
  /// That of this rank.
  Chunk chunk() const;

  /// Bytes that this rank has sent to others.
  std::uint64_t bytes_sent() const;

  /// Elements of a rank's residuals.
  struct ResidualLengths {
    std::size_t worker;  ///< of δ_i: the length of the vector
    std::size_t server;  ///< of δ̄_k: the length of a chunk with its padding
  };
  /// Those of this rank.
  ResidualLengths residual_lengths() const;
  /// Copies this rank's residuals, which are all of an object's state, to host memory; for checkpoints.
  /// \param worker, server (residual_lengths())
  void get_residuals(float* worker, float* server) const;
  /// Sets the residuals of the next call, from host memory. An object of the same options on the same ranks then goes
  /// on where the one that they come from stood. \param worker, server (residual_lengths())
  void set_residuals(const float* worker, const float* server);

private:
  struct Engine;
  template <class Exec>
  struct EngineOn;
  /// \param options whose backend is started
  /// \param make called with an instance of that backend; returns the engine
  template <class Make>
  void make_engine(const CompressedAllreduceOptions& options, const Make& make);
  std::unique_ptr<Engine> m_engine;
};

}  // namespace onebit
