#pragma once
/// \file self_check.hpp
/// Whether the kernels of this build compute. A compiler that was called with wrong options may translate device code
/// to nothing, or for another GPU, and say no word at run time.

#include <cstdint>
#include <string>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/device/warps.hpp"
#include "base/error.hpp"

namespace onebit {

/// \param results  of a kernel \param expected the same, computed by the host
/// \throws RunError unless they are equal
inline void compare_kernel(const std::string& backend, const std::vector<std::uint32_t>& results,
                           const std::vector<std::uint32_t>& expected) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) wrong += results[i] != expected[i];
  if (wrong > 0)
    throw RunError("backend " + backend,
                   "kernels of this build compute nothing or wrong numbers: " + std::to_string(wrong) + " of " +
                       std::to_string(expected.size()) + " words of a kernel with a known answer are wrong",
                   "build for the architecture of this machine's processor or GPU (docs/guide/build.md), and look for "
                   "warnings of the compiler");
}

/// Runs two short kernels with known answers: one loop, and one in which the lanes of a warp vote.
/// \throws RunError if an answer is wrong
template <class Exec>
void check_kernels(const Exec& exec) {
  constexpr std::size_t length = 1000;  // the last words have fewer elements
  const Vector<Exec, std::uint32_t> values("OneBit::base::check_kernels", length);
  const Vector<Exec, std::uint32_t> votes("OneBit::base::check_kernels_votes", length / 32);
  for_each(
      exec, "OneBit::base::check_kernels", length,
      KOKKOS_LAMBDA(std::size_t i) { values(i) = static_cast<std::uint32_t>(block_count(i * 1031) * 2654435761u); });
  constexpr std::size_t lanes = lanes_of_block<Exec>, words_of_block = lanes < 32 ? 1 : lanes / 32;
  for_each_block(
      exec, "OneBit::base::check_kernels_votes", length / 32 / words_of_block,
      KOKKOS_LAMBDA(std::size_t block, std::size_t lane) {
        for (std::size_t bit = lane; bit < 32 * words_of_block; bit += lanes) {
          const std::size_t word = block * words_of_block + bit / 32;
          store_ballot(bit % 32, (values(32 * word + bit % 32) >> 7 & 1u) != 0, &votes(word));
        }
      });
  const auto read = [&](const Vector<Exec, std::uint32_t>& view) {
    std::vector<std::uint32_t> host(view.extent(0));
    Kokkos::deep_copy(
        exec, Kokkos::View<std::uint32_t*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(host.data(), host.size()), view);
    fence(exec, "OneBit::base::check_kernels");
    return host;
  };
  std::vector<std::uint32_t> expected(length), expected_votes(length / 32);
  for (std::size_t i = 0; i < length; ++i) {
    expected[i] = static_cast<std::uint32_t>(block_count(i * 1031) * 2654435761u);
    if (i / 32 < expected_votes.size()) expected_votes[i / 32] |= (expected[i] >> 7 & 1u) << i % 32;
  }
  const std::vector<std::uint32_t> results = read(values), vote_results = read(votes);
  compare_kernel(BackendName<Exec>::value, results, expected);
  // Blocks of 64 lanes leave out an odd last word.
  expected_votes.resize(expected_votes.size() / words_of_block * words_of_block);
  compare_kernel(BackendName<Exec>::value, vote_results, expected_votes);
}

}  // namespace onebit
