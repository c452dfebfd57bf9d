#pragma once
/// \file write_sealed.hpp
/// Completes a sealed file (io/sealed/seal.hpp) that all ranks write together.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/mpi.hpp"
#include "io/sealed/seal.hpp"

namespace onebit {

/// A range of a file that this rank writes.
struct SealedRange {
  std::uint64_t begin;  ///< offset in the file
  std::size_t bytes;
  /// Bytes [first, first + count) of the range in host memory, which stay until the next call.
  /// count ≤ `sealed_block_bytes`
  std::function<const char*(std::size_t first, std::size_t count)> read;
};

/// Completes `path`.partial and renames it to `path`, once every byte is on the disk. The file exists with its final
/// size; only the seal and the ranks' ranges are missing. Collective.
/// \param ranges of this rank
/// \param label  of the seal; rank 0's counts
/// \throws AgreedError when the file could not be written; `path`.partial is then left
void write_sealed(const Communicator& communicator, const std::string& path, const std::vector<SealedRange>& ranges,
                  const std::string& label);

}  // namespace onebit
