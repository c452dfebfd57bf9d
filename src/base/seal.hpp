#pragma once
/// \file seal.hpp
/// Sealed files: their first 512 bytes are a text that holds the size of the file and a checksum of all that follows.
///
/// HDF5 passes over such a block (its "user block"), but it trusts its own metadata, and a flipped bit in them can crash
/// the library. So a sealed file is verified, all of it, before the library opens it.

#include <cstddef>
#include <string>

#include "base/mpi.hpp"

namespace onebit {

/// Length of the seal, the least that HDF5 allows for a user block.
inline constexpr std::size_t seal_bytes = 512;

/// Seals a complete file whose first `seal_bytes` bytes are free for it: brings what the ranks wrote to the disk, adds up
/// the checksum, each rank over a share, and writes the seal, which is on the disk too at the end. Collective.
/// \throws AgreedError
void seal(const Communicator& communicator, const std::string& path);

/// Whether a file begins as a sealed one does; false for one that cannot be read.
bool is_sealed(const std::string& path);

/// Checks that no byte of a sealed file has changed. The first one reads all of the file; the second is collective, and
/// each rank reads a share.
/// \throws InputError (AgreedError, where collective) for a file that is damaged, truncated or not sealed
void verify_seal(const std::string& path);
void verify_seal(const Communicator& communicator, const std::string& path);

/// Waits until a file, or the entries of a directory, are on the disk. \throws RunError
void sync_to_disk(const std::string& path);

}  // namespace onebit
