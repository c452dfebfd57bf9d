#pragma once
/// \file stream.hpp
/// Stores of the host that go past its caches. A processor reads a cache line before it writes a part of it, but not
/// if a stream writes the whole line. So a large result, which does not stay in a cache until it is read, costs half
/// the traffic.

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace onebit {

/// Least bytes of a result that is streamed: about twice a core's own cache.
inline constexpr std::size_t least_streamed = std::size_t{4} << 20;

namespace stream {

inline constexpr std::size_t line = 64;

/// Whether [begin, begin + size) is made of whole cache lines.
inline bool has_whole_lines(const void* begin, std::size_t size) {
  return reinterpret_cast<std::uintptr_t>(begin) % line == 0 && size % line == 0;
}

/// to ← `size` bytes of `from`.
inline void copy(void* to, const void* from, std::size_t size) {
#ifdef __SSE2__
  if (has_whole_lines(to, size)) {
    auto* const destination = static_cast<__m128i*>(to);
    const auto* const source = static_cast<const __m128i*>(from);
    for (std::size_t i = 0; i < size / sizeof(__m128i); ++i)
      _mm_stream_si128(destination + i, _mm_loadu_si128(source + i));
    return;
  }
#endif
  std::memcpy(to, from, size);
}

/// The same, past the caches or not.
inline void copy(void* to, const void* from, std::size_t size, bool streamed) {
  if (streamed) return copy(to, from, size);
  std::memcpy(to, from, size);
}

/// `size` bytes ← 0.
inline void clear(void* to, std::size_t size) {
#ifdef __SSE2__
  char* at = static_cast<char*>(to);
  char* const end = at + size;
  const std::size_t head = (line - reinterpret_cast<std::uintptr_t>(at) % line) % line;
  if (size >= head + line) {
    std::memset(at, 0, head);
    for (at += head; end - at >= static_cast<std::ptrdiff_t>(line); at += line)
      for (std::size_t i = 0; i < line; i += sizeof(__m128i))
        _mm_stream_si128(reinterpret_cast<__m128i*>(at + i), _mm_setzero_si128());
    std::memset(at, 0, end - at);
    return;
  }
#endif
  std::memset(to, 0, size);
}

/// Makes what this thread streamed visible to other threads when they next synchronise with it.
inline void finish() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

}  // namespace stream
}  // namespace onebit
