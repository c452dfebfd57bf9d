#pragma once
/// \file kernel.hpp
/// What `onebit bench kernels` measures: kernels with their least traffic and work, and their reference
/// implementations. The functions at the end make the kernels one after the other, so that few buffers exist at a time.

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/error.hpp"
#include "base/mpi.hpp"
#include "base/random.hpp"
#include "base/sixteen_bits.hpp"
#include "base/timer.hpp"
#include "config/input.hpp"
#include "io/figures.hpp"
#include "linalg/matrix_product.hpp"

namespace onebit::bench {

/// Result of a comparison with a reference: the number of compared elements and of wrong ones.
struct Check {
  double checked = 0, wrong = 0;
};

/// A kernel: one row of kernels.csv.
struct Kernel {
  std::string name;   ///< in kernels.csv
  std::string shape;  ///< "d=26214400", "2048x256x768", …
  double bytes;       ///< least traffic: each input is read once, each output is written once
  double flop;  ///< least work: of its matrix products, or else of its formula (docs/develop/performance/kernels.md)
  std::function<void()> run;
  std::function<Check()> check;           ///< of the result of the first run
  std::function<void()> prepare{};        ///< called before each run and not timed, if a run overwrites its input
  Precision precision = Precision::fp32;  ///< of the factors of its products
};
/// The shape of a kernel: its extents with an x between them.
inline std::string extents(std::initializer_list<int> numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : "x") + std::to_string(number);
  return text;
}

/// Bytes of a number of floats.
inline double floats(double count) { return 4 * count; }

/// Checks and times a kernel.
using Measure = std::function<void(const Kernel&)>;

/// The same of a kernel whose products have factors of a precision.
template <class Run, class Checked>
void measure_products(const Measure& measure, Precision precision, const std::string& name, const std::string& shape,
                      double bytes, double flop, const Run& run, const Checked& check) {
  measure({name, shape, bytes, flop, run, check, {}, precision});
}

/// Host threads of a rank.
template <class Exec>
int threads(const Exec& exec) {
  return is_host<Exec> ? concurrency(exec) : 1;
}

/// Runs a kernel once. \returns its time
template <class Exec>
double seconds(const Exec& exec, const Kernel& kernel) {
  const Region region("OneBit::bench::kernel");
  const Stopwatch watch;
  kernel.run();
  fence(exec, "OneBit::bench::kernel");
  return watch.seconds();
}

/// Runs a kernel once and compares its result with its reference's. Collective. \throws WrongResult for a wrong one
template <class Exec>
Check checked(const Exec& exec, const Kernel& kernel, const Communicator& communicator) {
  if (kernel.prepare) kernel.prepare();
  seconds(exec, kernel);
  Check check;
  communicator.collectively([&] {
    const Region region("OneBit::bench::check");
    check = kernel.check();
  });
  communicator.sum(&check.checked, 1);
  communicator.sum(&check.wrong, 1);
  if (check.wrong > 0)
    throw WrongResult(
        kernel.name + " (" + kernel.shape + "): " + std::to_string(static_cast<long>(check.wrong)) + " of " +
        std::to_string(static_cast<long>(check.checked)) +
        " elements differ from the reference implementation, so it is not timed\n  remedy: report it with the backend "
        "and this input");
  return check;
}

/// Element i of array `number`, uniform in [-1, 1), the same on host and device.
KOKKOS_INLINE_FUNCTION float value_at(int number, std::size_t i) {
  return 2 * uniform(philox(static_cast<std::uint64_t>(number), i, 0).word[0]) - 1;
}

/// array(i) ← value_at(number, i).
template <class Exec>
void fill(const Exec& exec, int number, const Vector<Exec, float>& array);

/// Array `number`, filled.
template <class Exec>
Vector<Exec, float> make_array(const Exec& exec, int number, std::size_t length) {
  const auto array = make_uninitialized<Exec, float>("OneBit::bench::array" + std::to_string(number), length);
  fill(exec, number, array);
  return array;
}

/// The array in host memory, copied if necessary.
template <class View>
auto on_host(const View& array) {
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), array);
}

/// An element of a kernel in float may differ from its reference in double by this fraction of the reference's greatest
/// magnitude.
inline constexpr double tolerance = 2e-5;

/// A factor as a product in this precision reads it. The rounding of tensor cores to tf32 is not specified: their
/// results are compared with those of unrounded factors, within `product_tolerance`.
inline float factor(Precision precision, float value) {
  if (precision != Precision::bf16) return value;
  return Bfloat16::widened(Bfloat16::nearest(value));
}
inline double product_tolerance(Precision precision) { return precision == Precision::tf32 ? 1e-3 : tolerance; }
/// Attention on a device rounds the factors of all its products to tf32, in bf16 too.
inline double attention_tolerance(Precision precision) { return precision == Precision::fp32 ? tolerance : 5e-3; }

