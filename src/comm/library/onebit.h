#ifndef ONEBIT_H
#define ONEBIT_H
/// \file onebit.h
/// The compressed allreduce for C, and for languages that call C (docs/reference/library.md). This header is installed
/// with the shared library, so it includes no other header of OneBit; it is C99 and C++.
///
/// Every function that can fail returns ONEBIT_SUCCESS or an error, and never throws. An error of one rank is known to
/// that rank alone: the others may wait for it, so it should end all of them (MPI_Abort). Errors of MPI go to the error
/// handler of the communicator, which by default ends all ranks.

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// OneBit's version: that of CMakeLists.txt, which checks it.
#define ONEBIT_VERSION "0.1.0"
/// The same as a number: 10000 · major + 100 · minor + patch.
#define ONEBIT_VERSION_NUMBER 100

/// Of this header. Grows when a program that was compiled with an older header could not use the library. Functions may
/// be added without that; an older library of this version then lacks their names.
#define ONEBIT_ABI_VERSION 1
/// Of the library; another number than ONEBIT_ABI_VERSION means that the two do not fit.
int onebit_abi_version(void);

/// What functions return. The numbers are the exit statuses of the program `onebit`.
#define ONEBIT_SUCCESS 0
#define ONEBIT_FAILED 1     ///< the arguments are right, but the work failed
#define ONEBIT_BAD_INPUT 2  ///< an argument cannot be used
/// What the last error of the calling thread was, and what to do; "" before the first. Valid until the thread's next
/// error.
const char* onebit_last_error(void);

/// How vectors are compressed and exchanged; the same on every rank.
typedef struct onebit_options {
  size_t size;           ///< sizeof(onebit_options): a later version appends members, which are then at their defaults
  int bits;              ///< sent for an element: 1 for signs, 2 to 16 for QSGD's grid
  int error_feedback;    ///< 0: errors of compression are not corrected
  size_t group;          ///< elements that share a scale, a multiple of 32; 0 for the whole vector
  size_t message_bytes;  ///< most bytes of a message between a pair of ranks; 0 for MPI's collectives
  const char* backend;   ///< "serial", "openmp", or "cuda" or "hip" for device memory; NULL or "": the host's
  /// First element of each group of elements that share a scale, ascending from 0, of any length; in the place of
  /// `group`. NULL for `group`. It is copied.
  const size_t* group_begins;
  size_t groups;  ///< elements of group_begins
  /// Where a rank's chunk may begin, ascending from 0: chunk k of n begins at the one nearest to k/n of the length.
  /// NULL for chunks of one length. It is copied.
  const size_t* chunk_borders;
  size_t borders;  ///< elements of chunk_borders
  /// Of the signs of a group of N elements c: "l1" for ‖c‖₁/N, "l2" for the greater ‖c‖₂/√N; NULL or "": "l1".
  const char* scale;
  /// Not 0: exchanges go along the rows and columns of a grid of ranks, in far fewer messages for hundreds of ranks and
  /// with the same bits; with message_bytes 0. A size_t, because padding behind it would hide a later member.
  size_t grid;
} onebit_options;
/// The defaults: onebit_options options = ONEBIT_OPTIONS_DEFAULT;
#define ONEBIT_OPTIONS_DEFAULT \
  { sizeof(onebit_options), 1, 1, 0, 0, NULL, NULL, 0, NULL, 0, NULL, 0 }

/// Carries an object's messages where MPI connects no ranks, for example by torch.distributed under torchrun; all ranks
/// call the same functions in the same order. The functions return 0, or another number if they failed. Pointers are
/// memory of the object's backend, so of a GPU for "cuda" and "hip". `send` is complete when a function is called, and
/// `received` must be complete when it returns, for every kernel and copy that begins later.
typedef struct onebit_transport {
  size_t size;    ///< sizeof(onebit_transport)
  int rank;       ///< of this process, from 0 on
  int ranks;      ///< their number
  void* context;  ///< what the functions get
  /// Block r of `send` goes to rank r, and block r of `received` comes from rank r. A block has `bytes`.
  int (*all_to_all)(void* context, const void* send, void* received, size_t bytes);
  /// Block r of `received` is rank r's `send`, of `bytes`.
  int (*all_gather)(void* context, const void* send, void* received, size_t bytes);
} onebit_transport;

/// Whether the ranks that MPI sees are the processes that a launcher started; MPI must have been started.
/// ONEBIT_BAD_INPUT, with a remedy, where environment variables say that a launcher started several processes and
/// MPI_COMM_WORLD has one rank. onebit_allreduce_create refuses such a process by itself, unless for MPI_COMM_SELF.
int onebit_check_launch(void);

