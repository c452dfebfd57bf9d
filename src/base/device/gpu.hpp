#pragma once
/// \file gpu.hpp
/// The runtime of this build's GPUs, CUDA or HIP, under one name. Their functions differ in the prefix alone:
/// ONEBIT_GPU(Free) is cudaFree or hipFree. The macro is not defined in a build without GPUs. ONEBIT_SIMT is a build
/// for tests, which has the simulated device of tests/simt in a GPU's place.

#include <Kokkos_Core.hpp>

#if defined(KOKKOS_ENABLE_CUDA)
#define ONEBIT_GPU(name) cuda##name
#elif defined(KOKKOS_ENABLE_HIP)
#define ONEBIT_GPU(name) hip##name
#elif defined(ONEBIT_SIMT)
#include <simt/simt.hpp>
#define ONEBIT_GPU(name) simt##name
#endif

/// Defined while the compiler translates for a GPU.
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
#define ONEBIT_DEVICE_CODE
#endif

#ifdef ONEBIT_GPU
namespace onebit::gpu {

// Names of the backend in the input, of the runtime, and of tools that show the GPUs and find a kernel's error.
#ifdef KOKKOS_ENABLE_CUDA
inline constexpr char backend[] = "cuda", runtime[] = "CUDA", monitor[] = "nvidia-smi", checker[] = "compute-sanitizer";
using Properties = cudaDeviceProp;
#elif defined(ONEBIT_SIMT)
inline constexpr char backend[] = "simt", runtime[] = "simulated device", monitor[] = "tests/simt", checker[] = "gdb";
using Properties = simtDeviceProp;
#else
inline constexpr char backend[] = "hip", runtime[] = "HIP", monitor[] = "rocm-smi", checker[] = "rocgdb";
using Properties = hipDeviceProp_t;
#endif

using Error = ONEBIT_GPU(Error_t);
using Event = ONEBIT_GPU(Event_t);
using Stream = ONEBIT_GPU(Stream_t);
inline constexpr Error success = ONEBIT_GPU(Success), not_ready = ONEBIT_GPU(ErrorNotReady);

}  // namespace onebit::gpu
#endif
