/// \file kernels.cpp
/// `onebit bench kernels`. The roofline (Williams et al. 2009) is the greatest rate of a kernel, in FLOP/s:
/// min(peak, arithmetic intensity × bandwidth), where the intensity is the kernel's FLOP over its bytes. Other work on
/// the machine slows down kernel and roofline alike, so the machine is measured again before every repetition of a
/// kernel, and medians are compared. This leaves the caches cold; a kernel that is bound by its FLOP runs once more
/// before it is timed, as in benchmarks of matrix products.

#include "bench/bench.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>

#include "base/device/memory.hpp"
#include "base/system/build_info.hpp"
#include "base/system/machine.hpp"
#include "bench/kernels/kernel.hpp"
#include "bench/measurement.hpp"
#include "bench/tables.hpp"
#include "linalg/blas.hpp"

namespace onebit::bench {
namespace {

template <class Exec>
class Bench {
public:
  Bench(const Exec& exec, const config::Input& input, const Communicator& communicator)
      : m_exec(exec),
        m_input(input),
        m_communicator(communicator),
        m_file(open_csv(input, communicator, kernels_table)) {}

  /// The machine's kernels come first: `triad` measures the bandwidth, the faster of `fma` and `gemm` the FLOP rate,
  /// and `gemm_tf32` or `gemm_bf16` that of products with rounded factors.
  void operator()(const Kernel& kernel) {
    const Check check = checked(m_exec, kernel, m_communicator);
    m_checked = m_checked + check;
    if (kernel.name == "triad") m_stream = kernel;
    if (kernel.name == "fma" || kernel.name == "gemm") choose_peak(kernel);
    const bool rounded = kernel.precision != Precision::fp32;
    if (rounded && !m_rounded_peak.run) m_rounded_peak = kernel;
    const Kernel& most = rounded ? m_rounded_peak : m_peak;

    const bool warm = m_peak.run && kernel.flop > m_balance * kernel.bytes;
    std::vector<double> times, stream_times, peak_times;
    for (int repetition = -m_input.bench.warmup; repetition < m_input.bench.repetitions; ++repetition) {
      if (kernel.prepare) kernel.prepare();
      m_communicator.barrier();
      const double peak_time = most.run ? seconds(most) : 0, stream_time = seconds(m_stream);
      if (warm) seconds(kernel);
      m_communicator.barrier();
      const double time = seconds(kernel);
      if (repetition < 0) continue;
      times.push_back(time);
      stream_times.push_back(stream_time);
      peak_times.push_back(peak_time);
    }
    const RepetitionTimes slowest = times_of_slowest_rank(m_communicator, times);
    const double bandwidth = m_stream.bytes / times_of_slowest_rank(m_communicator, stream_times).median;
    const double peak = most.run ? most.flop / times_of_slowest_rank(m_communicator, peak_times).median : 0;
    if (m_peak.run && m_balance == 0) m_balance = peak / bandwidth;
    if (m_file) write_row(kernel, check, slowest, bandwidth, peak);
  }

  FiguresOfMerit finish() {
    m_communicator.collectively([&] {
      if (m_file) m_file->finish();
    });
    confirm_references(m_figures, m_checked);
    return m_figures;
  }

private:
  double seconds(const Kernel& kernel) const { return bench::seconds(m_exec, kernel); }

  /// Keeps the kernel with the higher FLOP rate over all ranks.
  void choose_peak(const Kernel& kernel) {
    const auto rate = [&](const Kernel& candidate) {
      double best = 0;
      for (int repetition = 0; repetition < 3; ++repetition) best = std::max(best, candidate.flop / seconds(candidate));
      m_communicator.sum(&best, 1);
      return best;
    };
    if (!m_peak.run || rate(kernel) > rate(m_peak)) m_peak = kernel;
  }

