#pragma once
/// \file event.hpp
/// Order between instances and threads without a fence: only what needs the work of an instance waits for it.

#include "base/error.hpp"
#include "base/kokkos.hpp"

namespace onebit::comm {

/// A place in the work of an instance. Host instances are fenced as the event is recorded, so nothing is left to wait
/// for.
template <class Exec>
class Event {
public:
  /// The event is after all work that `exec` has got so far. An event may be recorded again.
  void record(const Exec& exec) { fence(exec, "OneBit::comm::event"); }
  /// What `exec` gets from now on runs after the event.
  void hold(const Exec& /*exec*/) const {}
  bool has_happened() const { return true; }
  /// The calling thread sleeps until the event has happened.
  void wait() const {}
};

#ifdef ONEBIT_GPU
template <>
class Event<GpuExec> {
public:
  Event() {
    check(ONEBIT_GPU(EventCreateWithFlags)(&m_event, ONEBIT_GPU(EventDisableTiming) | ONEBIT_GPU(EventBlockingSync)));
  }
  ~Event() { (void)ONEBIT_GPU(EventDestroy)(m_event); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(const GpuExec& exec) { check(ONEBIT_GPU(EventRecord)(m_event, stream_of(exec))); }
  void hold(const GpuExec& exec) const { check(ONEBIT_GPU(StreamWaitEvent)(stream_of(exec), m_event, 0)); }
  bool has_happened() const {
    const gpu::Error state = ONEBIT_GPU(EventQuery)(m_event);
    if (state == gpu::not_ready) return false;
    check(state);
    return true;
  }
  void wait() const { check(ONEBIT_GPU(EventSynchronize)(m_event)); }

private:
  static void check(gpu::Error error) {
    if (error != gpu::success)
      throw RunError(gpu::runtime, std::string("an event failed: ") + ONEBIT_GPU(GetErrorString)(error),
                     std::string("if it says so of a kernel, find that kernel with ") + gpu::checker);
  }
  gpu::Event m_event = nullptr;
};
#endif

}  // namespace onebit::comm
