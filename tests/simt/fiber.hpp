#pragma once
/// \file fiber.hpp
/// A thread of the simulated device: a stack of its own, on which the one thread of the host that simulates goes on.

#include <cstddef>
#include <functional>

#if !defined(__x86_64__) || defined(ONEBIT_SIMT_UCONTEXT)
#include <ucontext.h>
#define ONEBIT_SIMT_BY_UCONTEXT
#endif

namespace onebit::simt {

/// Runs a function until it calls `leave`, and goes on behind that call the next time.
class Fiber {
public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next `enter` begins `body`, which outlives its run. What ran before has ended.
  void begin(const std::function<void()>& body);
  /// Runs until the body calls `leave` or ends.
  void enter();
  /// Back to who called `enter`.
  void leave();
  bool has_ended() const { return m_ended; }

private:
  static void run(Fiber* fiber);
  static void start();

  char* m_memory;  ///< the stack, above a page that nobody may touch
  const std::function<void()>* m_body = nullptr;
  bool m_ended = true;
#ifdef ONEBIT_SIMT_BY_UCONTEXT
  ucontext_t m_inside, m_outside;
#else
  void *m_inside = nullptr, *m_outside = nullptr;  ///< stack pointers
#endif
};

}  // namespace onebit::simt
