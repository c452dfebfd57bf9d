#pragma once
/// \file seal.hpp
/// Sealed files: their first 512 bytes are a text that holds the size of the file, a checksum of all that follows and a
/// label, which can be read without the rest.
///
/// HDF5 passes over such a block (its "user block"), but it trusts its own metadata, and a flipped bit in them can crash
/// the library. So a sealed file is verified, all of it, before the library opens it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/mpi.hpp"

namespace onebit {

/// Length of the seal, the least that HDF5 allows for a user block.
inline constexpr std::size_t seal_bytes = 512;

/// What bytes that are written at `place` add to the checksum of a file: its words that are whole among them.
std::uint64_t checksum_of(std::uint64_t place, const char* bytes, std::size_t count);
/// What all else adds to the checksum of a complete file. \param parts places [begin, end) of the bytes that `checksum_of`
/// was told of, each time a whole part
/// \throws InputError, RunError for a file that cannot be read
std::uint64_t checksum_rest(const std::string& path, std::vector<std::pair<std::uint64_t, std::uint64_t>> parts);

/// Seals a complete file whose first `seal_bytes` bytes are free for it. It is on the disk at the end, all of it that this
/// host wrote. \param label a row of at most 400 printable characters; the checksum covers it \throws RunError
void write_seal(const std::string& path, std::uint64_t checksum, const std::string& label = "");

/// Whether a file begins as a sealed one does; false for one that cannot be read.
bool is_sealed(const std::string& path);

/// The label of a sealed file, which is not verified; empty where it has none, and for a file that is not sealed.
std::string read_label(const std::string& path);

/// Checks that no byte of a sealed file has changed. The first one reads all of the file; the second is collective, and
/// each rank reads a share.
/// \throws InputError (AgreedError, where collective) for a file that is damaged, truncated or not sealed
void verify_seal(const std::string& path);
void verify_seal(const Communicator& communicator, const std::string& path);

}  // namespace onebit
