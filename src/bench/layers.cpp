/// \file layers.cpp
/// `onebit bench layers`. The kernels of a layer run in turns, so that other work on the machine slows all of them
/// alike.

#include "bench/layers.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/system/build_info.hpp"
#include "base/system/machine.hpp"
#include "bench/bench.hpp"
#include "bench/measurement.hpp"
#include "bench/tables.hpp"
#include "linalg/blas.hpp"

namespace onebit::bench {
namespace {

namespace tools = Kokkos::Tools::Experimental;

/// A kernel, which may run several times.
struct Pass {
  std::string region;  ///< the outermost profiling region around it, without "OneBit::"; empty without one
  std::string kernel;  ///< its label, without "OneBit::"
  double seconds = 0;  ///< of all its runs
};

/// Global, because the callbacks of Kokkos are plain functions.
struct State {
  tools::EventSet before{};  ///< callbacks of a tool
  std::vector<std::string> regions;
  std::vector<Pass> passes;
  std::size_t running = 0;  ///< of `passes`
  Stopwatch watch;
};
State& state() {
  static State only;
  return only;
}

std::string without_prefix(const std::string& name) {
  const std::string prefix = "OneBit::";
  return name.compare(0, prefix.size(), prefix) == 0 ? name.substr(prefix.size()) : name;
}

void begin_kernel(const char* label, std::uint32_t, std::uint64_t* id) {
  State& now = state();
  const std::string region = now.regions.empty() ? "" : now.regions.front(), kernel = without_prefix(label);
  const auto found = std::find_if(now.passes.begin(), now.passes.end(),
                                  [&](const Pass& pass) { return pass.region == region && pass.kernel == kernel; });
  now.running = static_cast<std::size_t>(found - now.passes.begin());
  if (found == now.passes.end()) now.passes.push_back({region, kernel, 0});
  *id = now.running;
  now.watch = Stopwatch();
}
void end_kernel(std::uint64_t) {
  Kokkos::fence();
  state().passes[state().running].seconds += state().watch.seconds();
}
void push_region(const char* name) { state().regions.push_back(without_prefix(name)); }
void pop_region() { state().regions.pop_back(); }

/// Times kernels through the callbacks of Kokkos Tools while it exists. Each kernel is fenced, so kernels of a GPU do
/// not overlap, and work takes longer than without. A profiling tool that is loaded does not see them. There may be one
/// object at a time, and one thread may launch kernels.
class PassTimes {
public:
  PassTimes() {
    state() = {};
    state().before = tools::get_callbacks();
    tools::EventSet callbacks = state().before;
    callbacks.begin_parallel_for = callbacks.begin_parallel_reduce = callbacks.begin_parallel_scan = begin_kernel;
    callbacks.end_parallel_for = callbacks.end_parallel_reduce = callbacks.end_parallel_scan = end_kernel;
    callbacks.push_region = push_region;
    callbacks.pop_region = pop_region;
    tools::set_callbacks(callbacks);
  }
  ~PassTimes() { tools::set_callbacks(state().before); }
  PassTimes(const PassTimes&) = delete;
  PassTimes& operator=(const PassTimes&) = delete;

  /// The kernels since the last call, in the order of their first runs.
  std::vector<Pass> take() { return std::exchange(state().passes, {}); }
};

/// Most output pixels or tokens of a layer that are timed: one of more counts as often as these fit into it.
constexpr double most_rows = 16384;
/// The order of the table's columns of times.
const char* const kernel_names[] = {"fp32_layer", "bf16_layer", "int8_layer", "scq_layer", "fqt_layer"};

template <class Exec>
class LayerBench {
public:
  LayerBench(const Exec& exec, const config::Input& input, const Communicator& communicator)
      : m_exec(exec),
        m_input(input),
        m_communicator(communicator),
        m_file(open_csv(input, communicator, layers_table)),
        m_passes(open_csv(input, communicator, passes_table)) {}

  /// Measures all layers of a network, for images of some size.
  void network(const std::string& name, int pixels) {
    constexpr int texts = 8;
    const int samples = has_images(name) ? m_input.bench.batch : texts;
    m_total.clear();
    m_flop.clear();
    for (const LayerShape& shape : layer_shapes(name, pixels)) {
      const double all_rows = static_cast<double>(shape.rows) * samples;
      const int rows = static_cast<int>(std::min(all_rows, most_rows));
      layer_kernels<Exec>(m_exec, rows, shape, [&](const std::vector<Kernel>& kernels) {
        const std::vector<Check> checks = check(kernels);
        const std::vector<RepetitionTimes> times = time(kernels);
        std::map<std::string, double> medians;
        for (std::size_t k = 0; k < kernels.size(); ++k) {
          const std::vector<Pass> passes = time_passes(kernels[k]);
          if (!m_file) continue;
          const RepetitionTimes& seconds = times[k];
          const linalg::BlasInfo blas = linalg::blas_info();
          m_file->row_of(name, pixels, samples, shape.name, shape.count, all_rows, rows, shape.inputs, shape.outputs,
                         kernels[k].name, kernels[k].shape, BackendName<Exec>::value, m_communicator.size(),
                         threads(m_exec), kernels[k].flop, checks[k].checked, checks[k].wrong,
                         m_input.bench.repetitions, seconds.median, seconds.min, seconds.max, blas.library, blas.core,
                         build_git, machine_name(m_exec));
          double sum = 0;
          for (const Pass& pass : passes) sum += pass.seconds;
          for (const Pass& pass : passes)
            m_passes->row_of(name, pixels, samples, shape.name, shape.count, all_rows, rows, shape.inputs,
                             shape.outputs, kernels[k].name, pass.region, pass.kernel, pass.seconds, pass.seconds / sum,
                             BackendName<Exec>::value, m_communicator.size(), threads(m_exec),
                             m_input.bench.repetitions, build_git, machine_name(m_exec));
          medians[kernels[k].name] = seconds.median;
          m_checked = m_checked + checks[k];
          const double layers = shape.count * (all_rows / rows);  // how often the network has what was measured
          m_total[kernels[k].name] += layers * seconds.median;
          m_flop[kernels[k].name] += layers * kernels[k].flop;
        }
        if (!m_file) return;
        print(name, pixels, shape.name, std::to_string(shape.count) + " x " + kernels[0].shape, medians);
      });
    }
    if (!m_file) return;
    print(name, pixels, "all", "", m_total);
    const std::string of = name + (pixels > 0 ? "_" + std::to_string(pixels) : "") + "_";
    for (const auto& [kernel, seconds] : m_total)
      m_figures.set(of + kernel + "_FLOP_per_s", m_flop.at(kernel) / seconds, "FLOP/s");
    m_figures.set(of + "speedup", speedup(m_total), "times");
  }

