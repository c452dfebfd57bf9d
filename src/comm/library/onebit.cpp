/// \file onebit.cpp
/// C's view of comm/library/compressed_allreduce.hpp: no exception leaves these functions.

#include "comm/library/onebit.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/system/launcher.hpp"
#include "comm/library/compressed_allreduce.hpp"

struct onebit_allreduce {
  onebit::CompressedAllreduce allreduce;
  bool needs_mpi;
};

namespace {

using onebit::InputError;

thread_local std::string last_error;

int fail(int status, const char* message) noexcept {
  try {
    last_error = message;
  } catch (...) {
    last_error.clear();  // no memory for the message
  }
  return status;
}

/// Runs `work`. \returns what a C function returns
template <class Work>
int guarded(const Work& work) noexcept {
  try {
    work();
    return ONEBIT_SUCCESS;
  } catch (const std::exception& error) {
    try {
      const onebit::Error described = onebit::describe(error);
      return fail(static_cast<int>(described.status()), described.what());
    } catch (...) {
      return fail(ONEBIT_FAILED, error.what());
    }
  } catch (...) {
    return fail(ONEBIT_FAILED, "an exception of an unknown type\n  remedy: report it");
  }
}

template <class T>
T* checked(T* pointer, const char* function, const char* name) {
  if (pointer == nullptr)
    throw InputError(function, std::string(name) + " is a null pointer", "pass the address of an object");
  return pointer;
}

void check_mpi(const char* function) {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started == 0)
    throw InputError(function, "MPI has not been started",
                     "call MPI_Init first, that of the MPI which this library uses");
  if (ended != 0) throw InputError(function, "MPI has ended", "call it before MPI_Finalize");
}

/// Throws what a function of the caller's has reported. \param where of the library calls it \param status not 0
[[noreturn]] void throw_failure(const char* where, const char* name, int status) {
  throw onebit::RunError(where, std::string("the caller's ") + name + " returned " + std::to_string(status),
                         "look for the error that it met");
}

/// A function of the caller's transport as C++ calls it.
auto carried_by(const char* name, int (*call)(void*, const void*, void*, size_t), void* context) {
  return [=](const void* send, void* received, std::size_t bytes) {
    if (const int status = call(context, send, received, bytes); status != 0)
      throw_failure("onebit_transport", name, status);
  };
}

onebit::CallersTransport transport_of(const char* function, const onebit_transport& given) {
  if (given.size != sizeof(onebit_transport))
    throw InputError(function,
                     "transport.size is " + std::to_string(given.size) + ", and this library knows " +
                         std::to_string(sizeof(onebit_transport)) + " bytes",
                     "set it to sizeof(onebit_transport), and use the header and the library of one version");
  if (given.all_to_all == nullptr || given.all_gather == nullptr)
    throw InputError(function, "the transport lacks a function", "give all_to_all and all_gather");
  return {given.rank, given.ranks, carried_by("all_to_all", given.all_to_all, given.context),
          carried_by("all_gather", given.all_gather, given.context)};
}

std::vector<std::size_t> places_of(const char* name, const size_t* places, size_t count) {
  if (places == nullptr && count != 0)
    throw InputError("onebit_allreduce_create", std::string(name) + " is a null pointer, and has elements",
                     "pass the address of the first one");
  return {places, places + count};
}

/// \param given of this version, or of one that knew its first members alone
onebit::CompressedAllreduceOptions options_of(const onebit_options* given) {
  onebit_options all = ONEBIT_OPTIONS_DEFAULT;
  if (given != nullptr) {
    // A version that appends members takes the sizes of earlier ones, too.
    constexpr std::size_t sizes[] = {offsetof(onebit_options, group_begins), offsetof(onebit_options, scale),
                                     offsetof(onebit_options, grid), sizeof(onebit_options)};
    if (std::find(std::begin(sizes), std::end(sizes), given->size) == std::end(sizes))
      throw InputError("onebit_allreduce_create",
                       "options.size is " + std::to_string(given->size) + ", and this library knows " +
                           std::to_string(sizeof(onebit_options)) + " bytes",
                       "begin with ONEBIT_OPTIONS_DEFAULT, and use the header and the library of one version");
    std::memcpy(&all, given, given->size);
  }
  onebit::CompressedAllreduceOptions options;
  options.bits = all.bits;
  options.group = all.group;
  options.error_feedback = all.error_feedback != 0;
  options.message_bytes = all.message_bytes;
  options.backend = all.backend == nullptr ? "" : all.backend;
  options.group_begins = places_of("group_begins", all.group_begins, all.groups);
  options.chunk_borders = places_of("chunk_borders", all.chunk_borders, all.borders);
  if (all.scale != nullptr && *all.scale != '\0') options.scale = all.scale;
  options.grid = all.grid != 0;
  return options;
}

}  // namespace

