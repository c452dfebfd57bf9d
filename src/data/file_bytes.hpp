#pragma once
/// \file file_bytes.hpp
/// What the readers of texts and images share: files that are held in memory as a whole, and the messages about those
/// that cannot be read.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace onebit::data {

/// Name of several files in messages: "a.txt" or "a.txt and 2 more files".
/// \param what names them in the input: "corpus" \throws InputError when there are none
std::string joined_names(const std::vector<std::string>& files, const char* what);

/// Bytes of this machine's memory.
std::uintmax_t machine_memory();

/// Size of a file in bytes. \param content what it should hold: "text"
/// \throws InputError when it is missing, empty or not a regular file
std::uintmax_t checked_size(const std::string& file, const char* content);

/// bytes ← [offset, offset + count) of a file.
/// \throws InputError when they cannot be read, and Error when a signal asks to stop
void read_bytes(const std::string& file, std::size_t offset, char* bytes, std::size_t count);

}  // namespace onebit::data
