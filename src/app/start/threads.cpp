#include "app/start/threads.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/kokkos.hpp"
#include "base/system/host.hpp"
#ifdef KOKKOS_ENABLE_OPENMP
#include <omp.h>
#endif

namespace onebit::app {
namespace {

constexpr const char* threads_variable = "KOKKOS_NUM_THREADS";
constexpr const char* device_variables[] = {"KOKKOS_DEVICE_ID",    "KOKKOS_MAP_DEVICE_ID_BY", "KOKKOS_NUM_DEVICES",
                                            "KOKKOS_RAND_DEVICES", "KOKKOS_SKIP_DEVICE",      "KOKKOS_VISIBLE_DEVICES"};

/// Those that were in the environment.
std::map<std::string, std::string>& taken() {
  static std::map<std::string, std::string> variables;
  return variables;
}

void take(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return;
  taken()[name] = value;
  ::unsetenv(name);
}

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t") == std::string::npos; }

/// The first of the numbers in "4" or "4,2", which has one for each level of nested regions.
/// \throws InputError for a text of another form
long first_number(const char* variable, const std::string& text) {
  long first = 0;
  const char* at = text.c_str();
  for (bool goes_on = true; goes_on;) {
    char* end = nullptr;
    const long number = std::strtol(at, &end, 10);
    const bool is_number = end != at && number > 0;
    while (*end == ' ' || *end == '\t') ++end;
    if (!is_number || (*end != ',' && *end != '\0'))
      throw InputError(variable, "'" + excerpt(text) + "' is no number of threads",
                       "give it a positive number, unset it, or set run.threads");
    if (first == 0) first = number;
    goes_on = *end == ',';
    at = end + 1;
  }
  return first;
}

#ifdef KOKKOS_ENABLE_OPENMP
/// \param asks what asks for this number
int startable(const std::string& asks, long threads) {
  if (threads > config::most_threads)
    throw InputError(asks, "OpenMP would start " + std::to_string(threads) + " threads, more than Kokkos holds",
                     "set it, or run.threads, to at most " + std::to_string(config::most_threads));
  // Kokkos needs exactly as many threads as it asks for.
  ::omp_set_dynamic(0);
  if (::omp_get_max_active_levels() < 1) ::omp_set_max_active_levels(1);
  int started = 0;
#pragma omp parallel num_threads(static_cast <int>(threads))
#pragma omp single
  started = ::omp_get_num_threads();
  if (started < threads)
    throw InputError(
        asks,
        "OpenMP starts " + std::to_string(started) + " thread(s) where " + std::to_string(threads) + " are asked for",
        "raise or unset OMP_THREAD_LIMIT, or lower " + asks);
  return started;
}
#endif

/// What the ranks of a host start together.
struct HostThreads {
  double ranks = 0, threads = 0;
  double cores = 0;   ///< on which any of the threads may run
  double shared = 0;  ///< cores to which several threads are bound
  bool is_crowded() const { return threads > cores || shared > 0; }
};

/// Cores that a host can number.
int most_cores() { return std::max(1024, static_cast<int>(::sysconf(_SC_NPROCESSORS_CONF))); }

/// Adds the cores on which the calling thread may run. \param may_run, bound (cores)
void add_cores(std::vector<double>& may_run, std::vector<double>& bound) {
  const int most = static_cast<int>(may_run.size());
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(most), [](cpu_set_t* s) { CPU_FREE(s); });
  const std::size_t bytes = CPU_ALLOC_SIZE(most);
  CPU_ZERO_S(bytes, set.get());
  if (::sched_getaffinity(0, bytes, set.get()) != 0) return;
  const bool is_bound = CPU_COUNT_S(bytes, set.get()) == 1;
  for (int core = 0; core < most; ++core) {
    if (!CPU_ISSET_S(core, bytes, set.get())) continue;
    may_run[core] = 1;
    if (is_bound) ++bound[core];
  }
}

/// The same for all threads of this rank.
void add_cores_of_threads(int threads, std::vector<double>& may_run, std::vector<double>& bound) {
#ifdef KOKKOS_ENABLE_OPENMP
#pragma omp parallel num_threads(threads)
#pragma omp critical
#endif
  add_cores(may_run, bound);
  (void)threads;
}

HostThreads threads_of_host(const Communicator& host, const std::vector<double>& may_run, std::vector<double> bound,
                            int threads) {
  std::vector<double> reachable = may_run;
  host.sum(reachable.data(), static_cast<int>(reachable.size()));
  host.sum(bound.data(), static_cast<int>(bound.size()));
  double sum = threads;
  host.sum(&sum, 1);
  const auto count = [](const std::vector<double>& values, double above) {
    return static_cast<double>(std::count_if(values.begin(), values.end(), [&](double v) { return v > above; }));
  };
  return {static_cast<double>(host.size()), sum, count(reachable, 0), count(bound, 1)};
}

void warn(const HostThreads& crowded, const std::string& host, double hosts) {
  const int share = std::max(1, static_cast<int>(crowded.cores / crowded.ranks));
  const std::string others =
      hosts > 1 ? ", as on " + std::to_string(static_cast<int>(hosts) - 1) + " other host(s)" : "";
  std::printf(
      "warning: on %s, %.0f rank(s) start %.0f threads and may run on %.0f core(s)%s%s: threads wait for each "
      "other, and a step may take many times as long\n"
      "  remedy: set OMP_NUM_THREADS (or run.threads) to %d, start fewer ranks on a host, or give each rank cores "
      "of its own (mpirun --map-by, srun --cpus-per-task; OMP_PROC_BIND=false)\n",
      host.c_str(), crowded.ranks, crowded.threads, crowded.cores,
      crowded.shared > 0 ? ", of which some have several threads bound to them" : "", others.c_str(), share);
}

}  // namespace

