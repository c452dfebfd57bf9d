#pragma once
/// \file sealed_writer.hpp
/// Completes sealed files (io/seal.hpp) in the background: each rank copies what it has to write, and a thread brings
/// the copy to the disk while the rank goes on.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/mpi.hpp"
#include "io/seal.hpp"

namespace onebit {

/// Writes one file at a time, in two stages. First, each rank writes its ranges, adds up their checksum and flushes
/// them to the disk. Then rank 0 seals the file and renames it. A thread does the work of a stage, without MPI; the
/// calling threads agree on the end of a stage and on its errors.
class SealedWriter {
public:
  /// A range of the file that this rank writes.
  struct Range {
    std::uint64_t place;  ///< offset in the file
    std::size_t bytes;
    /// Copies bytes [first, first + count) of the range to `to`.
    std::function<void(std::size_t first, std::size_t count, void* to)> copy;
    /// The bytes in host memory, if they stay unchanged until they are written: they are then not copied. Released by
    /// the calling thread.
    std::shared_ptr<const void> memory = {};
  };
  /// Allocates a block of memory, into which ranges are copied.
  using Allocate = std::function<std::shared_ptr<void>(std::size_t bytes)>;

  /// Bytes of a block.
  static constexpr std::size_t block_bytes = std::size_t{1} << 22;

  /// Collective.
  /// \param background true: `begin` copies the ranges, as far as half of the host's free memory holds them, and goes
  ///                   on; false: it takes a few blocks of memory and waits for the disk
  SealedWriter(const Communicator& communicator, bool background);
  /// Gives up an unfinished file, which keeps its temporary name.
  ~SealedWriter();
  SealedWriter(const SealedWriter&) = delete;
  SealedWriter& operator=(const SealedWriter&) = delete;

  /// Begins to complete `path`.partial, while no other file is unfinished. This file exists with its final size, and
  /// only the seal and the ranks' ranges are missing. Collective, like `advance` and `complete`.
  /// \param completed called by the thread of rank 0 when the file has its name; must not throw
  /// \param label     of the seal; rank 0's counts
  /// \throws AgreedError when the file could not be written; it is then removed
  void begin(const std::string& path, const std::vector<Range>& ranges, const Allocate& allocate,
             std::function<void()> completed, const std::string& label = "");
  bool is_background() const { return m_background; }
  /// Whether a file is unfinished; the same on all ranks.
  bool is_under_way() const { return m_stage != Stage::none; }
  /// Whether this rank has finished the current stage. When all ranks have, `advance` does not wait for the disk.
  bool is_ready() const;
  /// Waits for the end of the stage and begins the next one. \throws AgreedError as `begin`
  void advance();
  /// Waits until the file is complete. \throws AgreedError as `begin`
  void complete();

private:
  enum class Stage { none, writing, sealing };
  class Blocks;

  std::size_t most_blocks() const;
  std::vector<FileRange> ranges_of_all() const;
  void start(std::function<void()> work);
  void wait();
  void drop();

  const Communicator& m_communicator;
  const bool m_background;
  const int m_host, m_ranks_of_host;
  std::unique_ptr<Blocks> m_blocks;  ///< outlives the task
  std::vector<std::shared_ptr<const void>> m_in_place;
  std::string m_path, m_partial, m_label;
  std::function<void()> m_completed;
  Stage m_stage = Stage::none;
  std::vector<FileRange> m_ranges;  ///< this rank's ranges
  std::future<void> m_task;
};

}  // namespace onebit
