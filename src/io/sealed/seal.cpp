#include "io/sealed/seal.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/system/activity.hpp"
#include "base/system/stop_signal.hpp"
#include "io/file.hpp"

namespace onebit {
namespace {

constexpr char magic[] = "OneBit sealed file 1\n";

struct Seal {
  std::uint64_t size, checksum;
  std::string label;
};

/// The `seal_bytes` bytes of a seal.
std::string text_of(const Seal& seal) {
  char text[seal_bytes];
  std::snprintf(text, sizeof text, "%ssize %020llu bytes\nchecksum %016llx\n", magic,
                static_cast<unsigned long long>(seal.size), static_cast<unsigned long long>(seal.checksum));
  std::string padded = text;
  if (!seal.label.empty()) padded += seal.label + "\n";
  padded.resize(seal_bytes - 1, ' ');
  return padded + "\n";
}

InputError damaged(const std::string& path, const std::string& what) {
  return {path, "this file is damaged: " + what, "use an earlier checkpoint, or write it again"};
}

/// The first `seal_bytes` bytes of a file; fewer of a shorter one, and none of one that cannot be read, with the reason
/// in `errno`, which is 0 otherwise.
std::string first_bytes(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  if (file < 0) return "";
  std::string text(seal_bytes, '\0');
  text.resize(read_at(file, 0, text.data(), text.size()));
  return text;
}

/// Size of an ordinary file in bytes.
std::uint64_t size_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) throw unreadable(path, errno);
  if (!S_ISREG(status.st_mode)) throw InputError(path, "this is not an ordinary file", "name a file");
  return static_cast<std::uint64_t>(status.st_size);
}

/// The line behind the checksum, if it ends before the seal does.
std::string label_in(const std::string& text) {
  std::size_t begin = 0;
  for (int row = 0; row < 3; ++row) begin = text.find('\n', begin) + 1;
  const std::size_t end = text.find('\n', begin);
  return begin > 0 && end < seal_bytes - 1 ? text.substr(begin, end - begin) : "";
}

/// Contribution of a label to the checksum: 0 for an empty one, which files of earlier versions have.
std::uint64_t checksum_of_label(const std::string& label) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < label.size(); ++i) sum += hash_term(static_cast<unsigned char>(label[i]), i);
  return sum;
}

/// The seal of a file. Checks its bytes, except the label, which the checksum covers, and the size of the file.
Seal read_seal(const std::string& path) {
  const std::uint64_t size = size_of(path);
  const std::string text = first_bytes(path);
  if (errno != 0) throw unreadable(path, errno);
  if (text.rfind(magic, 0) != 0)
    throw InputError(path, "this is not a checkpoint, or its begin is damaged",
                     "name a file that a run left with checkpoint.every or run.dump_parameters");
  unsigned long long said = 0, checksum = 0;
  std::sscanf(text.c_str() + sizeof magic - 1, "size %20llu bytes\nchecksum %16llx", &said, &checksum);
  const Seal seal = {said, checksum, label_in(text)};
  if (text != text_of(seal)) throw damaged(path, "its first 512 bytes are not a seal");
  if (seal.size != size)
    throw damaged(path, "it has " + std::to_string(size) + " bytes, and was sealed with " + std::to_string(seal.size));
  return seal;
}

constexpr std::uint64_t word_bytes = sizeof(std::uint64_t);

/// The first beginning of a word at or after `place`.
std::uint64_t next_word(std::uint64_t place) {
  return seal_bytes + (place - seal_bytes + word_bytes - 1) / word_bytes * word_bytes;
}

/// Σ hash_term over the `count` words at `place` of the file.
std::uint64_t sum_words(const char* bytes, std::size_t count, std::uint64_t place) {
  const std::uint64_t first = (place - seal_bytes) / word_bytes;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t word;
    std::memcpy(&word, bytes + i * word_bytes, word_bytes);
    sum += hash_term(word, first + i);
  }
  return sum;
}

