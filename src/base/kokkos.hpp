#pragma once
/// \file kokkos.hpp
/// Kokkos as OneBit uses it: the types of Views, the execution spaces, and every difference between Kokkos 3.4 and 5.x.
/// No other file tests the version.

#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "base/device/gpu.hpp"
#include "base/error.hpp"
#include "base/system/activity.hpp"

/// Unrolls the following loop on a device, where the elements of an array stay in registers only if each index is a
/// constant.
#ifdef ONEBIT_DEVICE_CODE
#define ONEBIT_UNROLL _Pragma("unroll")
#else
#define ONEBIT_UNROLL
#endif

namespace onebit {

/// An execution space with its memory.
template <class Exec>
using DeviceOf = Kokkos::Device<Exec, typename Exec::memory_space>;
/// A flat buffer in the memory of an execution space: parameters, gradients, messages, …
template <class Exec, class T>
using Vector = Kokkos::View<T*, Kokkos::LayoutRight, DeviceOf<Exec>>;
/// A row-major matrix in the memory of an execution space.
template <class Exec, class T>
using Matrix = Kokkos::View<T**, Kokkos::LayoutRight, DeviceOf<Exec>>;
/// A row-major matrix inside a flat buffer: no ownership, no reference count.
template <class Exec, class T>
using MatrixRef = Kokkos::View<T**, Kokkos::LayoutRight, DeviceOf<Exec>, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
/// A flat buffer of the host.
template <class T>
using HostVector = Kokkos::View<T*, Kokkos::LayoutRight, Kokkos::HostSpace>;

/// The execution space on GPUs, host memory that is pinned for it, and the threads of its warps.
#if defined(KOKKOS_ENABLE_CUDA)
using GpuExec = Kokkos::Cuda;
using PinnedSpace = Kokkos::CudaHostPinnedSpace;
inline constexpr int warp_lanes = 32;
#elif defined(KOKKOS_ENABLE_HIP) && KOKKOS_VERSION >= 40000
using GpuExec = Kokkos::HIP;
using PinnedSpace = Kokkos::HIPHostPinnedSpace;
inline constexpr int warp_lanes = Kokkos::Impl::HIPTraits::WarpSize;
#elif defined(KOKKOS_ENABLE_HIP)
using GpuExec = Kokkos::Experimental::HIP;
using PinnedSpace = Kokkos::Experimental::HIPHostPinnedSpace;
inline constexpr int warp_lanes = Kokkos::Experimental::Impl::HIPTraits::WarpSize;
#elif defined(ONEBIT_SIMT)
using GpuExec = simt::Exec;
using PinnedSpace = Kokkos::HostSpace;
inline constexpr int warp_lanes = simt::warp_size;
#else
using PinnedSpace = Kokkos::HostSpace;
inline constexpr int warp_lanes = 32;
#endif

/// Whether the threads of the host compute. It does not tell whether the host can read the memory: it reads that of
/// some GPUs, too (MI300A, GH200, managed memory), whose kernels are a GPU's all the same.
#ifdef ONEBIT_GPU
template <class Exec>
inline constexpr bool is_host = !std::is_same_v<Exec, GpuExec>;
#else
template <class Exec>
inline constexpr bool is_host = true;
#endif

/// Host memory for the fastest copies to and from an execution space: pinned for a GPU.
template <class Exec>
using StagingSpace = std::conditional_t<is_host<Exec>, Kokkos::HostSpace, PinnedSpace>;

/// An uninitialised View; the caller writes every element before it reads one.
template <class Exec, class T>
Vector<Exec, T> make_uninitialized(const std::string& label, std::size_t length) {
  return Vector<Exec, T>(Kokkos::view_alloc(label, Kokkos::WithoutInitializing), length);
}

/// A new View with the values of a host vector.
template <class Exec, class T>
Vector<Exec, T> copy_to_device(const std::string& label, const std::vector<T>& values) {
  const Vector<Exec, T> copy = make_uninitialized<Exec, T>(label, values.size());
  Kokkos::deep_copy(copy,
                    Kokkos::View<const T*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(values.data(), values.size()));
  return copy;
}

/// Name of a backend in the input and in CSV files.
template <class Exec>
struct BackendName;
#ifdef KOKKOS_ENABLE_SERIAL
template <>
struct BackendName<Kokkos::Serial> {
  static constexpr const char* value = "serial";
};
#define ONEBIT_IF_SERIAL(M) M(Kokkos::Serial)
#else
#define ONEBIT_IF_SERIAL(M)
#endif
#if defined(KOKKOS_ENABLE_OPENMP) && !defined(ONEBIT_WITHOUT_OPENMP)
template <>
struct BackendName<Kokkos::OpenMP> {
  static constexpr const char* value = "openmp";
};
#define ONEBIT_IF_OPENMP(M) M(Kokkos::OpenMP)
#else
#define ONEBIT_IF_OPENMP(M)
#endif
#ifdef ONEBIT_GPU
template <>
struct BackendName<GpuExec> {
  static constexpr const char* value = gpu::backend;
};
#define ONEBIT_IF_GPU(M) M(::onebit::GpuExec)
#else
#define ONEBIT_IF_GPU(M)
#endif

/// The fastest execution space of this build on host memory.
#if defined(KOKKOS_ENABLE_OPENMP) && !defined(ONEBIT_WITHOUT_OPENMP)
using HostExec = Kokkos::OpenMP;
#else
using HostExec = Kokkos::Serial;
#endif

/// M(Exec) for each execution space of this build, for explicit instantiations and dispatch.
#define ONEBIT_FOR_EACH_BACKEND(M) ONEBIT_IF_SERIAL(M) ONEBIT_IF_OPENMP(M) ONEBIT_IF_GPU(M)

/// ONEBIT_INSTANTIATE(Exec, Real) for each execution space, with float and with double.
#define ONEBIT_OF_BOTH_REALS(Exec) ONEBIT_INSTANTIATE(Exec, float) ONEBIT_INSTANTIATE(Exec, double)
#define ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL ONEBIT_FOR_EACH_BACKEND(ONEBIT_OF_BOTH_REALS)

/// Mathematical functions for every backend (`math::exp(x)`, …).
#if KOKKOS_VERSION >= 30700
namespace math = ::Kokkos;
#else
namespace math = ::Kokkos::Experimental;
#endif

/// The lowest finite number of a type, where maxima begin. In Kokkos 5.0 those of Kokkos::Max begin with −∞.
template <class T>
inline constexpr T lowest_number = std::numeric_limits<T>::lowest();

/// Number of threads of an instance (1 for Serial; the resident threads of a GPU).
template <class Exec>
int concurrency(const Exec& exec) {
#if KOKKOS_VERSION >= 40100
  return static_cast<int>(exec.concurrency());
#else
  (void)exec;
  return static_cast<int>(Exec::concurrency());
#endif
}

/// Whether two threads may launch kernels with more than 512 bytes of arguments at once. Before 3.6, Kokkos has one
/// buffer on a GPU for the arguments of such launches, and does not lock it.
template <class Exec>
inline constexpr bool locks_large_launches = is_host<Exec> || KOKKOS_VERSION >= 30600;

/// Whether a GPU's runtime has refused a launch or failed in a kernel: Kokkos asks for that in debug builds alone.
/// \throws RunError that names the place
template <class Exec>
void check_launches(const char* label) {
  (void)label;
#ifdef ONEBIT_GPU
  if constexpr (!is_host<Exec>)
    if (const gpu::Error error = ONEBIT_GPU(PeekAtLastError)(); error != gpu::success)
      throw RunError(gpu::runtime,
                     std::string("a kernel before ") + label + " failed: " + ONEBIT_GPU(GetErrorString)(error),
                     std::string("find that kernel with ") + gpu::checker);
#endif
}

/// Waits for the work of an instance. Kokkos takes the label since 3.5.
/// \throws RunError if a kernel was not launched or failed
template <class Exec>
void fence(const Exec& exec, const char* label) {
#if KOKKOS_VERSION >= 30500
  exec.fence(label);
#else
  exec.fence();
#endif
  check_launches<Exec>(label);
}

/// A policy whose kernel takes its functor as an argument. Kokkos passes those above 512 bytes through constant memory
/// otherwise, and the host then waits for the kernel before.
template <class Policy>
auto light(const Policy& policy) {
  return Kokkos::Experimental::require(policy, Kokkos::Experimental::WorkItemProperty::HintLightWeight);
}

/// An instance with a stream of its own on a GPU, so that its copies do not wait for other instances.
template <class Exec>
class InstanceOfItsOwn {
public:
  const Exec& get() const { return m_exec; }

private:
  Exec m_exec;
};
#ifdef ONEBIT_GPU
template <>
class InstanceOfItsOwn<GpuExec> {
public:
  const GpuExec& get() const { return m_exec; }

private:
  struct Stream {
    // Non-blocking: it does not wait for the default stream.
    Stream() { (void)ONEBIT_GPU(StreamCreateWithFlags)(&value, ONEBIT_GPU(StreamNonBlocking)); }
    ~Stream() { (void)ONEBIT_GPU(StreamDestroy)(value); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    gpu::Stream value = nullptr;
  };
  Stream m_stream;  ///< outlives the instance
  GpuExec m_exec{m_stream.value};
};

/// What Kokkos names after its backend.
inline gpu::Stream stream_of(const GpuExec& exec) { return exec.ONEBIT_GPU(_stream)(); }
inline int gpu_of(const GpuExec& exec) { return exec.ONEBIT_GPU(_device)(); }
inline const gpu::Properties& properties_of(const GpuExec& exec) { return exec.ONEBIT_GPU(_device_prop)(); }
#endif

/// Selects the GPU of an instance in a new thread, which begins on GPU 0.
template <class Exec>
void use_device_of(const Exec& exec) {
  (void)exec;
#ifdef ONEBIT_GPU
  if constexpr (!is_host<Exec>) (void)ONEBIT_GPU(SetDevice)(gpu_of(exec));
#endif
}

/// A profiling region for its scope, which Kokkos Tools, Nsight and the watchdog show. Its name is
/// `OneBit::folder::what`.
class Region {
public:
  /// \param name, waits as for Activity
  explicit Region(const char* name, bool waits = false) : m_activity(name, waits) {
    Kokkos::Profiling::pushRegion(name);
  }
  ~Region() { Kokkos::Profiling::popRegion(); }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

private:
  Activity m_activity;
};

/// Most elements of a vector. The kernels of a GPU number their threads, rounded up to blocks, in 32 bits before Kokkos
/// 4.6 (kokkos#7892); a longer range has wrong results or never ends.
constexpr std::size_t longest_vector(bool on_host, int kokkos_version) {
  return on_host || kokkos_version >= 40600 ? std::numeric_limits<std::size_t>::max() : (std::size_t{1} << 32) - 1024;
}
template <class Exec>
inline constexpr std::size_t longest_vector_of = longest_vector(is_host<Exec>, KOKKOS_VERSION);

/// Whether Kokkos allocates the memory of GPUs by cudaMallocAsync, as 4.2 to 4.4 do by default, or by hipMallocAsync,
/// as later ones do before ROCm 7. Such memory comes from a pool that other processes cannot map, so MPI libraries that
/// use CUDA's or HIP's IPC fail (kokkos#7353).
#if (defined(KOKKOS_ENABLE_CUDA) && defined(KOKKOS_ENABLE_IMPL_CUDA_MALLOC_ASYNC)) || \
    (defined(KOKKOS_ENABLE_HIP) && defined(KOKKOS_ENABLE_IMPL_HIP_MALLOC_ASYNC))
inline constexpr bool allocates_from_pool = true;
#else
inline constexpr bool allocates_from_pool = false;
#endif

/// Starts Kokkos for its scope.
class KokkosSession {
public:
  /// \param threads host threads of this rank; 0: OMP_NUM_THREADS decides
  /// \param device  GPU of this rank (gpus.hpp); -1: Kokkos decides, and may give all ranks of a host the same GPU
  KokkosSession(int threads, int device) {
#if KOKKOS_VERSION >= 30700
    Kokkos::InitializationSettings settings;
    if (threads > 0) settings.set_num_threads(threads);
    if (device >= 0) settings.set_device_id(device);
    settings.set_disable_warnings(true);
    Kokkos::initialize(settings);
#else
    Kokkos::initialize(Kokkos::InitArguments(threads > 0 ? threads : -1, -1, device, true));
#endif
  }
  ~KokkosSession() { Kokkos::finalize(); }
  KokkosSession(const KokkosSession&) = delete;
  KokkosSession& operator=(const KokkosSession&) = delete;
};

/// "3.4.1"
inline std::string kokkos_version() {
  return std::to_string(KOKKOS_VERSION / 10000) + "." + std::to_string(KOKKOS_VERSION / 100 % 100) + "." +
         std::to_string(KOKKOS_VERSION % 100);
}

}  // namespace onebit
