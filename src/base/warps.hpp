#pragma once
/// \file warps.hpp
/// Units of work that the 32 threads of a GPU's warp, its lanes, share: lane l takes element l of 32, so that
/// neighbours read and write side by side, and a bit that each of them has becomes one word. On the host one thread
/// takes a unit.

#include <cstddef>
#include <cstdint>

#include "base/kokkos.hpp"

namespace onebit {

/// Threads that share a unit of `for_each_unit`. A test has the host do what a device does, one lane after the other.
#ifdef ONEBIT_LANES_ON_HOST
template <class Exec>
inline constexpr std::size_t lanes_of_unit = 32;
#else
template <class Exec>
inline constexpr std::size_t lanes_of_unit = is_host<Exec> ? 1 : 32;
#endif

/// Bit l of `word` ← what lane l says, where 32 lanes share a unit; all of them must call it.
KOKKOS_FORCEINLINE_FUNCTION void store_ballot(std::size_t lane, bool says, std::uint32_t* word) {
#ifdef __CUDA_ARCH__
  const std::uint32_t ballot = __ballot_sync(0xffffffffu, says);
  if (lane == 0) *word = ballot;
#else
  *word = (lane == 0 ? 0u : *word) | static_cast<std::uint32_t>(says) << lane;  // lanes come one after the other
#endif
}

/// Calls f(unit, lane) for the lanes of units [0, units). The lanes of a unit are a warp, and may `store_ballot`.
template <class Exec, class F>
void for_each_unit(const Exec& exec, const char* label, std::size_t units, const F& f) {
  if (units == 0) return;
  constexpr std::size_t lanes = lanes_of_unit<Exec>;
  if constexpr (is_host<Exec>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, units),
                         [=](std::size_t unit) {
                           for (std::size_t lane = 0; lane < lanes; ++lane) f(unit, lane);
                         });
  } else {
    using Policy = Kokkos::TeamPolicy<Exec>;
    constexpr int warps = 8;
    Kokkos::parallel_for(
        label, Policy(exec, static_cast<int>((units + warps - 1) / warps), warps, static_cast<int>(lanes)),
        KOKKOS_LAMBDA(const typename Policy::member_type& team) {
          Kokkos::parallel_for(Kokkos::TeamThreadRange(team, warps), [&](int warp) {
            const std::size_t unit = static_cast<std::size_t>(team.league_rank()) * warps + warp;
            if (unit >= units) return;  // all lanes or none
            Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, static_cast<int>(lanes)),
                                 [&](int lane) { f(unit, static_cast<std::size_t>(lane)); });
          });
        });
  }
}

}  // namespace onebit
