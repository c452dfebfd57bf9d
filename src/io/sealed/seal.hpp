#pragma once
/// \file seal.hpp
/// Sealed files. The seal is a text in the first 512 bytes: the size of the file, a checksum of the bytes that follow,
/// and a label, which can be read without the rest of the file.
///
/// HDF5 skips these bytes (its "user block"). It trusts its own metadata, so that a flipped bit can crash the library.
/// Therefore a whole sealed file is verified before HDF5 opens it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/mpi.hpp"

namespace onebit {

/// Length of the seal, the least length of a user block.
inline constexpr std::size_t seal_bytes = 512;
/// Bytes of a sealed file that are read or written at once.
inline constexpr std::size_t sealed_block_bytes = std::size_t{1} << 22;

/// Bytes [begin, end) of a file.
using FileRange = std::pair<std::uint64_t, std::uint64_t>;

/// Contribution of bytes at offset `begin` of a file to its checksum: of the 64-bit words that they hold completely.
std::uint64_t checksum_of(std::uint64_t begin, const char* bytes, std::size_t count);
/// Contribution of the rest of a complete file. \param ranges the ranges that `checksum_of` was called with
/// \throws InputError, RunError when the file cannot be read
std::uint64_t checksum_rest(const std::string& path, std::vector<FileRange> ranges);

/// Seals a complete file whose first `seal_bytes` bytes are unused, and flushes it to the disk.
/// \param label one line of at most 400 printable characters, which the checksum covers
/// \throws RunError
void write_seal(const std::string& path, std::uint64_t checksum, const std::string& label = "");

/// Whether a file begins with a seal; false when it cannot be read.
bool is_sealed(const std::string& path);

/// Label of a sealed file, which is not verified; empty without a label or a seal.
std::string read_label(const std::string& path);

/// Checks that no byte of a sealed file has changed. \throws InputError for a file that is damaged, truncated or not
/// sealed
void verify_seal(const std::string& path);
/// The same by all ranks, of which each reads some of the blocks. Collective. \throws AgreedError
void verify_seal(const Communicator& communicator, const std::string& path);

}  // namespace onebit
