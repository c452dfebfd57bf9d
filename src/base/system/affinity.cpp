#include "base/system/affinity.hpp"

#if defined(_OPENMP) && defined(__linux__)
#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <vector>
#endif

namespace onebit {

void leave_first_place() {
#if defined(_OPENMP) && defined(__linux__)
  std::vector<int> processors;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> of_place(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, of_place.data());
    processors.insert(processors.end(), of_place.begin(), of_place.end());
  }
  if (processors.empty()) return;
  const int count = *std::max_element(processors.begin(), processors.end()) + 1;
  cpu_set_t* const set = CPU_ALLOC(count);
  if (set == nullptr) return;
  const std::size_t bytes = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(bytes, set);
  for (const int processor : processors) CPU_SET_S(processor, bytes, set);
  // A failure, e.g. of a processor that was taken away meanwhile, leaves the thread where it is.
  (void)sched_setaffinity(0, bytes, set);
  CPU_FREE(set);
#endif
}

}  // namespace onebit
