#include "bench/pass_times.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/kokkos.hpp"
#include "base/timer.hpp"

namespace onebit::bench {
namespace {

namespace tools = Kokkos::Tools::Experimental;

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

}  // namespace

PassTimes::PassTimes() {
  state() = {};
  state().before = tools::get_callbacks();
  tools::EventSet callbacks = state().before;
  callbacks.begin_parallel_for = callbacks.begin_parallel_reduce = callbacks.begin_parallel_scan = begin_kernel;
  callbacks.end_parallel_for = callbacks.end_parallel_reduce = callbacks.end_parallel_scan = end_kernel;
  callbacks.push_region = push_region;
  callbacks.pop_region = pop_region;
  tools::set_callbacks(callbacks);
}

PassTimes::~PassTimes() { tools::set_callbacks(state().before); }

std::vector<Pass> PassTimes::take() { return std::exchange(state().passes, {}); }

}  // namespace onebit::bench