/// Averages one vector, x ← (1/n) Σ_i x_i, compressed with error feedback; onebit::CompressedAllreduce of
/// compressed_allreduce.hpp. It keeps the vector's residuals and a communicator of its own.
typedef struct onebit_allreduce onebit_allreduce;

/// Collective; MPI must have been started. Starts Kokkos if nobody has; Kokkos then runs until the program ends.
/// \param communicator of the ranks that average; the object makes a duplicate of it
/// \param length       of the vectors, at least 1 and the same on every rank
/// \param options      NULL for the defaults
/// \param made         the new object, which onebit_allreduce_destroy ends
int onebit_allreduce_create(MPI_Comm communicator, size_t length, const onebit_options* options,
                            onebit_allreduce** made);
/// The same with Fortran's handle (MPI_Comm_c2f), which other languages have too: mpi4py calls it `comm.py2f()`.
int onebit_allreduce_create_f(MPI_Fint communicator, size_t length, const onebit_options* options,
                              onebit_allreduce** made);
/// The same without MPI, which needs not be started; the results have the same bits.
/// \param transport carries the messages; it is copied. Its functions are called within onebit_allreduce_create_with
///        and onebit_allreduce_run, in the calling thread
/// \param length    of the vectors, at least 1 and the same on every rank
/// \param options   NULL for the defaults; with message_bytes and grid 0
/// \param made      the new object, which onebit_allreduce_destroy ends
int onebit_allreduce_create_with(const onebit_transport* transport, size_t length, const onebit_options* options,
                                 onebit_allreduce** made);

/// Collective; complete when it returns, with the same bits on every rank. ONEBIT_BAD_INPUT on all ranks if the average
/// is not finite: NaN, infinity and too large numbers stay in the residuals, until they are set.
/// \param allreduce of this vector
/// \param x (length) this rank's vector, then the average; device memory for the backends "cuda" and "hip"
/// \param residual_factor multiplies the error of the last call, the same on every rank; usually 1. If averages are
///        weighted by a learning rate γ_t, the factor γ_{t−1}/γ_t makes their weighted sum that of the vectors
int onebit_allreduce_run(onebit_allreduce* allreduce, float* x, float residual_factor);

/// What the caller makes of this rank's chunk of an average, before it is compressed again and sent to all ranks; it
/// overwrites the chunk. Returns 0, or another number if it failed.
/// \param context what onebit_allreduce_run_served was given
/// \param chunk (length) x + first: memory of the object's backend. It is complete when the function is called, and
///        must be when it returns, for every kernel and copy that begins later
/// \param first, length the elements of the chunk; the length is not 0
typedef int (*onebit_server)(void* context, float* chunk, size_t first, size_t length);
/// onebit_allreduce_run with a residual factor of 1 and a server of the caller's on every rank, which is called once,
/// in the calling thread, or not at all for an empty chunk. The residual of the server is the error of what it made.
/// ONEBIT_FAILED if this rank's server failed; ONEBIT_BAD_INPUT on all other ranks, because the average is not finite.
/// \param allreduce of this vector
/// \param x (length) this rank's vector, then what the servers made of the average
/// \param server of this rank
/// \param context what the server gets
int onebit_allreduce_run_served(onebit_allreduce* allreduce, float* x, onebit_server server, void* context);

/// This rank's chunk: the elements that it averages.
/// \param allreduce whose chunk
/// \param first element of it
/// \param length without padding; 0 for a rank that has none
int onebit_allreduce_chunk(const onebit_allreduce* allreduce, size_t* first, size_t* length);

/// Bytes that this rank has sent to others.
int onebit_allreduce_bytes_sent(const onebit_allreduce* allreduce, uint64_t* bytes);

/// Elements of this rank's residuals, the error of the last call: all of an object's state, for checkpoints.
/// \param allreduce whose residuals
/// \param worker of what this rank sends: the length of the vectors
/// \param server of the chunk that this rank averages, with its padding
int onebit_allreduce_residual_lengths(const onebit_allreduce* allreduce, size_t* worker, size_t* server);
/// Copies them to host memory.
/// \param allreduce whose residuals
/// \param worker, server of these lengths
int onebit_allreduce_get_residuals(const onebit_allreduce* allreduce, float* worker, float* server);
/// Sets those of the next call, from host memory. An object of the same options on the same ranks then goes on where
/// the one that they come from stood.
/// \param allreduce whose residuals
/// \param worker, server of these lengths
int onebit_allreduce_set_residuals(onebit_allreduce* allreduce, const float* worker, const float* server);

/// Collective and before MPI_Finalize, unless the object has a transport of the caller. NULL is allowed.
int onebit_allreduce_destroy(onebit_allreduce* allreduce);

#ifdef __cplusplus
}
#endif
#endif
