/// \file seal.cpp
/// See seal.hpp.

#include "base/seal.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/activity.hpp"
#include "base/error.hpp"
#include "base/hash.hpp"

namespace onebit {
namespace {

constexpr char magic[] = "OneBit sealed file 1\n";

/// A file descriptor.
class Descriptor {
public:
  Descriptor(const std::string& path, int flags) : m_id(::open(path.c_str(), flags | O_CLOEXEC)) {}
  ~Descriptor() {
    if (m_id >= 0) ::close(m_id);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return m_id; }

private:
  int m_id;
};

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

RunError unwritable(const std::string& path) {
  return {path, std::string("the file could not be written: ") + std::strerror(errno),
          "check the directory, its permissions and the free space"};
}
InputError damaged(const std::string& path, const std::string& what) {
  return {path, "this file is damaged: " + what, "use an earlier checkpoint, or write it again"};
}

/// Reads up to `count` bytes at `offset`; fewer at the end of the file.
std::size_t read_at(int file, std::uint64_t offset, char* bytes, std::size_t count) {
  std::size_t done = 0;
  while (done < count) {
    const ssize_t got = ::pread(file, bytes + done, count - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
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

/// What rank `rank` of `ranks` adds to the checksum: Σ of hash_term over every ranks-th block of the 64-bit words behind
/// the seal, the last one filled up with zeros.
std::uint64_t checksum_share(const std::string& path, std::uint64_t size, int rank, int ranks) {
  constexpr std::size_t block_words = std::size_t{1} << 19;  // 4 MiB
  constexpr std::size_t block_bytes = block_words * sizeof(std::uint64_t);
  const Descriptor file(path, O_RDONLY);
  const std::uint64_t bytes = size > seal_bytes ? size - seal_bytes : 0;
  std::vector<std::uint64_t> words(std::min<std::uint64_t>(block_words, bytes / sizeof(std::uint64_t) + 1));
  std::uint64_t sum = 0;
  for (std::uint64_t at = block_bytes * rank; at < bytes; at += block_bytes * ranks) {
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

void check_checksum(const std::string& path, const Seal& seal, std::uint64_t checksum) {
  if (checksum != seal.checksum) throw damaged(path, "its bytes do not have the checksum that it was sealed with");
}

}  // namespace

void sync_to_disk(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  if (file < 0 || ::fsync(file) != 0) throw unwritable(path);
}

void seal(const Communicator& communicator, const std::string& path) {
  const bool root = communicator.rank() == 0;
  Seal seal{};
  // Every host has pages of its own to write.
  communicator.collectively([&] {
    sync_to_disk(path);
    if (root) seal.size = size_of(path);
  });
  seal.size = communicator.sum(seal.size);
  communicator.collectively(
      [&] { seal.checksum = checksum_share(path, seal.size, communicator.rank(), communicator.size()); });
  seal.checksum = communicator.sum(seal.checksum);
  communicator.collectively([&] {
    if (!root) return;
    const Descriptor file(path, O_WRONLY);
    const std::string text = text_of(seal);
    if (file < 0 || ::pwrite(file, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
        ::fsync(file) != 0)
      throw unwritable(path);
  });
}

bool is_sealed(const std::string& path) { return first_bytes(path).rfind(magic, 0) == 0; }

void verify_seal(const std::string& path) {
  const Seal seal = read_seal(path);
  check_checksum(path, seal, checksum_share(path, seal.size, 0, 1));
}

void verify_seal(const Communicator& communicator, const std::string& path) {
  Seal seal{};
  std::uint64_t checksum = 0;
  communicator.collectively([&] {
    seal = read_seal(path);
    checksum = checksum_share(path, seal.size, communicator.rank(), communicator.size());
  });
  checksum = communicator.sum(checksum);
  communicator.collectively([&] { check_checksum(path, seal, checksum); });
}

}  // namespace onebit
