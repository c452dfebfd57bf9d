#pragma once
/// \file blas.hpp
/// The library that computes matrix products in float on the host, for run.csv and for a warning if it is set up badly.

#include <string>

namespace onebit::linalg {

struct BlasInfo {
  std::string library;  ///< e.g. "oneDNN-2.6.3", "OpenBLAS-0.3.21"; "BLAS" if it does not tell
  std::string core;     ///< kernels in use, e.g. "AVX-512", "Haswell"; empty if the library does not tell
  std::string warning;  ///< one sentence if the kernels are older than the processor, else empty
};

BlasInfo blas_info();

/// Limits the BLAS to one thread for its scope. A BLAS with OpenMP limits itself inside a parallel region, but the
/// Serial backend has none, and a BLAS with threads of its own does not see regions.
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