/// Checksums of ranges of a file. They begin and end at words; the last word of the file is padded with zeros.
class FileSum {
public:
  explicit FileSum(const std::string& path) : m_path(path), m_file(path, O_RDONLY) {
    if (m_file < 0) throw failed();
  }
  std::uint64_t operator()(std::uint64_t begin, std::uint64_t end) {
    std::uint64_t sum = 0;
    for (std::uint64_t at = begin; at < end; at += sealed_block_bytes) {
      const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(sealed_block_bytes, end - at));
      const std::size_t words = (count + word_bytes - 1) / word_bytes;
      m_bytes.resize(std::max(m_bytes.size(), words * word_bytes));
      std::fill_n(m_bytes.begin() + (words - 1) * word_bytes, word_bytes, '\0');
      if (read_at(m_file, at, m_bytes.data(), count) != count) throw failed();
      Activity::goes_on();
      StopSignal::check();
      sum += sum_words(m_bytes.data(), words, at);
    }
    return sum;
  }

private:
  RunError failed() const {
    return {m_path, "the file could not be read to its end" + because(errno), "check its file system, and try again"};
  }

  std::string m_path;
  Descriptor m_file;
  std::vector<char> m_bytes;
};

/// Contribution of rank `rank` to the checksum: of blocks rank, rank + ranks, …
std::uint64_t checksum_of_rank(const std::string& path, std::uint64_t size, int rank, int ranks) {
  FileSum sum(path);
  std::uint64_t total = 0;
  for (std::uint64_t at = seal_bytes + sealed_block_bytes * rank; at < size; at += sealed_block_bytes * ranks)
    total += sum(at, std::min(at + sealed_block_bytes, size));
  return total;
}

void check_checksum(const std::string& path, const Seal& seal, std::uint64_t checksum) {
  if (checksum + checksum_of_label(seal.label) != seal.checksum)
    throw damaged(path, "its bytes do not have the checksum that it was sealed with");
}

}  // namespace

std::uint64_t checksum_of(std::uint64_t begin, const char* bytes, std::size_t count) {
  const std::uint64_t skipped = next_word(begin) - begin;
  return skipped < count ? sum_words(bytes + skipped, (count - skipped) / word_bytes, begin + skipped) : 0;
}

std::uint64_t checksum_rest(const std::string& path, std::vector<FileRange> ranges) {
  std::sort(ranges.begin(), ranges.end());
  FileSum sum(path);
  std::uint64_t total = 0, at = seal_bytes;
  for (const auto& [begin, end] : ranges) {
    const std::uint64_t first = next_word(begin), last = next_word(end - (word_bytes - 1));  // of the whole words
    if (first >= last) continue;
    total += sum(at, first);
    at = last;
  }
  return total + sum(at, size_of(path));
}

void write_seal(const std::string& path, std::uint64_t checksum, const std::string& label) {
  const std::string text = text_of({size_of(path), checksum + checksum_of_label(label), label});
  const Descriptor file(path, O_WRONLY);
  if (file < 0 || !write_at(file, 0, text.data(), text.size()) || ::fsync(file) != 0) throw unwritable(path, errno);
}

bool is_sealed(const std::string& path) { return first_bytes(path).rfind(magic, 0) == 0; }

std::string read_label(const std::string& path) { return is_sealed(path) ? label_in(first_bytes(path)) : ""; }

void verify_seal(const std::string& path) {
  const Seal seal = read_seal(path);
  check_checksum(path, seal, checksum_of_rank(path, seal.size, 0, 1));
}

void verify_seal(const Communicator& communicator, const std::string& path) {
  Seal seal{};
  std::uint64_t checksum = 0;
  communicator.collectively([&] {
    seal = read_seal(path);
    checksum = checksum_of_rank(path, seal.size, communicator.rank(), communicator.size());
  });
  checksum = communicator.sum(checksum);
  communicator.collectively([&] { check_checksum(path, seal, checksum); });
}

}  // namespace onebit
