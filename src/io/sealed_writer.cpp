#include "io/sealed_writer.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <queue>

#include "base/activity.hpp"
#include "base/memory.hpp"
#include "io/file.hpp"

namespace onebit {

/// A queue of blocks of memory: the calling thread fills them, and another thread writes them into the file. The memory
/// is kept for the next file.
class SealedWriter::Blocks {
public:
  /// Begins a file. \param most number of blocks that may exist
  void open(std::size_t most) {
    m_most = most;
    m_closed = m_abandoned = false;
  }

  /// Queues `bytes` for `place`, which `fill` copies into a block. Waits while all blocks are filled.
  void copy(std::uint64_t place, std::size_t bytes, const Allocate& allocate, const std::function<void(void*)>& fill) {
    std::unique_lock<std::mutex> lock(m_mutex);
    m_changed.wait(lock, [&] { return !m_free.empty() || m_count < m_most; });
    std::shared_ptr<void> memory;
    if (!m_free.empty()) {
      memory = std::move(m_free.back());
      m_free.pop_back();
    } else {
      ++m_count;
    }
    lock.unlock();
    if (!memory) memory = allocate(block_bytes);
    fill(memory.get());
    push({place, bytes, static_cast<const char*>(memory.get()), memory});
  }
  /// Queues `bytes` that stay unchanged in memory until they are written.
  void refer(std::uint64_t place, std::size_t bytes, const void* from) {
    push({place, bytes, static_cast<const char*>(from), nullptr});
  }

  /// Ends the queue. \param abandons skip the blocks that are not written yet
  void close(bool abandons = false) {
    const std::lock_guard<std::mutex> lock(m_mutex);
    m_closed = true;
    m_abandoned = abandons;
    m_changed.notify_all();
  }

  /// Writes blocks until the queue ends; called by the other thread. Ranks of the same `host` take turns.
  /// \throws RunError at the end when a block could not be written
  void write_to(const std::string& path, int host) {
    const Descriptor file(path, O_WRONLY);
    int error = file < 0 ? errno : 0;
    m_checksum = 0;
    WriteBehind write_behind(file);
    for (std::unique_lock<std::mutex> lock(m_mutex);;) {
      m_changed.wait(lock, [&] { return !m_filled.empty() || m_closed; });
      if (m_filled.empty()) break;
      Filled block = std::move(m_filled.front());
      m_filled.pop();
      if (m_abandoned) error = ECANCELED;
      lock.unlock();
      // After an error, takes the blocks all the same: the calling thread waits for them.
      if (error == 0) {
        m_checksum += checksum_of(block.place, block.from, block.bytes);
        const FileTurn turn(file, host);
        if (!write_at(file, block.place, block.from, block.bytes) || !write_behind.add(block.place, block.bytes))
          error = errno;
      }
      ++m_written;
      lock.lock();
      if (block.memory) m_free.push_back(std::move(block.memory));
      m_changed.notify_all();
    }
    if (error == 0 && ::fsync(file) != 0) error = errno;
    if (error != 0) throw unwritable(path, error);
  }

  /// Checksum of the written blocks, after the end of the queue.
  std::uint64_t checksum() const { return m_checksum; }
  std::size_t count() const { return m_count; }
  /// Number of written blocks of all files.
  std::uint64_t written() const { return m_written; }

private:
  struct Filled {
    std::uint64_t place;
    std::size_t bytes;
    const char* from;
    std::shared_ptr<void> memory;  ///< of a block; null for `refer`
  };

  /// Keeps only the last few blocks in the page cache, so that a checkpoint does not drive out other files.
  class WriteBehind {
  public:
    explicit WriteBehind(int file) : m_file(file) {}
    /// Begins to flush a block. \returns false, with the reason in `errno`, when a block could not be flushed
    bool add(std::uint64_t place, std::size_t bytes) {
      constexpr std::size_t most = 8;
      bool good = sync(place, bytes, SYNC_FILE_RANGE_WRITE);
      m_blocks.emplace(place, bytes);
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
    bool sync(std::uint64_t place, std::size_t bytes, unsigned flags) const {
      return ::sync_file_range(m_file, static_cast<off_t>(place), static_cast<off_t>(bytes), flags) == 0 ||
             errno == ENOSYS || errno == EINVAL || errno == ESPIPE || errno == EOPNOTSUPP;
    }

    int m_file;
    std::queue<std::pair<std::uint64_t, std::size_t>> m_blocks;
  };

  void push(Filled block) {
    const std::lock_guard<std::mutex> lock(m_mutex);
    m_filled.push(std::move(block));
    m_changed.notify_all();
  }

