#pragma once
/// \file kernel.hpp
/// What `onebit bench kernels` measures: a kernel, the least that it has to move and to compute, and its plain twin. The
/// functions at the end make the kernels and hand them over one after the other, so that few buffers live at a time.

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/parallel.hpp"
#include "base/random.hpp"
#include "config/input.hpp"
#include "linalg/matrix_product.hpp"

namespace onebit::bench {

/// A comparison with a twin: elements that were compared, and those of them that are wrong.
struct Check {
  double checked = 0, wrong = 0;
};

/// One row of kernels.csv: what is timed, what it must move and compute, and how it is checked.
struct Kernel {
  std::string name;   ///< word in kernels.csv
  std::string shape;  ///< "d=26214400", "2048x256x768", …
  double bytes;       ///< that any implementation must move: each input read once, each output written once
  double flop;        ///< multiplications and additions of its matrix products; 0 where there is none
  std::function<void()> run;
  std::function<Check()> check;           ///< of what the first run left
  std::function<void()> prepare{};        ///< before each run, not timed; where a run destroys its own input
  Precision precision = Precision::fp32;  ///< of the factors in its products
};
/// Checks and times a kernel.
using Measure = std::function<void(const Kernel&)>;

/// Element i of the benchmark's array `number`, uniform in [-1, 1): the same on host and device.
KOKKOS_INLINE_FUNCTION float value_at(int number, std::size_t i) {
  return 2 * uniform(philox(static_cast<std::uint64_t>(number), i, 0).word[0]) - 1;
}

/// array(i) ← value_at(number, i).
template <class Exec>
void fill(const Exec& exec, int number, const Vector<Exec, float>& array) {
  for_each(
      exec, "OneBit::bench::fill", array.extent(0), KOKKOS_LAMBDA(std::size_t i) { array(i) = value_at(number, i); });
  fence(exec, "OneBit::bench::fill");
}

/// Array `number`, filled.
template <class Exec>
Vector<Exec, float> make_array(const Exec& exec, int number, std::size_t length) {
  const auto array = make_uninitialized<Exec, float>("OneBit::bench::array" + std::to_string(number), length);
  fill(exec, number, array);
  return array;
}

/// The array in host memory, copied where it lies elsewhere.
template <class View>
auto on_host(const View& array) {
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), array);
}

/// Single precision against a twin in double: beyond this share of the twin's greatest magnitude an element is wrong.
inline constexpr double tolerance = 2e-5;

/// A number as a product of this precision reads it. How tensor cores round to tf32 is theirs to know: their results are
/// compared with those of numbers that are not rounded, within `product_tolerance`.
inline float factor(Precision precision, float value) {
  if (precision != Precision::bf16) return value;
  const std::uint32_t bits = std::uint32_t{linalg::to_bfloat16(value)} << 16;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline double product_tolerance(Precision precision) { return precision == Precision::tf32 ? 1e-3 : tolerance; }

/// Compares values(i) with twin(i) for i in [0, length), within `share` of the greatest twin(i). NaN is wrong.
template <class Values, class Twin>
Check compare(std::size_t length, const Values& values, const Twin& twin, double share = tolerance) {
  double greatest = 0;
  for (std::size_t i = 0; i < length; ++i) greatest = std::max(greatest, std::abs(static_cast<double>(twin(i))));
  Check check{static_cast<double>(length), 0};
  for (std::size_t i = 0; i < length; ++i)
    check.wrong += !(std::abs(values(i) - static_cast<double>(twin(i))) <= share * greatest);
  return check;
}
/// Both together.
inline Check operator+(const Check& one, const Check& other) {
  return {one.checked + other.checked, one.wrong + other.wrong};
}

/// The machine itself: `copy` and `triad` on arrays far larger than the caches, `fma` in registers and `gemm` of a large
/// square, by the backend's own threads; and that of factors in the precision of the model's products, if it is another.
template <class Exec>
void machine_kernels(const Exec& exec, const config::Input& input, const Measure& measure);

/// The optimiser's passes over d parameters. Chunks are those of `senders` ranks.
template <class Exec>
void optimizer_kernels(const Exec& exec, const config::Input& input, std::size_t d, const Measure& measure);

/// The transformer's kernels in the shapes of section `model` and this rank's share of `train.batch`, without dropout.
template <class Exec>
void network_kernels(const Exec& exec, const config::Input& input, int ranks, const Measure& measure);

}  // namespace onebit::bench
