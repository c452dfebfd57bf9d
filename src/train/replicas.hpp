#pragma once
/// \file replicas.hpp
/// Checks that all ranks hold the same parameters, bit for bit.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/float_bits.hpp"
#include "base/hash.hpp"
#include "base/kokkos.hpp"
#include "base/mpi.hpp"

namespace onebit::train {

/// A 64-bit hash of the bits of `values`, in their order.
template <class Exec>
std::uint64_t hash(const Exec& exec, const Vector<Exec, float>& values) {
  std::uint64_t sum = 0;
  Kokkos::parallel_reduce(
      "OneBit::train::hash", Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, values.extent(0)),
      KOKKOS_LAMBDA(std::size_t i, std::uint64_t & partial) { partial += hash_term(as_bits(values(i)), i); }, sum);
  return sum;
}

/// Compares the hash of x over ranks. Collective.
/// \throws WrongResult that names the ranks whose hash differs from rank 0's
template <class Exec>
void check_replicas(const Exec& exec, const Communicator& communicator, const Vector<Exec, float>& x, long step) {
  // A double holds 53 bits, so the 64 bits go in two halves.
  const std::uint64_t mine = hash(exec, x);
  const double halves[2] = {static_cast<double>(mine >> 32), static_cast<double>(mine & 0xffffffffull)};
  const std::vector<double> all = communicator.gather(halves, 2);
  std::string different;
  for (int rank = 1; rank < communicator.size(); ++rank)
    if (all[2 * rank] != all[0] || all[2 * rank + 1] != all[1])
      different += (different.empty() ? "" : ", ") + std::to_string(rank);
  if (!different.empty())
    throw WrongResult("step " + std::to_string(step) + ": the parameters of rank(s) " + different +
                      " differ from rank 0's\n  remedy: check memory and network of these ranks' hosts, and that all "
                      "run the same binary");
}

}  // namespace onebit::train
