#pragma once
/// \file onednn_engine.hpp
/// What the calls of oneDNN share. Only the sources that the host's compiler translates include it (onednn.hpp).

#include <dnnl.hpp>
#include <vector>

namespace onebit::linalg {

inline const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

/// Of the calling thread.
inline dnnl::stream& stream() {
  thread_local dnnl::stream of_thread(engine());
  return of_thread;
}

/// Memory of the caller; oneDNN's type has no constant data.
inline dnnl::memory memory_of(const dnnl::memory::desc& shape, const void* data) {
  return dnnl::memory(shape, engine(), const_cast<void*>(data));
}

/// Scratch memory of the thread, because threads may not share the library's; valid until the next call.
inline dnnl::memory scratch_memory(const dnnl::memory::desc& shape) {
  thread_local std::vector<char> scratch;
  if (scratch.size() < shape.get_size()) scratch.resize(shape.get_size());
  return memory_of(shape, scratch.data());
}

/// How primitives get scratch_memory.
inline dnnl::primitive_attr with_own_scratch() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

}  // namespace onebit::linalg
