#pragma once
/// \file blas.hpp
/// Which library makes the host's matrix products in float, for run.csv and for a warning where it is held back.

#include <string>

namespace onebit::linalg {

/// The library of the host's products in float in this run.
struct BlasInfo {
  std::string library;  ///< e.g. "oneDNN-2.6.3", "OpenBLAS-0.3.21"; "Kokkos-fallback" without a BLAS
  std::string core;     ///< kernels in use, e.g. "AVX-512", "Haswell"; empty where the library does not tell
  std::string warning;  ///< one sentence where the kernels are older than the processor, else empty
};

/// What the library says of itself.
BlasInfo blas_info();

/// Keeps the BLAS to one thread for its scope. Inside a parallel region a BLAS with OpenMP does so by itself, but the
/// Serial backend calls from outside of one, and a BLAS with threads of its own does not know of regions.
class SingleThreadedBlas {
public:
  SingleThreadedBlas();
  ~SingleThreadedBlas();
  SingleThreadedBlas(const SingleThreadedBlas&) = delete;
  SingleThreadedBlas& operator=(const SingleThreadedBlas&) = delete;

private:
  int m_threads = 0;
};

}  // namespace onebit::linalg
