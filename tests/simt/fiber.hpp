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

#ifndef ONEBIT_SIMT_BY_UCONTEXT
/// Keeps in `save` where this stack goes on, and goes on where `load` says. swapcontext would ask the kernel for signal
/// masks each time. A part of its caller, and with a jump: a return would go elsewhere than to the last call, which is
/// where the processor expects it.
inline __attribute__((always_inline)) void switch_stacks(void** save, void* load) {
  asm volatile(
      "leaq -128(%%rsp), %%rsp\n\t"  // below the bytes that a function without calls uses under its stack
      "pushq %%rbp\n\t"
      "pushq %%rbx\n\t"
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rax\n\t"
      "movq %%rsp, (%%rdi)\n\t"
      "movq %%rsi, %%rsp\n\t"
      "popq %%rax\n\t"
      "jmp *%%rax\n"
      "1:\n\t"
      "popq %%rbx\n\t"
      "popq %%rbp\n\t"
      "leaq 128(%%rsp), %%rsp"
      : "+D"(save), "+S"(load)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",
        "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc",
        "memory");
}
#endif

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

  static thread_local Fiber* starting;

  char *m_memory, *m_top;  ///< the stack, above a page that nobody may touch
  const std::function<void()>* m_body = nullptr;
  bool m_ended = true;
#ifdef ONEBIT_SIMT_BY_UCONTEXT
  ucontext_t m_inside, m_outside;
#else
  void *m_inside = nullptr, *m_outside = nullptr;  ///< stack pointers
#endif
};

#ifndef ONEBIT_SIMT_BY_UCONTEXT
inline void Fiber::enter() {
  starting = this;
  switch_stacks(&m_outside, m_inside);
}
inline void Fiber::leave() { switch_stacks(&m_inside, m_outside); }
#endif

}  // namespace onebit::simt