void take_kokkos_variables() {
  take(threads_variable);
  for (const char* const name : device_variables) take(name);
  // Of the warnings and the regions of memory of Kokkos before 4.
  take("KOKKOS_DISABLE_WARNINGS");
  take("KOKKOS_NUMA");
}

int host_threads(const config::Input& input) {
  for (const char* const name : device_variables)
    if (is_gpu(input.run.backend) && taken().count(name) > 0)
      throw InputError(name, "the variable chooses a GPU, and here each rank of a host takes another one",
                       "unset it; CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES limits the GPUs");
  if (input.run.backend == Backend::serial) return 1;
#ifdef KOKKOS_ENABLE_OPENMP
  if (input.run.threads > 0) return startable("run.threads", input.run.threads);
  const std::string kokkos = taken()[threads_variable];
  if (!is_blank(kokkos)) return startable(threads_variable, first_number(threads_variable, kokkos));
  // libgomp ignores a text that it does not understand, and takes all cores.
  const char* const openmp = std::getenv("OMP_NUM_THREADS");
  const bool is_set = openmp != nullptr && !is_blank(openmp);
  const long threads = is_set ? std::max<long>(first_number("OMP_NUM_THREADS", openmp), ::omp_get_max_threads())
                              : ::omp_get_max_threads();
  return startable("OMP_NUM_THREADS", std::min<long>(threads, std::max(1, ::omp_get_thread_limit())));
#else
  return std::max(1, input.run.threads);
#endif
}

void report_threads(const Communicator& world, int threads) {
  std::vector<double> may_run(most_cores()), bound(may_run.size());
  add_cores_of_threads(threads, may_run, bound);
  const std::vector<int> hosts = world.hosts();
  const Communicator host(world, hosts[world.rank()], world.rank());
  const HostThreads here = threads_of_host(host, may_run, bound, threads);
  const double mine = std::accumulate(may_run.begin(), may_run.end(), 0.0);
  const double numbers[5] = {here.ranks, here.threads, here.cores, here.shared, host.rank() == 0 ? 1.0 : 0.0};
  const std::vector<double> all = world.gather(numbers, 5);
  int worst = -1;
  HostThreads crowded;
  double count = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    const double* const n = all.data() + 5 * rank;
    const HostThreads found{n[0], n[1], n[2], n[3]};
    if (n[4] == 0 || !found.is_crowded()) continue;
    ++count;
    if (worst >= 0 && found.threads * crowded.cores <= crowded.threads * found.cores) continue;
    worst = rank;
    crowded = found;
  }
  const std::string name = worst >= 0 ? world.broadcast(host_name(), worst) : "";
  if (world.rank() > 0) return;
  const char* const binding = std::getenv("OMP_PROC_BIND");
  std::printf(
      "threads: %d a rank; ranks on this host: %.0f; a rank may run on %.0f of %ld core(s); OMP_PROC_BIND: %s\n",
      threads, here.ranks, mine, ::sysconf(_SC_NPROCESSORS_ONLN), binding != nullptr ? binding : "not set");
  if (worst >= 0) warn(crowded, name, count);
}

}  // namespace onebit::app