/// join f(i) over i in [0, length) on all host threads: references of a whole model take one thread minutes.
template <class Reducer, class F>
double reduce_on_host(std::size_t length, const F& f) {
  using Host = Kokkos::DefaultHostExecutionSpace;
  double result = 0;
  Kokkos::parallel_reduce(
      "OneBit::bench::compare", Kokkos::RangePolicy<Host, Kokkos::IndexType<std::size_t>>(0, length),
      [&](std::size_t i, double& part) { Reducer(part).join(part, f(i)); }, Reducer(result));
  return result;
}

/// Compares values(i) with reference(i) for i in [0, length), within `fraction` of the greatest |reference(i)|. NaN is
/// wrong. Several threads call both functions.
template <class Values, class Reference>
Check compare(std::size_t length, const Values& values, const Reference& reference, double fraction = tolerance) {
  const double greatest = reduce_on_host<Kokkos::Max<double>>(
      length, [&](std::size_t i) { return std::abs(static_cast<double>(reference(i))); });
  const double wrong = reduce_on_host<Kokkos::Sum<double>>(length, [&](std::size_t i) -> double {
    return !(std::abs(values(i) - static_cast<double>(reference(i))) <= fraction * greatest);
  });
  return {static_cast<double>(length), wrong};
}
/// Compares some elements of a result with reference(i, j), for a reference that takes long.
/// \param result (rows, columns) \param count of elements, unless the result has fewer
template <class View, class Reference>
Check compare_some(const View& result, std::size_t count, const Reference& reference, double fraction = tolerance) {
  const auto host = on_host(result);
  const std::size_t columns = host.extent(1), size = host.size();
  std::vector<double> found(std::min(count, size)), wanted(found.size());
  // An odd stride, so that neither rows nor columns repeat soon.
  const std::size_t stride = (size / found.size() - 1) | 1;
  for (std::size_t e = 0; e < found.size(); ++e) {
    const std::size_t i = e * stride % size / columns, j = e * stride % size % columns;
    found[e] = static_cast<double>(host(i, j));
    wanted[e] = reference(i, j);
  }
  return compare(
      found.size(), [&](std::size_t e) { return found[e]; }, [&](std::size_t e) { return wanted[e]; }, fraction);
}
inline Check operator+(const Check& one, const Check& other) {
  return {one.checked + other.checked, one.wrong + other.wrong};
}

/// Sets the rate of a kernel: FLOP/s for one of at least `flop_per_byte` FLOP a byte, else B/s. This depends on the
/// kernel and its shape alone, so a figure has the same name on every machine. \param seconds of a run
inline void set_rate(FiguresOfMerit& figures, const Kernel& kernel, double seconds) {
  constexpr double flop_per_byte = 10;
  if (kernel.flop >= flop_per_byte * kernel.bytes)
    figures.set(kernel.name + "_FLOP_per_s", kernel.flop / seconds, "FLOP/s");
  else
    figures.set(kernel.name + "_B_per_s", kernel.bytes / seconds, "B/s");
}

/// Adds the verdict of a benchmark, whose results have been compared: a wrong one would have ended it.
inline void confirm_references(FiguresOfMerit& figures, const Check& check) {
  figures.set("checked", check.checked, "elements");
  figures.set("wrong", check.wrong, "elements");
  if (check.checked > 0)
    figures.confirm(std::to_string(static_cast<long>(check.checked)) +
                    " elements equal those of their reference implementations");
}

/// The machine: `copy` and `triad` on arrays far larger than the caches, `fma` in registers, `gemm` of large square
/// matrices, and `gemm` in the precision of the model's products if it is not fp32.
template <class Exec>
void machine_kernels(const Exec& exec, const config::Input& input, const Measure& measure);

/// The optimiser's passes over d parameters.
template <class Exec>
void optimizer_kernels(const Exec& exec, const config::Input& input, std::size_t d, const Measure& measure);

/// The transformer's kernels in the shapes of section `model` and this rank's samples of a step, without dropout.
template <class Exec>
void network_kernels(const Exec& exec, const config::Input& input, int ranks, const Measure& measure);

/// The kernels of networks of images of 32 × 32 pixels, in the shape of the first stage of a network of width
/// `images.width`, on at most 32 of this rank's samples of a step.
template <class Exec>
void image_kernels(const Exec& exec, const config::Input& input, int ranks, const Measure& measure);

/// Products of signs beside those of floats, in shapes whose matrices have at most `bench.largest` elements.
template <class Exec>
void binary_kernels(const Exec& exec, const config::Input& input, const Measure& measure);

}  // namespace onebit::bench
