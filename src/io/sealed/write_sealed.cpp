#include "io/sealed/write_sealed.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <queue>
#include <utility>

#include "base/system/activity.hpp"
#include "io/file.hpp"

namespace onebit {
namespace {

/// Keeps only the last few blocks in the page cache, so that a checkpoint does not drive out other files.
class WriteBehind {
public:
  explicit WriteBehind(int file) : m_file(file) {}
  /// Begins to flush a block. \returns false, with the reason in `errno`, when a block could not be flushed
  bool add(std::uint64_t begin, std::size_t bytes) {
    constexpr std::size_t most = 8;
    bool good = sync(begin, bytes, SYNC_FILE_RANGE_WRITE);
    m_blocks.emplace(begin, bytes);
    if (m_blocks.size() <= most || !good) return good;
    const auto [first, count] = m_blocks.front();
    m_blocks.pop();
    good = sync(first, count, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(m_file, first, count, POSIX_FADV_DONTNEED);
    return good;
  }

private:
  /// Ignores that a file system does not support it: `fsync` follows. Other errors count, as `fsync` may not repeat
  /// them.
  bool sync(std::uint64_t begin, std::size_t bytes, unsigned flags) const {
    return ::sync_file_range(m_file, static_cast<off_t>(begin), static_cast<off_t>(bytes), flags) == 0 ||
           errno == ENOSYS || errno == EINVAL || errno == ESPIPE || errno == EOPNOTSUPP;
  }

  int m_file;
  std::queue<std::pair<std::uint64_t, std::size_t>> m_blocks;
};

/// Writes this rank's ranges and flushes them to the disk. Ranks of the same `host` take turns.
/// \returns their checksum \throws RunError
std::uint64_t write_ranges(const std::string& path, const std::vector<SealedRange>& ranges, int host) {
  const Descriptor file(path, O_WRONLY);
  if (file < 0) throw unwritable(path, errno);
  WriteBehind write_behind(file);
  std::uint64_t checksum = 0;
  for (const SealedRange& range : ranges)
    for (std::size_t first = 0, count; first < range.bytes; first += count) {
      const std::uint64_t begin = range.begin + first;
      // Blocks end where words of the checksum do.
      count = std::min(sealed_block_bytes - begin % sizeof(std::uint64_t), range.bytes - first);
      const char* const bytes = range.read(first, count);
      checksum += checksum_of(begin, bytes, count);
      const FileTurn turn(file, host);
      if (!write_at(file, begin, bytes, count) || !write_behind.add(begin, count)) throw unwritable(path, errno);
      Activity::goes_on();
    }
  if (::fsync(file) != 0) throw unwritable(path, errno);
  return checksum;
}

/// The ranges of all ranks.
std::vector<FileRange> ranges_of_all(const Communicator& communicator, const std::vector<SealedRange>& ranges) {
  const double count = static_cast<double>(ranges.size());
  const std::vector<double> counts = communicator.gather(&count, 1);
  std::vector<double> mine;  // whole numbers below 2⁵³
  for (const SealedRange& range : ranges) {
    mine.push_back(static_cast<double>(range.begin));
    mine.push_back(static_cast<double>(range.begin + range.bytes));
  }
  mine.resize(2 * static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end())));
  const std::vector<double> all = communicator.gather(mine.data(), static_cast<int>(mine.size()));
  std::vector<FileRange> result;
  for (std::size_t i = 0; i < all.size(); i += 2)
    if (all[i] < all[i + 1]) result.emplace_back(all[i], all[i + 1]);
  return result;
}

}  // namespace

void write_sealed(const Communicator& communicator, const std::string& path, const std::vector<SealedRange>& ranges,
                  const std::string& label) {
  const std::string partial = path + ".partial";
  const int host = communicator.hosts()[communicator.rank()];
  std::uint64_t checksum = 0;
  communicator.collectively([&] { checksum = write_ranges(partial, ranges, host); });
  checksum = communicator.sum(checksum);
  const std::vector<FileRange> all = ranges_of_all(communicator, ranges);
  communicator.on_root([&] {
    write_seal(partial, checksum + checksum_rest(partial, all), label);
    if (std::rename(partial.c_str(), path.c_str()) != 0) throw unwritable(path, errno);
    sync_to_disk(std::filesystem::absolute(path).parent_path().string());
  });
}

}  // namespace onebit
