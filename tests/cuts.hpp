#pragma once
/// \file cuts.hpp
/// The cuts of vectors for ranks and the compressors that are tested, alone and in the compressed allreduce.

#include <cstddef>
#include <ostream>
#include <string>
#include <vector>

#include "base/parallel.hpp"
#include "compress/layout.hpp"
#include "compress/reference.hpp"

namespace onebit::test {

struct Cut {
  std::size_t length;
  int chunks;
  compress::Grouping grouping;
  std::size_t block = 0;
  std::vector<std::size_t> group_begins = {};

  compress::Layout layout() const { return {length, chunks, grouping, block, group_begins}; }
  compress::LayoutRef reference() const { return {length, chunks, grouping, block, group_begins}; }
};

inline std::ostream& operator<<(std::ostream& out, const Cut& cut) {
  constexpr const char* names[] = {"vector", "chunk", "tensor", "block", "column"};
  return out << "length " << cut.length << " chunks " << cut.chunks << " group "
             << names[static_cast<int>(cut.grouping)] << " block " << cut.block;
}

/// Around word borders, and long enough for several blocks of 4096.
inline constexpr std::size_t small_lengths[] = {0, 1, 31, 32, 33, 1000, 5000};
/// In each of up to 8 chunks more pieces than the summation tree has lanes, and an odd end.
inline constexpr std::size_t large_length = 8 * (lane_count + 1) * piece_length + 7;

/// Tensors of ragged sizes, many smaller than a word and some without elements, over [0, length).
inline std::vector<std::size_t> ragged_offsets(std::size_t length) {
  constexpr std::size_t sizes[] = {1, 5, 0, 31, 32, 33, 2, 64, 700, 3, 0, 0, 3000, 17, 128, 50001};
  std::vector<std::size_t> offsets = {0};
  for (std::size_t i = 0; offsets.back() < length; ++i) offsets.push_back(offsets.back() + sizes[i % std::size(sizes)]);
  return offsets;
}

/// Every grouping of a vector for `chunks` ranks.
inline std::vector<Cut> cuts(std::size_t length, int chunks) {
  using compress::Grouping;
  return {{length, chunks, Grouping::vector},
          {length, chunks, Grouping::chunk},
          {length, chunks, Grouping::tensor, 0, ragged_offsets(length)},
          {length, chunks, Grouping::tensor, 0, {0}},
          {length, chunks, Grouping::block, 32},
          {length, chunks, Grouping::block, 96},
          {length, chunks, Grouping::block, 4096},
          {length, chunks, Grouping::column, 0, ragged_offsets(length)},
          {length, chunks, Grouping::column, 0, {0}}};
}

/// Each compressor in each of its forms.
inline std::vector<compress::Options> compressors() {
  using compress::Kind;
  std::vector<compress::Options> all;
  for (const Kind kind : {Kind::sign, Kind::sign_ternary})
    for (const auto scale : {compress::Scale::l1, compress::Scale::l2}) {
      compress::Options options{kind};
      options.scale = scale;
      all.push_back(options);
    }
  for (const auto reconstruction : {compress::Reconstruction::mean, compress::Reconstruction::range}) {
    compress::Options options{Kind::column};
    options.reconstruction = reconstruction;
    all.push_back(options);
  }
  for (const int bits : {2, 3, 4, 8, 16}) {
    compress::Options options{Kind::nbit};
    options.bits = bits;
    all.push_back(options);
  }
  return all;
}

/// For messages and for the names of results.
inline std::string name_of(const compress::Options& options) {
  constexpr const char* scales[] = {"_l1", "_l2"};
  constexpr const char* reconstructions[] = {"_mean", "_range"};
  switch (options.kind) {
    case compress::Kind::sign:
      return std::string("sign") + scales[static_cast<int>(options.scale)];
    case compress::Kind::sign_ternary:
      return std::string("sign_ternary") + scales[static_cast<int>(options.scale)];
    case compress::Kind::column:
      return std::string("column") + reconstructions[static_cast<int>(options.reconstruction)];
    case compress::Kind::nbit:
      break;
  }
  return "nbit_" + std::to_string(options.bits);
}

}  // namespace onebit::test
