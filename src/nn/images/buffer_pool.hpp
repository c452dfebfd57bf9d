#pragma once
/// \file buffer_pool.hpp
/// Buffers that live for a part of a backward pass, and whose memory the next ones take.

#include <cstddef>
#include <utility>
#include <vector>

#include "base/kokkos.hpp"

namespace onebit::nn {

/// It allocates in the first pass alone, because every pass takes the same lengths in the same order.
template <class Exec, class Real>
class BufferPool {
public:
  using Buffer = Vector<Exec, Real>;

  /// A buffer of `length` elements, in the smallest free memory that has them.
  Buffer take(std::size_t length) {
    Memory* best = nullptr;
    for (Memory& memory : m_all) {
      const bool fits = memory.is_free && memory.whole.extent(0) >= length;
      if (fits && (!best || memory.whole.extent(0) < best->whole.extent(0))) best = &memory;
    }
    if (!best) best = &m_all.emplace_back(Memory{make_uninitialized<Exec, Real>("OneBit::nn::BufferPool", length)});
    best->is_free = false;
    return Kokkos::subview(best->whole, std::make_pair(std::size_t{0}, length));
  }

  /// Frees the memory of a buffer. What is queued on the execution space may still use it, because that runs in order.
  void give(const Buffer& buffer) {
    for (Memory& memory : m_all)
      if (memory.whole.data() == buffer.data()) memory.is_free = true;
  }

private:
  struct Memory {
    Buffer whole;
    bool is_free = true;
  };
  std::vector<Memory> m_all;
};

}  // namespace onebit::nn
