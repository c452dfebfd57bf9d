#pragma once
/// \file warps.hpp
/// Loops in which the 32 threads of a GPU's warp, its lanes, share a block of work. Neighbouring lanes read and write
/// neighbouring elements, and a bit of each lane becomes a word. On the host one thread takes a block.

#include <cstddef>
#include <cstdint>

#include "base/kokkos.hpp"

namespace onebit {

/// Lanes that share a block. A test lets the host do the work of the lanes one after the other.
#ifdef ONEBIT_LANES_ON_HOST
template <class Exec>
inline constexpr std::size_t lanes_of_block = 32;
#else
template <class Exec>
inline constexpr std::size_t lanes_of_block = is_host<Exec> ? 1 : 32;
#endif

/// Bit l of `word` ← `says` of lane l. All 32 lanes of a block must call it.
KOKKOS_FORCEINLINE_FUNCTION void store_ballot(std::size_t lane, bool says, std::uint32_t* word) {
#ifdef __CUDA_ARCH__
  const std::uint32_t ballot = __ballot_sync(0xffffffffu, says);
  if (lane == 0) *word = ballot;
#else
  *word = (lane == 0 ? 0u : *word) | static_cast<std::uint32_t>(says) << lane;  // lanes run one after the other
#endif
}

/// Calls f(block, lane) for the lanes of blocks [0, blocks). They may call `store_ballot`.
template <class Exec, class F>
void for_each_block(const Exec& exec, const char* label, std::size_t blocks, const F& f) {
  if (blocks == 0) return;
  constexpr std::size_t lanes = lanes_of_block<Exec>;
  if constexpr (is_host<Exec>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, blocks),
                         [=](std::size_t block) {
                           for (std::size_t lane = 0; lane < lanes; ++lane) f(block, lane);
                         });
  } else {
    using Policy = Kokkos::TeamPolicy<Exec>;
    constexpr int warps = 8;
    Kokkos::parallel_for(
        label, light(Policy(exec, static_cast<int>((blocks + warps - 1) / warps), warps, static_cast<int>(lanes))),
        KOKKOS_LAMBDA(const typename Policy::member_type& team) {
          Kokkos::parallel_for(Kokkos::TeamThreadRange(team, warps), [&](int warp) {
            const std::size_t block = static_cast<std::size_t>(team.league_rank()) * warps + warp;
            if (block >= blocks) return;  // the whole warp
            Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, static_cast<int>(lanes)),
                                 [&](int lane) { f(block, static_cast<std::size_t>(lane)); });
          });
        });
  }
}

}  // namespace onebit
