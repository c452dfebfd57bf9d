#pragma once
/// \file group_codes.hpp
/// The pass that rounds the kept rows or columns of a gradient and packs the codes into bit planes. It reads each float
/// once and writes words. Eight elements of a row or column share a call of Philox and a 64-bit number of codes, which
/// a transposition turns into one byte for each plane.

#include <cstring>

#include "linalg/bits/bits.hpp"
#include "nn/quantizer/group_ranges.hpp"
#include "nn/quantizer/stochastic_rounding.hpp"

namespace onebit::nn {

/// The pass over K kept rows or columns of E elements each.
template <class Exec, class Real>
struct GroupCodes {
  ScaledGradient<Exec, Real> gradient;
  const int* line;                                       ///< (K) in ascending order
  const Real* Z;                                         ///< (K)
  const Real* factor;                                    ///< (K) B/R, or 0
  Kokkos::Array<std::uint32_t*, most_code_bits> planes;  ///< each (K, words)
  GradientDraws draws;
  int bits, kept, elements, words;

  KOKKOS_FORCEINLINE_FUNCTION Real levels() const { return static_cast<Real>((1 << bits) - 1); }
  KOKKOS_FORCEINLINE_FUNCTION void store(int plane, int k, int word, std::uint32_t value) const {
    planes[plane][static_cast<std::size_t>(k) * words + word] = value;
  }
};

/// On a device: a thread takes a word of every plane.
template <class Exec, class Real, GroupAxis axis>
struct WordCodes {
  GroupCodes<Exec, Real> pass;

  /// By columns, neighbouring threads read neighbouring elements, those of a row's kept columns. By rows each thread
  /// reads 32 neighbouring elements of its own, so one load of a warp is spread over 32 lines.
  KOKKOS_FUNCTION void operator()(int index) const {
    const int k = axis == GroupAxis::rows ? index / pass.words : index % pass.kept;
    const int word = axis == GroupAxis::rows ? index % pass.words : index / pass.kept;
    const int line = pass.line[k];
    std::uint32_t values[most_code_bits] = {};
    ONEBIT_UNROLL
    for (int part = 0; part < linalg::word_bits / octet; ++part) {
      const int first = word * linalg::word_bits + part * octet;
      if (first >= pass.elements) break;
      const Philox4 random = pass.draws(line, first / octet);
      std::uint64_t codes = 0;
      ONEBIT_UNROLL
      for (int w = 0; w < octet; ++w) {
        const int e = first + w;
        if (e >= pass.elements) break;
        const Real g = axis == GroupAxis::rows ? pass.gradient(line, e) : pass.gradient(e, line);
        const std::uint64_t q = rounded(g, pass.Z[k], pass.factor[k], pass.levels(), rounding_number(random, w));
        codes |= q << octet * w;
      }
      const std::uint64_t bytes = plane_bytes(codes);
      ONEBIT_UNROLL
      for (int p = 0; p < most_code_bits; ++p)
        values[p] |= static_cast<std::uint32_t>(bytes >> octet * p & 0xFFu) << octet * part;
    }
    ONEBIT_UNROLL
    for (int p = 0; p < most_code_bits; ++p)
      if (p < pass.bits) pass.store(p, k, word, values[p]);
  }
};

/// On the host, by rows: a thread takes 512 neighbouring elements of a row at a time, so that 64 calls of Philox fill
/// the lanes of vector registers.
template <class Exec, class Real>
struct RowCodes {
  static constexpr int calls = 64, length = calls * octet, words = length / linalg::word_bits;
  static constexpr int vector = 16;  ///< calls in a vector register
  GroupCodes<Exec, Real> pass;