  std::mutex m_mutex;
  std::condition_variable m_changed;
  std::size_t m_most = 0, m_count = 0;
  std::vector<std::shared_ptr<void>> m_free;
  std::queue<Filled> m_filled;
  bool m_closed = true, m_abandoned = false;
  std::uint64_t m_checksum = 0;
  std::atomic<std::uint64_t> m_written{0};
};

SealedWriter::SealedWriter(const Communicator& communicator, bool background)
    : m_communicator(communicator),
      m_background(background),
      m_host(communicator.hosts()[communicator.rank()]),
      m_ranks_of_host(communicator.local_size()),
      m_blocks(std::make_unique<Blocks>()) {}

SealedWriter::~SealedWriter() {
  m_blocks->close(true);
  if (m_task.valid()) m_task.wait();
}

void SealedWriter::begin(const std::string& path, const std::vector<Range>& ranges, const Allocate& allocate,
                         std::function<void()> completed, const std::string& label) {
  m_path = path;
  m_partial = path + ".partial";
  m_label = label;
  m_completed = std::move(completed);
  m_stage = Stage::writing;
  m_ranges.clear();
  for (const Range& range : ranges) {
    m_ranges.emplace_back(range.place, range.place + range.bytes);
    if (range.memory) m_in_place.push_back(range.memory);
  }
  try {
    m_communicator.collectively([&] {
      m_blocks->open(most_blocks());
      start([this] { m_blocks->write_to(m_partial, m_host); });
      for (const Range& range : ranges)
        for (std::size_t first = 0, count; first < range.bytes; first += count) {
          // Blocks end where words of the checksum do.
          count = std::min(block_bytes - (range.place + first) % sizeof(std::uint64_t), range.bytes - first);
          if (range.memory)
            m_blocks->refer(range.place + first, count, static_cast<const char*>(range.memory.get()) + first);
          else
            m_blocks->copy(range.place + first, count, allocate, [&](void* to) { range.copy(first, count, to); });
          Activity::goes_on();
        }
      m_blocks->close();
    });
  } catch (const AgreedError&) {
    drop();
    throw;
  }
  if (!m_background) complete();
}

bool SealedWriter::is_ready() const {
  return is_under_way() && (!m_task.valid() || m_task.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
}

void SealedWriter::advance() {
  try {
    m_communicator.collectively([&] { wait(); });
    if (m_stage == Stage::writing) {
      m_stage = Stage::sealing;
      m_in_place.clear();
      const std::uint64_t checksum = m_communicator.sum(m_blocks->checksum());
      const std::vector<FileRange> ranges = ranges_of_all();
      m_communicator.collectively([&] {
        if (m_communicator.rank() > 0) return;
        start([this, checksum, ranges] {
          write_seal(m_partial, checksum + checksum_rest(m_partial, ranges), m_label);
          if (std::rename(m_partial.c_str(), m_path.c_str()) != 0) throw unwritable(m_path, errno);
          sync_to_disk(std::filesystem::absolute(m_path).parent_path().string());
          if (m_completed) m_completed();
        });
      });
    } else {
      m_stage = Stage::none;
    }
  } catch (const AgreedError&) {
    drop();
    throw;
  }
}

void SealedWriter::complete() {
  while (is_under_way()) advance();
}

/// Number of blocks that may exist.
std::size_t SealedWriter::most_blocks() const {
  constexpr std::size_t least = 4;  // so that one is filled while others are written
  if (!m_background) return least;
  const double share = available_host_memory() / 2 / m_ranks_of_host;
  return std::max(least, m_blocks->count() + static_cast<std::size_t>(share / block_bytes));
}

/// The ranges of all ranks.
std::vector<FileRange> SealedWriter::ranges_of_all() const {
  const double count = static_cast<double>(m_ranges.size());
  const std::vector<double> counts = m_communicator.gather(&count, 1);
  std::vector<double> mine;  // whole numbers below 2⁵³
  for (const auto& [begin, end] : m_ranges) {
    mine.push_back(static_cast<double>(begin));
    mine.push_back(static_cast<double>(end));
  }
  mine.resize(2 * static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end())));
  const std::vector<double> all = m_communicator.gather(mine.data(), static_cast<int>(mine.size()));
  std::vector<FileRange> ranges;
  for (std::size_t i = 0; i < all.size(); i += 2)
    if (all[i] < all[i + 1]) ranges.emplace_back(all[i], all[i + 1]);
  return ranges;
}

void SealedWriter::start(std::function<void()> work) { m_task = std::async(std::launch::async, std::move(work)); }

/// Waits for this rank's thread. Throws what it threw.
void SealedWriter::wait() {
  if (!m_task.valid()) return;
  const Activity activity("OneBit::base::written");
  // Written blocks count as progress for the watchdog.
  for (std::uint64_t before = m_blocks->written();
       m_task.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready;) {
    const std::uint64_t now = m_blocks->written();
    if (now != before) Activity::goes_on();
    before = now;
  }
  m_task.get();
}

/// Removes the file, after all ranks agreed that it failed.
void SealedWriter::drop() {
  m_blocks->close(true);
  if (m_task.valid()) m_task.wait();
  m_task = {};
  m_in_place.clear();
  m_communicator.barrier();  // afterwards no thread writes
  if (m_communicator.rank() == 0) std::remove(m_partial.c_str());
  m_stage = Stage::none;
}

}  // namespace onebit