  void write_row(const Kernel& kernel, const Check& check, const RepetitionTimes& seconds, double bandwidth,
                 double peak) {
    const double median = seconds.median, memory_time = kernel.bytes / bandwidth;
    const double compute_time = peak > 0 ? kernel.flop / peak : 0;
    const char* const bound = compute_time > memory_time ? "compute" : "memory";
    // The rate over min(peak, intensity × bandwidth), written with times, so that it holds without FLOP or bytes too.
    const double fraction = std::max(memory_time, compute_time) / median;
    const linalg::BlasInfo blas = linalg::blas_info();
    std::printf("%-26s %-22s %12.0f %12.0f %10.4f %8.1f %8.1f  %-7s %6.1f %%\n", kernel.name.c_str(),
                kernel.shape.c_str(), kernel.bytes, kernel.flop, 1e3 * median, kernel.bytes / median / 1e9,
                kernel.flop / median / 1e9, bound, 100 * fraction);
    std::fflush(stdout);
    constexpr double empty = std::numeric_limits<double>::quiet_NaN();
    m_file->row_of(kernel.name, kernel.shape, to_string(kernel.precision), BackendName<Exec>::value,
                   m_communicator.size(), threads(m_exec), kernel.bytes, kernel.flop,
                   kernel.bytes > 0 ? kernel.flop / kernel.bytes : empty, check.checked, check.wrong,
                   m_input.bench.repetitions, median, seconds.min, seconds.max, bound, fraction, bandwidth,
                   peak > 0 ? peak : empty, blas.library, blas.core, build_git, machine_name(m_exec));
    set_rate(m_figures, kernel, median);
  }

  const Exec m_exec;
  const config::Input& m_input;
  const Communicator& m_communicator;
  const std::unique_ptr<CsvFile> m_file;  ///< on rank 0
  FiguresOfMerit m_figures;               ///< on rank 0
  Check m_checked;                        ///< of all kernels
  Kernel m_stream, m_peak, m_rounded_peak;
  double m_balance = 0;  ///< FLOP per byte at which both bounds are equal, measured with the first m_peak
};

}  // namespace

template <class Exec>
FiguresOfMerit kernels(const Exec& exec, const config::Input& input, const Communicator& communicator) {
  const int ranks = communicator.size();
  const linalg::BlasInfo blas = linalg::blas_info();
  if (communicator.rank() == 0) {
    std::printf("# %d rank(s), backend %s, %d thread(s) each, %s %s; %d repetitions after %d\n", ranks,
                BackendName<Exec>::value, threads(exec), blas.library.c_str(), blas.core.c_str(),
                input.bench.repetitions, input.bench.warmup);
    if (!blas.warning.empty()) std::printf("warning: %s\n", blas.warning.c_str());
    std::printf("#%25s %-22s %12s %12s %10s %8s %8s  %-7s %8s\n", "kernel", "shape", "bytes", "flop", "median ms",
                "GB/s", "GFLOP/s", "bound", "roofline");
  }
  Bench<Exec> bench(exec, input, communicator);
  const Measure measure = [&](const Kernel& kernel) { bench(kernel); };
  machine_kernels(exec, input, measure);
  for (std::int64_t d = input.bench.smallest; d <= input.bench.largest; d *= input.bench.factor) {
    check_length<Exec>(static_cast<std::size_t>(d));
    optimizer_kernels(exec, input, static_cast<std::size_t>(d), measure);
  }
  network_kernels(exec, input, ranks, measure);
  image_kernels(exec, input, ranks, measure);
  binary_kernels(exec, input, measure);
  const FiguresOfMerit figures = bench.finish();
  if (communicator.rank() == 0) std::printf("# results are in %s\n", input.run.output.c_str());
  return figures;
}

template <class Exec>
void fill(const Exec& exec, int number, const Vector<Exec, float>& array) {
  for_each(
      exec, "OneBit::bench::fill", array.extent(0), KOKKOS_LAMBDA(std::size_t i) { array(i) = value_at(number, i); });
  fence(exec, "OneBit::bench::fill");
}

#define ONEBIT_INSTANTIATE(Exec)                                                           \
  template FiguresOfMerit kernels(const Exec&, const config::Input&, const Communicator&); \
  template void fill(const Exec&, int, const Vector<Exec, float>&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::bench
