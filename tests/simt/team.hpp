#pragma once
/// \file team.hpp
/// A team of threads (a thread block) of the simulated device, in warps of 32. Barriers, votes, shuffles and tensor
/// cores are meeting points: a thread waits there until all threads of its team or warp have come. Between two of them
/// lanes run in a random order, and warps at a random pace, so that a result that depends on the order differs from run
/// to run. Threads that wait at different meeting points end the program with a map of who waits where.

#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <type_traits>

namespace onebit::simt {

inline constexpr int warp_size = 32;

enum class Meeting { none, barrier, warp, shuffle, shuffle_across, shuffle_down, vote, tf32_product, bit_product };

/// What a thread brings to a meeting, and takes from it.
struct Operand {
  alignas(8) unsigned char bytes[48];
  int number;
};

/// Place of the running thread in its team.
struct Place {
  int lane = 0;  ///< in the vector
  int vector = 1;
  int thread = 0;  ///< number of the vector
  int team = 1;    ///< vectors
};

/// Prints a message and aborts: what a device would answer by wrong numbers, by a hang or not at all.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

/// Random numbers of the schedule; the environment variable ONEBIT_SIMT_SEED chooses another one.
std::mt19937& random();

/// Runs body in `team` · `vector` threads.
void run_team(int team, int vector, const std::function<void()>& body);

/// Whether the calling thread runs a kernel, and whether it does so in a team.
bool in_kernel();
bool in_team();
/// Marks the calling thread as one that runs a kernel, for its scope.
class KernelScope {
public:
  KernelScope();
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;
};

/// {} outside of a team.
const Place& place();

/// What the calling thread of a team brings to a meeting, and after it what it takes.
Operand& operand(Meeting meeting);
/// Waits until all threads of the team or the warp have come.
void meet(Meeting meeting);

inline void barrier() { meet(Meeting::barrier); }
/// Of the lanes of a vector.
inline void warp_barrier() {
  if (place().vector > 1) meet(Meeting::warp);
}

template <class T>
T exchange(Meeting meeting, T value, int number) {
  static_assert(sizeof(T) <= sizeof(Operand::bytes) && std::is_trivially_copyable_v<T>);
  Operand& own = operand(meeting);
  std::memcpy(own.bytes, &value, sizeof value);
  own.number = number;
  meet(meeting);
  std::memcpy(&value, own.bytes, sizeof value);
  return value;
}
/// The values of lane `lane`, of the lane whose number differs in the bits of `mask`, and of the lane `distance`
/// behind.
template <class T>
T shuffle(T value, int lane) {
  return exchange(Meeting::shuffle, value, lane);
}
template <class T>
T shuffle_across(T value, int mask) {
  return exchange(Meeting::shuffle_across, value, mask);
}
template <class T>
T shuffle_down(T value, int distance) {
  return exchange(Meeting::shuffle_down, value, distance);
}
/// Bit l is what lane l says.
inline std::uint32_t vote(bool says) { return exchange(Meeting::vote, std::uint32_t{0}, says ? 1 : 0); }

/// c (16, 8) += a (16, 8) · b (8, 8), as PTX's mma.m16n8k8 with factors in tf32.
void tf32_product(float* c, const float (&a)[4], float b0, float b1);
/// c (16, 8) += the bits that rows of a (16, 256 bits) and b (8, 256 bits) share, as PTX's mma.m16n8k256.
void bit_product(int (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);

}  // namespace onebit::simt
