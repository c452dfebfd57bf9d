#include "comm/transport/device_mpi.hpp"

#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <cstdlib>

namespace onebit::comm {
namespace {

/// A variable that switches the support of a library whose version holds `library`.
struct Switch {
  const char* library;
  const char* variable;
  bool needed;  ///< off unless it is set
};
constexpr Switch switches[] = {
    {"CRAY MPICH", "MPICH_GPU_SUPPORT_ENABLED", true},
    {"MVAPICH2", "MV2_USE_CUDA", true},
    {"MVAPICH2", "MV2_USE_ROCM", true},
    {"MVAPICH Version", "MVP_USE_CUDA", false},
    {"MVAPICH Version", "MVP_USE_ROCM", false},
    {"MVAPICH Version", "MVP_ENABLE_GPU", false},
    {"Intel(R) MPI", "I_MPI_OFFLOAD", true},
    {"MPICH Version", "MPIR_CVAR_ENABLE_GPU", false},
    {"Open MPI", "OMPI_MCA_opal_cuda_support", false},  // its function does not ask
};

}  // namespace

MpiLibrary this_mpi_library() {
  MpiLibrary library;
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(version, &length);
  library.version.assign(version, static_cast<std::size_t>(length));
  library.environment = [](const char* name) -> const char* { return std::getenv(name); };
  // src/CMakeLists.txt finds out which of these link.
#if defined(KOKKOS_ENABLE_HIP) && defined(ONEBIT_HAS_MPIX_Query_rocm_support)
  library.query = "MPIX_Query_rocm_support";
  library.answer = MPIX_Query_rocm_support() == 1;
#elif !defined(KOKKOS_ENABLE_HIP) && defined(ONEBIT_HAS_MPIX_Query_cuda_support)
  library.query = "MPIX_Query_cuda_support";
  library.answer = MPIX_Query_cuda_support() == 1;
#elif defined(ONEBIT_HAS_MPIX_GPU_query_support)
#ifdef KOKKOS_ENABLE_HIP
  constexpr int kind = MPIX_GPU_SUPPORT_HIP;
#else
  constexpr int kind = MPIX_GPU_SUPPORT_CUDA;
#endif
  int supported = 0;
  library.query = "MPIX_GPU_query_support";
  library.answer = MPIX_GPU_query_support(kind, &supported) == MPI_SUCCESS && supported != 0;
#endif
  return library;
}

DeviceSupport said_by(const MpiLibrary& library) {
  std::string missing;
  for (const Switch& one : switches) {
    if (library.version.find(one.library) == std::string::npos) continue;
    if (const char* const value = library.environment(one.variable); value != nullptr && *value != '\0') {
      const std::string setting = std::string(one.variable) + "=" + value;
      if (std::string(value) == "0") return {false, setting + " says no"};
      if (one.needed) return {true, setting + " says yes"};
    } else if (one.needed) {
      missing += (missing.empty() ? "" : " and ") + std::string(one.variable);
    }
  }
  if (!missing.empty()) return {false, missing + " is not set, and this MPI library needs it for device memory"};
  if (library.query.empty())
    return {false,
            "this MPI library has none of MPIX_Query_cuda_support, MPIX_Query_rocm_support and "
            "MPIX_GPU_query_support"};
  return {library.answer, library.query + " says " + (library.answer ? "yes" : "no")};
}

}  // namespace onebit::comm
