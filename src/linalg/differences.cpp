#include "linalg/differences.hpp"

#include <algorithm>

// Functions for newer processors than the one that the library is compiled for.
#if defined(__x86_64__) && defined(__GNUC__)
#define ONEBIT_X86
#include <immintrin.h>
#endif

namespace onebit::linalg {
namespace {

/// Words after which a byte that has counted up to 8 bits of each could overflow.
constexpr int words_of_bytes = 31;

/// The number of bits of each byte.
inline std::uint32_t bits_of_bytes(std::uint32_t word) {
  word -= word >> 1 & 0x55555555u;
  word = (word & 0x33333333u) + (word >> 2 & 0x33333333u);
  return (word + (word >> 4)) & 0x0F0F0F0Fu;
}

void add_differences_portable(const TileFactors& factors, int* sums) {
  for (int r = 0; r < tile_rows; ++r) {
    std::uint32_t total[tile_columns] = {};
    for (int p = factors.planes - 1; p >= 0; --p) {
      for (std::uint32_t& count : total) count *= 2;
      for (int first = 0; first < factors.words; first += words_of_bytes) {
        const int last = std::min(first + words_of_bytes, factors.words);
        std::uint32_t bytes[tile_columns] = {};
        for (int w = first; w < last; ++w) {
          const std::uint32_t row = factors.rows[p][r][w];
          const std::uint32_t* const columns = factors.panel + w * tile_columns;
          for (int c = 0; c < tile_columns; ++c) bytes[c] += bits_of_bytes(row ^ columns[c]);
        }
        for (int c = 0; c < tile_columns; ++c) {
          const std::uint32_t halves = (bytes[c] & 0x00FF00FFu) + (bytes[c] >> 8 & 0x00FF00FFu);
          total[c] += (halves & 0xFFFFu) + (halves >> 16);
        }
      }
    }
    for (int c = 0; c < tile_columns; ++c) sums[r * tile_columns + c] += static_cast<int>(total[c]);
  }
}

#ifdef ONEBIT_X86

/// Looks up the bits of the two halves of each byte (Muła, Kurz and Lemire 2018, "Faster population counts using AVX2
/// instructions").
__attribute__((target("avx2"))) void add_differences_avx2(const TileFactors& factors, int* sums) {
  constexpr int width = 8;
  const __m256i bits_of_half =
      _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  const __m256i half = _mm256_set1_epi8(15);
  for (int c = 0; c < tile_columns; c += width) {
    __m256i total[tile_rows] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                                _mm256_setzero_si256()};
    for (int p = factors.planes - 1; p >= 0; --p) {
      for (__m256i& count : total) count = _mm256_add_epi32(count, count);
      for (int first = 0; first < factors.words; first += words_of_bytes) {
        const int last = std::min(first + words_of_bytes, factors.words);
        __m256i bytes[tile_rows] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                                    _mm256_setzero_si256()};
        for (int w = first; w < last; ++w) {
          const __m256i columns =
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(factors.panel + w * tile_columns + c));
          for (int r = 0; r < tile_rows; ++r) {
            const __m256i row = _mm256_set1_epi32(static_cast<int>(factors.rows[p][r][w]));
            const __m256i differ = _mm256_xor_si256(row, columns);
            const __m256i low = _mm256_shuffle_epi8(bits_of_half, _mm256_and_si256(differ, half));
            const __m256i high =
                _mm256_shuffle_epi8(bits_of_half, _mm256_and_si256(_mm256_srli_epi32(differ, 4), half));
            bytes[r] = _mm256_add_epi8(bytes[r], _mm256_add_epi8(low, high));
          }
        }
        for (int r = 0; r < tile_rows; ++r) {
          const __m256i pairs = _mm256_maddubs_epi16(bytes[r], _mm256_set1_epi8(1));
          total[r] = _mm256_add_epi32(total[r], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
      }
    }
    for (int r = 0; r < tile_rows; ++r) {
      __m256i* const to = reinterpret_cast<__m256i*>(sums + r * tile_columns + c);
      _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), total[r]));
    }
  }
}

