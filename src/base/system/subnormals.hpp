#pragma once
/// \file subnormals.hpp
/// The program treats subnormal numbers as 0: results below the smallest normal number (1.2e-38 in float, 2.2e-308 in
/// double) become 0 (flush to zero), and so do such operands (denormals are zero). Intel processors take more than a
/// hundred cycles for an operation with a subnormal number. A thread inherits the mode from the thread that starts it.
/// In device code, a compiler flag sets the mode (CMakeLists.txt).

#include <cstdint>

#include "base/kokkos.hpp"

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace onebit {

/// Sets the mode of the calling thread. Does nothing on processors other than x86 and AArch64.
inline void flush_subnormals() {
#if defined(__SSE2__)
  constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
  _mm_setcsr(_mm_getcsr() | flush_to_zero | denormals_are_zero);
#elif defined(__aarch64__)
  constexpr std::uint64_t flush_to_zero = std::uint64_t{1} << 24;  // FPCR.FZ, for operands and results
  std::uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | flush_to_zero));
#endif
}

/// Sets the mode of every thread of the host backends, including those that are older than the calling thread's mode.
/// Kokkos must have been started.
inline void flush_subnormals_of_backends() {
  flush_subnormals();  // Serial
#ifdef KOKKOS_ENABLE_OPENMP
#pragma omp parallel
  flush_subnormals();
#endif
}

}  // namespace onebit
