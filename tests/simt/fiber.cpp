#include "simt/fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace onebit::simt {
namespace {

constexpr std::size_t page = 4096, stack_bytes = std::size_t{512} << 10;
// Stacks begin at different places of a page: all at the same would share a few lines of the cache.
constexpr std::size_t shift_bytes = 5 * 64;

}  // namespace

thread_local Fiber* Fiber::starting = nullptr;

Fiber::Fiber() {
  void* const memory = mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) throw std::bad_alloc();
  m_memory = static_cast<char*>(memory);
  static std::size_t fibers = 0;
  m_top = m_memory + page + stack_bytes - fibers++ * shift_bytes % page;
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
  m_inside.uc_stack.ss_size = m_top - m_memory - page;
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
  auto** top = reinterpret_cast<void**>(m_top);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::start);
  m_inside = top;
}
#endif

}  // namespace onebit::simt