extern "C" {

int onebit_abi_version(void) { return ONEBIT_ABI_VERSION; }

const char* onebit_last_error(void) { return last_error.c_str(); }

int onebit_check_launch(void) {
  return guarded([] {
    check_mpi("onebit_check_launch");
    onebit::check_launch();
  });
}

int onebit_allreduce_create(MPI_Comm communicator, size_t length, const onebit_options* options,
                            onebit_allreduce** made) {
  return guarded([&] {
    const char* const function = "onebit_allreduce_create";
    *checked(made, function, "made") = nullptr;
    check_mpi(function);
    if (communicator == MPI_COMM_NULL)
      throw InputError(function, "the communicator is MPI_COMM_NULL", "call it on the ranks of a communicator alone");
    *made = new onebit_allreduce{onebit::CompressedAllreduce(communicator, length, options_of(options)), true};
  });
}

int onebit_allreduce_create_f(MPI_Fint communicator, size_t length, const onebit_options* options,
                              onebit_allreduce** made) {
  // Before MPI has started, MPI_Comm_f2c would end the program.
  const int status = guarded([] { check_mpi("onebit_allreduce_create_f"); });
  return status != ONEBIT_SUCCESS ? status : onebit_allreduce_create(MPI_Comm_f2c(communicator), length, options, made);
}

int onebit_allreduce_create_with(const onebit_transport* transport, size_t length, const onebit_options* options,
                                 onebit_allreduce** made) {
  return guarded([&] {
    const char* const function = "onebit_allreduce_create_with";
    *checked(made, function, "made") = nullptr;
    onebit::CallersTransport carrier = transport_of(function, *checked(transport, function, "transport"));
    *made = new onebit_allreduce{onebit::CompressedAllreduce(std::move(carrier), length, options_of(options)), false};
  });
}

int onebit_allreduce_run(onebit_allreduce* allreduce, float* x, float residual_factor) {
  return guarded([&] {
    const char* const function = "onebit_allreduce_run";
    if (checked(allreduce, function, "allreduce")->needs_mpi) check_mpi(function);
    allreduce->allreduce(checked(x, function, "x"), residual_factor);
  });
}

int onebit_allreduce_run_served(onebit_allreduce* allreduce, float* x, onebit_server server, void* context) {
  return guarded([&] {
    const char* const function = "onebit_allreduce_run_served";
    if (checked(allreduce, function, "allreduce")->needs_mpi) check_mpi(function);
    if (server == nullptr) throw InputError(function, "server is a null pointer", "pass a function");
    allreduce->allreduce.run_served(checked(x, function, "x"),
                                    [&](float* chunk, std::size_t first, std::size_t length) {
                                      if (const int status = server(context, chunk, first, length); status != 0)
                                        throw_failure(function, "server", status);
                                    });
  });
}

int onebit_allreduce_chunk(const onebit_allreduce* allreduce, size_t* first, size_t* length) {
  return guarded([&] {
    const char* const function = "onebit_allreduce_chunk";
    const auto chunk = checked(allreduce, function, "allreduce")->allreduce.chunk();
    *checked(first, function, "first") = chunk.first;
    *checked(length, function, "length") = chunk.length;
  });
}

int onebit_allreduce_bytes_sent(const onebit_allreduce* allreduce, uint64_t* bytes) {
  return guarded([&] {
    const char* const function = "onebit_allreduce_bytes_sent";
    *checked(bytes, function, "bytes") = checked(allreduce, function, "allreduce")->allreduce.bytes_sent();
  });
}

int onebit_allreduce_residual_lengths(const onebit_allreduce* allreduce, size_t* worker, size_t* server) {
  return guarded([&] {
    const char* const function = "onebit_allreduce_residual_lengths";
    const auto lengths = checked(allreduce, function, "allreduce")->allreduce.residual_lengths();
    *checked(worker, function, "worker") = lengths.worker;
    *checked(server, function, "server") = lengths.server;
  });
}

int onebit_allreduce_get_residuals(const onebit_allreduce* allreduce, float* worker, float* server) {
  return guarded([&] {
    const char* const function = "onebit_allreduce_get_residuals";
    checked(allreduce, function, "allreduce")
        ->allreduce.get_residuals(checked(worker, function, "worker"), checked(server, function, "server"));
  });
}

int onebit_allreduce_set_residuals(onebit_allreduce* allreduce, const float* worker, const float* server) {
  return guarded([&] {
    const char* const function = "onebit_allreduce_set_residuals";
    checked(allreduce, function, "allreduce")
        ->allreduce.set_residuals(checked(worker, function, "worker"), checked(server, function, "server"));
  });
}

int onebit_allreduce_destroy(onebit_allreduce* allreduce) {
  return guarded([&] {
    if (allreduce == nullptr) return;
    if (allreduce->needs_mpi) check_mpi("onebit_allreduce_destroy");  // its communicator can be freed no more
    delete allreduce;
  });
}

}  // extern "C"
