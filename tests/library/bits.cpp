/// \file bits.cpp
/// The hashes of bits.h by the C++ class, one object for all calls.

#include "bits.h"

#include <vector>

#include "comm/library/compressed_allreduce.hpp"

namespace {

void run_case(int number, int rank) {
  onebit::CompressedAllreduceOptions options;
  options.bits = bits_of(number);
  options.group = group_of(number);
  options.message_bytes = message_bytes_of(number);
  options.grid = grid_of(number) != 0;
  options.error_feedback = error_feedback_of(number) != 0;
  options.scale = scale_of(number);
  if (is_served(number)) {
    for (std::size_t at = 0; at < vector_length; at += row_of(number)) options.group_begins.push_back(at);
    options.chunk_borders.assign(tensor_begins, tensor_begins + tensors);
  }
  onebit::CompressedAllreduce allreduce(MPI_COMM_WORLD, vector_length, options);

  std::uint64_t results = no_hash;
  for (int call = 0; call < calls; ++call) {
    std::vector<float> x(vector_length);
    fill(x.data(), rank, call);
    if (is_served(number))
      allreduce.run_served(x.data(), [](float* chunk, std::size_t first, std::size_t length) {
        for (std::size_t i = 0; i < length; ++i) chunk[i] = served(chunk[i], first + i);
      });
    else
      allreduce(x.data(), residual_factor_of(call));
    results = hash_of(results, x.data(), x.size());
  }
  const auto lengths = allreduce.residual_lengths();
  std::vector<float> worker(lengths.worker), server(lengths.server);
  allreduce.get_residuals(worker.data(), server.data());
  const std::uint64_t residuals = hash_of(hash_of(no_hash, worker.data(), worker.size()), server.data(), server.size());
  print_case(number, rank, results, residuals, allreduce.bytes_sent());
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int number = 0; number < cases; ++number) run_case(number, rank);
  MPI_Finalize();
}