  void operator()(int k) const {
    const int bits = pass.bits, all_words = pass.words;
    for (int word = 0; word < all_words; word += words) {
      std::uint64_t bytes[calls];
      codes(k, word * linalg::word_bits, bytes);
      ONEBIT_IVDEP
      for (int i = 0; i < calls; ++i) bytes[i] = plane_bytes(bytes[i]);
      const int stored = all_words - word < words ? all_words - word : words;
      for (int p = 0; p < bits; ++p) {
        std::uint32_t values[words];
        for (int i = 0; i < words; ++i) {
          values[i] = 0;
          for (int part = 0; part < 4; ++part)
            values[i] |= static_cast<std::uint32_t>(bytes[4 * i + part] >> octet * p & 0xFFu) << octet * part;
        }
        std::memcpy(pass.planes[p] + static_cast<std::size_t>(k) * all_words + word, values, stored * sizeof *values);
      }
    }
  }

private:
  /// The numbers of 64 calls in the order of the elements. A 64-bit number holds those of 4 elements, and both of a
  /// call are made from whole registers.
  /// \param count of the calls, a multiple of `vector`
  void numbers(int line, int first_call, int count, std::uint16_t (&result)[length]) const {
    const GradientDraws draws = pass.draws;
    std::uint32_t random[4][calls];
    ONEBIT_IVDEP
    for (int call = 0; call < count; ++call) {
      const Philox4 drawn = draws(line, first_call + call);
      for (int w = 0; w < 4; ++w) random[w][call] = drawn.word[w];
    }
    constexpr std::uint64_t low_halves = 0x0000FFFF0000FFFFu;
    std::uint64_t fours[2 * calls];
    ONEBIT_IVDEP
    for (int call = 0; call < count; ++call) {
      const std::uint64_t even = random[0][call] | std::uint64_t{random[2][call]} << 32;
      const std::uint64_t odd = random[1][call] | std::uint64_t{random[3][call]} << 32;
      fours[2 * call] = (even & low_halves) | (odd & low_halves) << 16;
      fours[2 * call + 1] = (even >> 16 & low_halves) | (odd & ~low_halves);
    }
    static_assert(sizeof fours == sizeof result);
    // The least significant number comes first, as on every processor here.
    std::memcpy(result, fours, 2 * count * sizeof *fours);
  }

  /// The codes of elements [begin, begin + 512) of a row, eight in each number; 0 after the last element.
  void codes(int k, int begin, std::uint64_t (&eights)[calls]) const {
    const int line = pass.line[k];
    std::uint16_t n[length];
    const Real Z = pass.Z[k], factor = pass.factor[k], levels = pass.levels();
    const Real* const gamma = pass.gradient.gamma + begin;
    const Real* const row = pass.gradient.d_output.data() + static_cast<std::size_t>(line) * pass.elements + begin;
    const int count = pass.elements - begin < length ? pass.elements - begin : length;
    constexpr int of_vector = vector * octet;
    numbers(line, begin / octet, (count + of_vector - 1) / of_vector * vector, n);
    std::uint8_t codes[length];
    ONEBIT_IVDEP
    for (int i = 0; i < count; ++i)
      codes[i] = static_cast<std::uint8_t>(rounded(row[i] * gamma[i], Z, factor, levels, n[i]));
    for (int i = count > 0 ? count : 0; i < length; ++i) codes[i] = 0;
    static_assert(sizeof codes == sizeof eights);
    std::memcpy(eights, codes, sizeof codes);  // element e is the e % 8-th least significant byte
  }
};

/// On the host, by columns: a thread takes one word of 64 kept columns, which fill the lanes of vector registers.
template <class Exec, class Real>
struct ColumnCodes {
  static constexpr int lanes = 64;
  GroupCodes<Exec, Real> pass;

  struct Lanes {
    int count;
    int width;  ///< lanes that are computed: `count`, but whole vector registers
    int line[lanes];
    Real gamma[lanes], Z[lanes], factor[lanes];
  };

