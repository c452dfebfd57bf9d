#include "simt/fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#ifndef ONEBIT_SIMT_BY_UCONTEXT
extern "C" void onebit_simt_switch(void** save, void* load);
// Keeps what the calling convention of System V preserves. swapcontext asks the kernel for signal masks each time.
asm(R"(
.text
.globl onebit_simt_switch
.type onebit_simt_switch,@function
onebit_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size onebit_simt_switch,.-onebit_simt_switch
)");
#endif

namespace onebit::simt {
namespace {

constexpr std::size_t page = 4096, stack_bytes = std::size_t{512} << 10;
thread_local Fiber* starting = nullptr;

}  // namespace

Fiber::Fiber() {
  void* const memory = mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) throw std::bad_alloc();
  m_memory = static_cast<char*>(memory);
}

Fiber::~Fiber() { munmap(m_memory, page + stack_bytes); }

void Fiber::run(Fiber* fiber) {
  (*fiber->m_body)();
  fiber->m_ended = true;
  fiber->leave();
}

void Fiber::start() { run(starting); }

#ifdef ONEBIT_SIMT_BY_UCONTEXT
void Fiber::begin(const std::function<void()>& body) {
  m_body = &body;
  m_ended = false;
  getcontext(&m_inside);
  m_inside.uc_stack.ss_sp = m_memory + page;
  m_inside.uc_stack.ss_size = stack_bytes;
  m_inside.uc_link = nullptr;
  makecontext(&m_inside, &Fiber::start, 0);
}
void Fiber::enter() {
  starting = this;
  swapcontext(&m_outside, &m_inside);
}
void Fiber::leave() { swapcontext(&m_inside, &m_outside); }
#else
void Fiber::begin(const std::function<void()>& body) {
  m_body = &body;
  m_ended = false;
  // A function begins with a stack pointer that is 8 bytes below a multiple of 16, where its return address lies.
  auto** top = reinterpret_cast<void**>(m_memory + page + stack_bytes);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::start);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  m_inside = top;
}
void Fiber::enter() {
  starting = this;
  onebit_simt_switch(&m_outside, m_inside);
}
void Fiber::leave() { onebit_simt_switch(&m_inside, m_outside); }
#endif

}  // namespace onebit::simt
