#pragma once
/// \file warps.hpp
/// Loops in which the threads of a GPU's warp, its lanes, share a block of work: 32 on NVIDIA's GPUs and 64 on most of
/// AMD's. Neighbouring lanes read and write neighbouring elements, and a bit of each of 32 lanes becomes a word. On the
/// host one thread takes a block.

#include <cstddef>
#include <cstdint>

#include "base/kokkos.hpp"

namespace onebit {

/// Lanes that share a block. A test lets the host do the work of as many lanes one after the other.
#ifdef ONEBIT_LANES_ON_HOST
template <class Exec>
inline constexpr std::size_t lanes_of_block = ONEBIT_LANES_ON_HOST;
#else
template <class Exec>
inline constexpr std::size_t lanes_of_block = is_host<Exec> ? 1 : warp_lanes;
#endif

/// Bit `bit` of `word` ← `says`. The 32 lanes whose bits make the word must call it together.
KOKKOS_FORCEINLINE_FUNCTION void store_ballot(std::size_t bit, bool says, std::uint32_t* word) {
#if defined(__CUDA_ARCH__)
  const std::uint32_t ballot = __ballot_sync(0xffffffffu, says);
  if (bit == 0) *word = ballot;
#elif defined(__HIP_DEVICE_COMPILE__)
  const std::uint64_t ballot = __ballot(says);  // of up to 64 lanes, so of up to two words
  if (bit == 0) *word = static_cast<std::uint32_t>(ballot >> (__lane_id() & 32u));
#else
#ifdef ONEBIT_SIMT
  if (simt::in_team()) {
    const std::uint32_t ballot = simt::vote(says);
    if (bit == 0) *word = ballot;
    return;
  }
#endif
  *word = (bit == 0 ? 0u : *word) | static_cast<std::uint32_t>(says) << bit;  // lanes run one after the other
#endif
}

/// The value of lane `lane` of the 32 lanes around this one.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T value_of_lane(T value, [[maybe_unused]] int lane) {
#if defined(__CUDA_ARCH__)
  value = __shfl_sync(0xFFFFFFFFu, value, lane);
#elif defined(__HIP_DEVICE_COMPILE__)
  value = __shfl(value, lane, 32);
#elif defined(ONEBIT_SIMT)
  if (simt::in_team()) value = simt::shuffle(value, lane);
#endif
  return value;
}

/// The value of the lane whose number differs from this one's in the bits of `mask`, which is less than 32.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION T value_across(T value, [[maybe_unused]] int mask) {
#if defined(__CUDA_ARCH__)
  value = __shfl_xor_sync(0xFFFFFFFFu, value, mask);
#elif defined(__HIP_DEVICE_COMPILE__)
  value = __shfl_xor(value, mask, 32);
#elif defined(ONEBIT_SIMT)
  if (simt::in_team()) value = simt::shuffle_across(value, mask);
#endif
  return value;
}

/// The number of this lane in its warp; 0 on the host.
KOKKOS_FORCEINLINE_FUNCTION int number_of_lane() {
#if defined(ONEBIT_DEVICE_CODE)
  return static_cast<int>(threadIdx.x);
#elif defined(ONEBIT_SIMT)
  return simt::place().lane;
#else
  return 0;
#endif
}

/// The blocks of `for_each_block` on a device: a warp takes a block.
template <class Exec, class F>
struct BlocksOfWarps {
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  static constexpr int warps = 8;

  std::size_t blocks;
  F f;

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, warps), [&](int warp) {
      const std::size_t block = static_cast<std::size_t>(team.league_rank()) * warps + warp;
      if (block >= blocks) return;  // the whole warp
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(team, static_cast<int>(lanes_of_block<Exec>)),
                           [&](int lane) { f(block, static_cast<std::size_t>(lane)); });
    });
  }
};

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
    constexpr int warps = BlocksOfWarps<Exec, F>::warps;
    Kokkos::parallel_for(
        label, light(Policy(exec, static_cast<int>((blocks + warps - 1) / warps), warps, static_cast<int>(lanes))),
        BlocksOfWarps<Exec, F>{blocks, f});
  }
}

}  // namespace onebit
