#pragma once
/// \file event.hpp
/// Order between instances and threads without a fence: only what needs the work of an instance waits for it.

#include "base/error.hpp"
#include "base/kokkos.hpp"

namespace onebit {

/// A place in the work of an instance. Host instances are fenced as the event is recorded, so nothing is left to wait
/// for.
template <class Exec>
class Event {
public:
  /// The event is after all work that `exec` has got so far. An event may be recorded again.
  void record(const Exec& exec) { fence(exec, "OneBit::base::event"); }
  /// What `exec` gets from now on runs after the event.
  void hold(const Exec& /*exec*/) const {}
  bool has_happened() const { return true; }
  /// The calling thread sleeps until the event has happened.
  void wait() const {}
};

#ifdef KOKKOS_ENABLE_CUDA
template <>
class Event<Kokkos::Cuda> {
public:
  Event() { check(cudaEventCreateWithFlags(&m_event, cudaEventDisableTiming | cudaEventBlockingSync)); }
  ~Event() { cudaEventDestroy(m_event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const Kokkos::Cuda& exec) { check(cudaEventRecord(m_event, exec.cuda_stream())); }
  void hold(const Kokkos::Cuda& exec) const { check(cudaStreamWaitEvent(exec.cuda_stream(), m_event, 0)); }
  bool has_happened() const {
    const cudaError_t state = cudaEventQuery(m_event);
    if (state == cudaErrorNotReady) return false;
    check(state);
    return true;
  }
  void wait() const { check(cudaEventSynchronize(m_event)); }

private:
  static void check(cudaError_t error) {
    if (error != cudaSuccess)
      throw RunError("CUDA", std::string("an event failed: ") + cudaGetErrorString(error),
                     "if it says so of a kernel, find that kernel with compute-sanitizer");
  }
  cudaEvent_t m_event = nullptr;
};
#endif

}  // namespace onebit
