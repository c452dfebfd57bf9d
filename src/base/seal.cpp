/// \file seal.cpp
/// See seal.hpp.

#include "base/seal.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/activity.hpp"
#include "base/error.hpp"
#include "base/file.hpp"
#include "base/hash.hpp"

namespace onebit {
namespace {

constexpr char magic[] = "OneBit sealed file 1\n";

struct Seal {
  std::uint64_t size, checksum;
};

/// The `seal_bytes` bytes of a seal.
std::string text_of(const Seal& seal) {
  char text[seal_bytes];
  std::snprintf(text, sizeof text, "%ssize %020llu bytes\nchecksum %016llx\n", magic,
                static_cast<unsigned long long>(seal.size), static_cast<unsigned long long>(seal.checksum));
  std::string padded = text;
  padded.resize(seal_bytes - 1, ' ');
  return padded + "\n";
}

InputError damaged(const std::string& path, const std::string& what) {
  return {path, "this file is damaged: " + what, "use an earlier checkpoint, or write it again"};
}

/// The first bytes of a file; empty where it cannot be read.
std::string first_bytes(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  std::string text(seal_bytes, '\0');
  text.resize(file < 0 ? 0 : read_at(file, 0, text.data(), text.size()));
  return text;
}

/// Bytes of an ordinary file.
std::uint64_t size_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    throw InputError(path, "the file does not exist or may not be read", "check the name and the permissions");
  if (!S_ISREG(status.st_mode)) throw InputError(path, "this is not an ordinary file", "name a file");
  return static_cast<std::uint64_t>(status.st_size);
}

/// The seal of a file that has the size which it says. Every one of its bytes is checked, but not yet what follows.
Seal read_seal(const std::string& path) {
  const std::uint64_t size = size_of(path);
  const std::string text = first_bytes(path);
  if (text.rfind(magic, 0) != 0)
    throw InputError(path, "this is not a checkpoint, or its begin is damaged",
                     "name a file that a run left with checkpoint.every or run.dump_parameters");
  unsigned long long said = 0, checksum = 0;
  std::sscanf(text.c_str() + sizeof magic - 1, "size %20llu bytes\nchecksum %16llx", &said, &checksum);
  const Seal seal = {said, checksum};
  if (text != text_of(seal)) throw damaged(path, "its first 512 bytes are not a seal");
  if (seal.size != size)
    throw damaged(path, "it has " + std::to_string(size) + " bytes, and was sealed with " + std::to_string(seal.size));
  return seal;
}

void check_checksum(const std::string& path, const Seal& seal, std::uint64_t checksum) {
  if (checksum != seal.checksum) throw damaged(path, "its bytes do not have the checksum that it was sealed with");
}

}  // namespace

std::uint64_t checksum_part(const std::string& path, int part, int parts) {
  constexpr std::size_t block_words = std::size_t{1} << 19;  // 4 MiB
  constexpr std::size_t block_bytes = block_words * sizeof(std::uint64_t);
  const std::uint64_t size = size_of(path), bytes = size > seal_bytes ? size - seal_bytes : 0;
  const Descriptor file(path, O_RDONLY);
  std::vector<std::uint64_t> words(std::min<std::uint64_t>(block_words, bytes / sizeof(std::uint64_t) + 1));
  std::uint64_t sum = 0;
  for (std::uint64_t at = block_bytes * part; at < bytes; at += block_bytes * parts) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes, bytes - at));
    const std::size_t used = (count + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t);
    words[used - 1] = 0;
    if (file < 0 || read_at(file, seal_bytes + at, reinterpret_cast<char*>(words.data()), count) != count)
      throw RunError(path, "the file could not be read to its end", "check its file system");
    const std::uint64_t first = at / sizeof(std::uint64_t);
    Activity::goes_on();
    for (std::size_t i = 0; i < used; ++i) sum += hash_term(words[i], first + i);
  }
  return sum;
}

void write_seal(const std::string& path, std::uint64_t checksum) {
  const std::string text = text_of({size_of(path), checksum});
  const Descriptor file(path, O_WRONLY);
  if (file < 0 || !write_at(file, 0, text.data(), text.size()) || ::fsync(file) != 0) throw unwritable(path, errno);
}

bool is_sealed(const std::string& path) { return first_bytes(path).rfind(magic, 0) == 0; }

void verify_seal(const std::string& path) {
  const Seal seal = read_seal(path);
  check_checksum(path, seal, checksum_part(path, 0, 1));
}

void verify_seal(const Communicator& communicator, const std::string& path) {
  Seal seal{};
  std::uint64_t checksum = 0;
  communicator.collectively([&] {
    seal = read_seal(path);
    checksum = checksum_part(path, communicator.rank(), communicator.size());
  });
  checksum = communicator.sum(checksum);
  communicator.collectively([&] { check_checksum(path, seal, checksum); });
}

}  // namespace onebit
