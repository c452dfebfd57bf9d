#pragma once
/// \file cuts.hpp
/// The cuts of vectors for ranks and the compressors that are tested, alone and in the compressed allreduce.

#include <cstddef>
#include <ostream>
#include <set>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include "base/device/parallel.hpp"
#include "compress/layout.hpp"
#include "compress/reference.hpp"

namespace onebit::test {

struct Cut {
  std::size_t length;
  int chunks;
  compress::Grouping grouping;
  std::size_t group_length = 0;
  std::vector<std::size_t> borders = {}, chunk_borders = {};

  compress::Layout layout() const { return {length, chunks, grouping, group_length, borders, chunk_borders}; }
  compress::LayoutRef reference() const { return {length, chunks, grouping, group_length, borders, chunk_borders}; }
};

inline std::ostream& operator<<(std::ostream& out, const Cut& cut) {
  constexpr const char* names[] = {"vector", "chunk", "tensor", "fixed", "column"};
  return out << "length " << cut.length << " chunks " << cut.chunks << " group "
             << names[static_cast<int>(cut.grouping)] << " of " << cut.group_length;
}

/// Around word borders, and long enough for several blocks of 4096.
inline constexpr std::size_t small_lengths[] = {0, 1, 31, 32, 33, 1000, 5000};
/// In each of up to 8 chunks more blocks than the summation tree has lanes, and an odd end.
inline constexpr std::size_t large_length = 8 * (lane_count + 1) * block_length + 7;

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
          {length, chunks, Grouping::fixed, 32},
          {length, chunks, Grouping::fixed, 96},
          {length, chunks, Grouping::fixed, 4096},
          {length, chunks, Grouping::column, 0, ragged_offsets(length)},
          {length, chunks, Grouping::column, 0, {0}},
          {length, chunks, Grouping::vector, 0, {}, ragged_offsets(length)},
          {length, chunks, Grouping::tensor, 0, ragged_offsets(length), {0, length / 3, length / 2}}};
}

/// Each compressor with each of its codecs.
inline std::vector<compress::Options> compressors() {
  using compress::Options;
  std::vector<Options> all;
  std::set<std::pair<std::type_index, int>> codecs;
  for (std::size_t kind = 1; kind < names(CompressorKind()).size(); ++kind)
    for (const Scale scale : {Scale::l1, Scale::l2})
      for (const Reconstruction reconstruction : {Reconstruction::mean, Reconstruction::range})
        for (const int bits : {2, 3, 4, 8, 16}) {
          const Options options{static_cast<CompressorKind>(kind), scale, bits, reconstruction};
          const auto add = [&](const auto& codec) {
            if (codecs.emplace(typeid(codec), codec.planes).second) all.push_back(options);
          };
          compress::Compressors::visit(options.kind, [&](auto line) { line.visit(options, add); });
        }
  return all;
}

/// For messages and for the names of results.
inline std::string name_of(const compress::Options& options) {
  return to_string(options.kind) + "_" + to_string(options.scale) + "_" + to_string(options.reconstruction) + "_" +
         std::to_string(options.bits);
}

}  // namespace onebit::test
