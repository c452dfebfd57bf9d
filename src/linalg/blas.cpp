#include "linalg/blas.hpp"

#include <algorithm>

#include "linalg/vendor/onednn.hpp"

// Weak symbols, because another BLAS lacks OpenBLAS's functions, and a Serial build may lack OpenMP's.
extern "C" {
char* openblas_get_config() __attribute__((weak));
char* openblas_get_corename() __attribute__((weak));
void openblas_set_num_threads(int) __attribute__((weak));
#ifdef __clang__  // LLVM's omp.h declares them without noexcept, GNU's with it
int omp_get_max_threads() __attribute__((weak));
void omp_set_num_threads(int) __attribute__((weak));
#else
int omp_get_max_threads() noexcept __attribute__((weak));
void omp_set_num_threads(int) noexcept __attribute__((weak));
#endif
}

namespace onebit::linalg {

BlasInfo blas_info() {
  if (onednn_is_faster()) return {onednn_version(), "AVX-512", ""};
  if (!openblas_get_config || !openblas_get_corename) return {"BLAS", "", ""};
  BlasInfo info;
  const std::string config = openblas_get_config();
  info.library = config.substr(0, config.find(' ', config.find(' ') + 1));
  std::replace(info.library.begin(), info.library.end(), ' ', '-');
  info.core = openblas_get_corename();
#if defined(__x86_64__) && defined(__GNUC__)
  const char* const older_than_avx512[] = {"Haswell", "Zen", "Sandybridge", "Nehalem", "Prescott", "Core2"};
  const bool old = std::any_of(std::begin(older_than_avx512), std::end(older_than_avx512),
                               [&](const char* core) { return info.core == core; });
  if (old && __builtin_cpu_supports("avx512f"))
    info.warning = "OpenBLAS runs its " + info.core +
                   " kernels on a processor with AVX-512; unset OPENBLAS_CORETYPE, or matrix products are slow";
#endif
  return info;
}

// OpenBLAS with OpenMP and MKL follow the OpenMP setting of the calling thread. OpenBLAS with pthreads has its own
// setting, which nothing else in this program uses, so it stays at 1. Setting it may change OpenMP's, so that is read
// first.
SingleThreadedBlas::SingleThreadedBlas() {
  if (omp_get_max_threads && omp_set_num_threads) m_threads = omp_get_max_threads();
  static const bool own_threads_off = openblas_set_num_threads ? (openblas_set_num_threads(1), true) : false;
  (void)own_threads_off;
  if (m_threads > 0) omp_set_num_threads(1);
}

SingleThreadedBlas::~SingleThreadedBlas() {
  if (m_threads > 0) omp_set_num_threads(m_threads);
}

}  // namespace onebit::linalg