  FiguresOfMerit finish() {
    m_communicator.collectively([&] {
      for (const auto* file : {&m_file, &m_passes})
        if (*file) (*file)->finish();
    });
    confirm_references(m_figures, m_checked);
    return m_figures;
  }

private:
  std::vector<Check> check(const std::vector<Kernel>& kernels) const {
    std::vector<Check> checks;
    for (const Kernel& kernel : kernels) checks.push_back(checked(m_exec, kernel, m_communicator));
    return checks;
  }

  std::vector<RepetitionTimes> time(const std::vector<Kernel>& kernels) const {
    std::vector<std::vector<double>> times(kernels.size());
    for (int repetition = -m_input.bench.warmup; repetition < m_input.bench.repetitions; ++repetition)
      for (std::size_t k = 0; k < kernels.size(); ++k) {
        m_communicator.barrier();
        const double time = seconds(m_exec, kernels[k]);
        if (repetition >= 0) times[k].push_back(time);
      }
    std::vector<RepetitionTimes> slowest;
    for (const std::vector<double>& of_kernel : times)
      slowest.push_back(times_of_slowest_rank(m_communicator, of_kernel));
    return slowest;
  }

  /// The passes of a kernel: medians over the repetitions, of the slowest rank.
  std::vector<Pass> time_passes(const Kernel& kernel) const {
    PassTimes timer;
    std::vector<Pass> passes;
    std::vector<std::vector<double>> times;
    for (int repetition = 0; repetition < m_input.bench.repetitions; ++repetition) {
      m_communicator.barrier();
      kernel.run();
      passes = timer.take();
      times.resize(passes.size());
      for (std::size_t p = 0; p < passes.size(); ++p) times[p].push_back(passes[p].seconds);
    }
    for (std::size_t p = 0; p < passes.size(); ++p)
      passes[p].seconds = times_of_slowest_rank(m_communicator, times[p]).median;
    return passes;
  }

  /// Of the layers with one bit against those of floats.
  static double speedup(const std::map<std::string, double>& seconds) {
    return seconds.at("fp32_layer") / seconds.at("fqt_layer");
  }

  static void print(const std::string& network, int pixels, const std::string& layer, const std::string& shape,
                    const std::map<std::string, double>& seconds) {
    std::printf("%-10s %4d  %-16s %-20s", network.c_str(), pixels, layer.c_str(), shape.c_str());
    for (const char* const kernel : kernel_names) {
      const auto found = seconds.find(kernel);
      std::printf(found == seconds.end() ? "          " : " %9.3f", found == seconds.end() ? 0 : 1e3 * found->second);
    }
    std::printf(" %7.2f\n", speedup(seconds));
    std::fflush(stdout);
  }

  const Exec m_exec;
  const config::Input& m_input;
  const Communicator& m_communicator;
  const std::unique_ptr<CsvFile> m_file, m_passes;  ///< on rank 0
  FiguresOfMerit m_figures;                         ///< on rank 0
  Check m_checked;                                  ///< of all kernels
  // Of each kernel, over the layers of a network: seconds, and the work in them.
  std::map<std::string, double> m_total, m_flop;
};

}  // namespace

template <class Exec>
FiguresOfMerit layers(const Exec& exec, const config::Input& input, const Communicator& communicator) {
  if (communicator.rank() == 0) {
    const linalg::BlasInfo blas = linalg::blas_info();
    std::printf("# %d rank(s), backend %s, %d thread(s) each, %s %s; %d repetitions after %d; batch %d\n",
                communicator.size(), BackendName<Exec>::value, threads(exec), blas.library.c_str(), blas.core.c_str(),
                input.bench.repetitions, input.bench.warmup, input.bench.batch);
    if (!blas.warning.empty()) std::printf("warning: %s\n", blas.warning.c_str());
    std::printf("#%9s %5s  %-16s %-20s %9s %9s %9s %9s %9s %7s\n", "network", "px", "layer", "count x shape", "fp32 ms",
                "bf16 ms", "int8 ms", "scq ms", "fqt ms", "speed-up");
  }
  LayerBench<Exec> bench(exec, input, communicator);
  for (const std::string& network : input.bench.layers) {
    if (!has_images(network)) {
      bench.network(network, 0);
      continue;
    }
    for (const std::int64_t pixels : input.bench.pixels) bench.network(network, static_cast<int>(pixels));
  }
  const FiguresOfMerit figures = bench.finish();
  if (communicator.rank() == 0) std::printf("# results are in %s\n", input.run.output.c_str());
  return figures;
}

#define ONEBIT_INSTANTIATE(Exec) template FiguresOfMerit layers(const Exec&, const config::Input&, const Communicator&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::bench