  void operator()(int index) const {
    const int strips = (pass.kept + lanes - 1) / lanes;
    const int word = index / strips, begin = index % strips * lanes;
    Lanes strip;
    strip.count = pass.kept - begin < lanes ? pass.kept - begin : lanes;
    constexpr int vector = 16;
    strip.width = (strip.count + vector - 1) / vector * vector;
    for (int lane = 0; lane < lanes; ++lane) {
      const int k = begin + (lane < strip.count ? lane : 0);  // lanes without a column repeat the first one
      strip.line[lane] = pass.line[k];
      strip.gamma[lane] = pass.gradient.gamma[strip.line[lane]];
      strip.Z[lane] = pass.Z[k];
      strip.factor[lane] = pass.factor[k];
    }
    std::uint32_t values[most_code_bits][lanes] = {};
    const bool neighbours = strip.line[lanes - 1] - strip.line[0] == lanes - 1;
    for (int part = 0; part < linalg::word_bits / octet; ++part) {
      const int first = word * linalg::word_bits + part * octet;
      if (first >= pass.elements) break;
      std::uint64_t bytes[lanes];
      if (neighbours)
        codes<true>(strip, first, bytes);
      else
        codes<false>(strip, first, bytes);
      for (int p = 0; p < pass.bits; ++p) {
        ONEBIT_IVDEP
        for (int lane = 0; lane < strip.width; ++lane)
          values[p][lane] |= static_cast<std::uint32_t>(bytes[lane] >> octet * p & 0xFFu) << octet * part;
      }
    }
    for (int p = 0; p < pass.bits; ++p)
      for (int lane = 0; lane < strip.count; ++lane) pass.store(p, begin + lane, word, values[p][lane]);
  }

private:
  /// The bytes of planes of rows [first, first + 8); 0 after the last row.
  template <bool neighbours>
  void codes(const Lanes& strip, int first, std::uint64_t (&bytes)[lanes]) const {
    const GradientDraws draws = pass.draws;
    const Real levels = pass.levels();
    const int width = strip.width;
    const int rows = pass.elements - first < octet ? pass.elements - first : octet;
    const int columns = pass.gradient.columns();
    const Real* const d_output = pass.gradient.d_output.data() + static_cast<std::size_t>(first) * columns;
    if constexpr (!neighbours) {
      // The processor does not foresee what pruning leaves of a row. The elements arrive while Philox is computed.
      for (int w = 0; w < rows; ++w)
        for (int lane = 0; lane < width; lane += 4)
          __builtin_prefetch(d_output + static_cast<std::size_t>(w) * columns + strip.line[lane], 0, 2);
    }
    std::uint32_t random[4][lanes];
    ONEBIT_IVDEP
    for (int lane = 0; lane < width; ++lane) {
      const Philox4 words = draws(strip.line[lane], first / octet);
      for (int w = 0; w < 4; ++w) random[w][lane] = words.word[w];
    }
    // The codes of rows 0 to 3 and of rows 4 to 7.
    std::uint32_t halves[2][lanes] = {};
    for (int w = 0; w < rows; ++w) {
      const Real* const row = d_output + static_cast<std::size_t>(w) * columns;
      const Real* const from = row + strip.line[0];
      const int shift = w < 4 ? 0 : 16;
      ONEBIT_IVDEP
      for (int lane = 0; lane < width; ++lane) {
        const Real g = (neighbours ? from[lane] : row[strip.line[lane]]) * strip.gamma[lane];
        const std::uint32_t n = random[w % 4][lane] >> shift & 0xFFFFu;
        halves[w / 4][lane] |= rounded(g, strip.Z[lane], strip.factor[lane], levels, n) << octet * (w % 4);
      }
    }
    ONEBIT_IVDEP
    for (int lane = 0; lane < width; ++lane)
      bytes[lane] = plane_bytes(halves[0][lane] | std::uint64_t{halves[1][lane]} << 32);
  }
};

/// Rounds and packs.
template <class Exec, class Real>
void pack_codes(const Exec& exec, GroupAxis axis, const GroupCodes<Exec, Real>& pass) {
  if (pass.kept == 0) return;
  const char* const label = "OneBit::nn::group_codes";
  using Policy = Kokkos::RangePolicy<Exec>;
  if constexpr (rows_have_lanes<Exec>) {
    const int threads = pass.kept * pass.words;
    if (axis == GroupAxis::rows)
      Kokkos::parallel_for(label, Policy(exec, 0, threads), WordCodes<Exec, Real, GroupAxis::rows>{pass});
    else
      Kokkos::parallel_for(label, Policy(exec, 0, threads), WordCodes<Exec, Real, GroupAxis::columns>{pass});
  } else if (axis == GroupAxis::rows) {
    Kokkos::parallel_for(label, Policy(exec, 0, pass.kept), RowCodes<Exec, Real>{pass});
  } else {
    constexpr int lanes = ColumnCodes<Exec, Real>::lanes;
    const int strips = (pass.kept + lanes - 1) / lanes;
    Kokkos::parallel_for(label, Policy(exec, 0, strips * pass.words), ColumnCodes<Exec, Real>{pass});
  }
}

}  // namespace onebit::nn