#define ONEBIT_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vpopcntdq")))

/// 64 columns of a row. Without loops over them, the compiler keeps them in registers from the first use to the last.
struct FourVectors {
  static constexpr int width = 16;
  __m512i a, b, c, d;
};
ONEBIT_AVX512 inline FourVectors load(const void* words) {
  const std::uint32_t* const first = static_cast<const std::uint32_t*>(words);
  constexpr int width = FourVectors::width;
  return {_mm512_loadu_si512(first), _mm512_loadu_si512(first + width), _mm512_loadu_si512(first + 2 * width),
          _mm512_loadu_si512(first + 3 * width)};
}
ONEBIT_AVX512 inline FourVectors operator+(const FourVectors& x, const FourVectors& y) {
  return {_mm512_add_epi32(x.a, y.a), _mm512_add_epi32(x.b, y.b), _mm512_add_epi32(x.c, y.c),
          _mm512_add_epi32(x.d, y.d)};
}
ONEBIT_AVX512 inline FourVectors differences(std::uint32_t word, const FourVectors& columns) {
  const __m512i row = _mm512_set1_epi32(static_cast<int>(word));
  return {_mm512_popcnt_epi32(_mm512_xor_si512(row, columns.a)), _mm512_popcnt_epi32(_mm512_xor_si512(row, columns.b)),
          _mm512_popcnt_epi32(_mm512_xor_si512(row, columns.c)), _mm512_popcnt_epi32(_mm512_xor_si512(row, columns.d))};
}
ONEBIT_AVX512 inline void add_to(int* sums, const FourVectors& x) {
  const FourVectors total = load(sums) + x;
  constexpr int width = FourVectors::width;
  _mm512_storeu_si512(sums, total.a);
  _mm512_storeu_si512(sums + width, total.b);
  _mm512_storeu_si512(sums + 2 * width, total.c);
  _mm512_storeu_si512(sums + 3 * width, total.d);
}

ONEBIT_AVX512 void add_differences_avx512(const TileFactors& factors, int* sums) {
  const __m512i zero = _mm512_setzero_si512();
  FourVectors row0{zero, zero, zero, zero}, row1 = row0, row2 = row0, row3 = row0;
  for (int p = factors.planes - 1; p >= 0; --p) {
    row0 = row0 + row0;
    row1 = row1 + row1;
    row2 = row2 + row2;
    row3 = row3 + row3;
    const std::uint32_t* const* const rows = factors.rows[p];
    const std::uint32_t *const words0 = rows[0], *const words1 = rows[1], *const words2 = rows[2],
                               *const words3 = rows[3];
    for (int w = 0; w < factors.words; ++w) {
      const FourVectors columns = load(factors.panel + w * tile_columns);
      row0 = row0 + differences(words0[w], columns);
      row1 = row1 + differences(words1[w], columns);
      row2 = row2 + differences(words2[w], columns);
      row3 = row3 + differences(words3[w], columns);
    }
  }
  add_to(sums, row0);
  add_to(sums + tile_columns, row1);
  add_to(sums + 2 * tile_columns, row2);
  add_to(sums + 3 * tile_columns, row3);
}

#endif

}  // namespace

std::string to_string(Instructions instructions) {
  return instructions == Instructions::avx512 ? "avx512" : instructions == Instructions::avx2 ? "avx2" : "portable";
}

std::vector<Instructions> available_instructions() {
  std::vector<Instructions> available = {Instructions::portable};
#ifdef ONEBIT_X86
  if (__builtin_cpu_supports("avx2")) available.push_back(Instructions::avx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vpopcntdq"))
    available.push_back(Instructions::avx512);
#endif
  return available;
}

Instructions best_instructions() {
  static const Instructions best = available_instructions().back();
  return best;
}

AddDifferences add_differences([[maybe_unused]] Instructions instructions) {
#ifdef ONEBIT_X86
  if (instructions == Instructions::avx512) return add_differences_avx512;
  if (instructions == Instructions::avx2) return add_differences_avx2;
#endif
  return add_differences_portable;
}

}  // namespace onebit::linalg
