#pragma once
/// \file differences.hpp
/// The innermost loops of binary products on the host: how many bits of a row of A and a column of B differ. A tile has
/// 4 rows of A and 64 columns of B. The words of the 64 columns are interleaved, so that a vector register holds the
/// same word of neighbouring columns: each column has a lane of its own, and no lanes are added.

#include <cstdint>
#include <string>
#include <vector>

namespace onebit::linalg {

/// What a processor counts bits with. `portable` is plain code, which every compiler can vectorise.
enum class Instructions { portable, avx2, avx512 };
/// For messages.
std::string to_string(Instructions instructions);
/// Those of this processor, the slowest first.
std::vector<Instructions> available_instructions();
/// The fastest of them.
Instructions best_instructions();

/// Rows of A, columns of B and planes of A in a tile.
inline constexpr int tile_rows = 4, tile_columns = 64, most_planes = 8;

/// Some words of the factors of a tile.
struct TileFactors {
  int planes, words;
  const std::uint32_t* rows[most_planes][tile_rows];  ///< (planes, 4) words of a row of a plane
  const std::uint32_t* panel;                         ///< (words, 64) column j of B has word w at (w, j)
};

/// sums (4, 64) += Σ_p 2^p · the number of bits that differ between row i of plane p and column j.
using AddDifferences = void (*)(const TileFactors& factors, int* sums);
/// The function for these instructions, which must be available.
AddDifferences add_differences(Instructions instructions);

}  // namespace onebit::linalg
