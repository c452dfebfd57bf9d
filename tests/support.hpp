#pragma once
/// \file support.hpp
/// What the tests share: the backends of this build, vectors in and out of their memories, comparison bit for bit.

#include <gtest/gtest.h>

#include <cinttypes>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/kokkos.hpp"
#include "base/random.hpp"

namespace onebit::test {

template <class Ignored, class... Exec>
struct TypesBehindFirst {
  using type = ::testing::Types<Exec...>;
};
#define ONEBIT_APPEND_TYPE(Exec) , Exec
/// Every execution space of the build, for TYPED_TEST_SUITE; of a build with the simulated device, that one alone.
#ifdef ONEBIT_SIMT
using Backends = ::testing::Types<GpuExec>;
#else
using Backends = TypesBehindFirst<void ONEBIT_FOR_EACH_BACKEND(ONEBIT_APPEND_TYPE)>::type;
#endif

/// Names typed tests after the backend: Sign/openmp.kernels_equal_reference.
struct BackendNames {
  template <class Exec>
  static std::string GetName(int) {
    return BackendName<Exec>::value;
  }
};

template <class Exec, class T>
Vector<Exec, T> to_device(const std::vector<T>& values) {
  return copy_to_device<Exec>("OneBit::test::to_device", values);
}

template <class View>
auto to_host(const View& view) {
  using T = std::remove_const_t<typename View::value_type>;
  std::vector<T> copy(view.extent(0));
  Kokkos::deep_copy(Kokkos::View<T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(copy.data(), copy.size()), view);
  return copy;
}

/// Success when both hold the same bits; else names the first place where they do not.
template <class T>
::testing::AssertionResult same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size())
    return ::testing::AssertionFailure() << "lengths differ: " << a.size() << " and " << b.size();
  std::size_t different = 0, first = 0;
  for (std::size_t i = a.size(); i-- > 0;)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) {
      ++different;
      first = i;
    }
  if (different == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << different << " of " << a.size() << " elements differ, first " << first << ": "
                                       << a[first] << " and " << b[first];
}

/// Numbers of both signs (the sum of two uniform ones) and of very different sizes, with a few zeros of both signs.
inline std::vector<float> random_values(std::size_t length, std::uint64_t seed) {
  constexpr float sizes[] = {1.0f, 1e-3f, 37.0f, 0.25f};
  std::vector<float> values(length);
  for (std::size_t i = 0; i < length; ++i) {
    const Philox4 words = philox(stream_key(seed, Stream::noise), i, 0);
    values[i] = (uniform(words.word[0]) + uniform(words.word[1]) - 1.0f) * sizes[words.word[2] % 4];
    if (words.word[3] % 64 == 0) values[i] = 0.0f;
    if (words.word[3] % 64 == 1) values[i] = -0.0f;
  }
  return values;
}

/// a x + b y, where each product and the sum is rounded to float: no compiler fuses what goes through volatile memory.
inline float rounded_sum_of_products(float a, float x, float b, float y) {
  const volatile float first = a * x, second = b * y;
  return first + second;
}

/// Whether a x + b y has other bits than that when one of the products is fused with the sum.
inline bool fusing_shows(float a, float x, float b, float y) {
  const float rounded = rounded_sum_of_products(a, x, b, y);
  const volatile float first = a * x, second = b * y;
  return std::fma(a, x, second) != rounded && std::fma(b, y, first) != rounded;
}

/// Prints a hash (FNV-1a) of the bits of a result; tests/integration/threads_test.py compares the lines of runs with
/// different thread counts.
template <class T>
void print_bits(const std::string& name, const std::vector<T>& values) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (std::size_t i = 0; i < values.size() * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3u;
  std::printf("bits %s %016" PRIx64 "\n", name.c_str(), hash);
}

}  // namespace onebit::test
