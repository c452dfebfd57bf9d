#pragma once
/// \file replicas.hpp
/// Checks that all ranks hold the same parameters, bit for bit.

#include <cstdint>

#include "base/kokkos.hpp"
#include "base/mpi.hpp"

namespace onebit::train {

/// A 64-bit hash of the bits of `values`: changes with any bit and with the order of the elements.
template <class Exec>
std::uint64_t hash(const Exec& exec, const Vector<Exec, float>& values);

/// Compares the hash of x over ranks. Collective.
/// \throws AgreedError naming the ranks whose bits differ from rank 0's
template <class Exec>
void check_replicas(const Exec& exec, const Communicator& communicator, const Vector<Exec, float>& x, long step);

}  // namespace onebit::train
