#pragma once
/// \file sealed_writer.hpp
/// Completes sealed files (io/seal.hpp) beside the calling threads: the ranks copy what they have to write, and a thread
/// of each brings the copy to the disk while they go on.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "base/mpi.hpp"

namespace onebit {

/// One file at a time, in two stages, in which threads work alone, without MPI: all ranks write their pieces, add up the
/// checksum and bring them to the disk; rank 0 seals the file and gives it its name. The calling threads agree on when all
/// are through with a stage, and on what went wrong in it.
class SealedWriter {
public:
  /// Bytes of the file that this rank has.
  struct Piece {
    std::uint64_t place;  ///< in the file
    std::size_t bytes;
    /// Copies [first, first + count) of them to `to`.
    std::function<void(std::size_t first, std::size_t count, void* to)> copy;
    /// Where they are, if nobody changes them before all are written: then they are not copied. Let go of by the calling
    /// thread.
    std::shared_ptr<const void> memory = {};
  };
  /// How blocks of memory between the pieces and the file are made.
  using Allocate = std::function<std::shared_ptr<void>(std::size_t bytes)>;

  /// Bytes of a block: pieces are copied in so many at once.
  static constexpr std::size_t block_bytes = std::size_t{1} << 22;

  /// Collective. \param background `begin` copies all that the rank has, in so far as half of the host's free memory holds
  ///                               it, and comes back; else it takes a few blocks of memory and waits for the disk
  SealedWriter(const Communicator& communicator, bool background);
  /// Gives up what is under way, which keeps its temporary name.
  ~SealedWriter();
  SealedWriter(const SealedWriter&) = delete;
  SealedWriter& operator=(const SealedWriter&) = delete;

  /// Begins to complete `path`.partial, while no other file is under way. It exists and has its final size, and all of it
  /// is written but the seal and the ranks' pieces. Collective, like all members but `is_under_way` and `is_ready`.
  /// \param completed called on rank 0 when the file has its name, by the thread; must not throw
  /// \param label     of the seal, on rank 0
  /// \throws AgreedError for the file, which is removed
  void begin(const std::string& path, const std::vector<Piece>& pieces, const Allocate& allocate,
             std::function<void()> completed, const std::string& label = "");
  bool is_background() const { return m_background; }
  /// Whether there is a file that is not complete; the same on all ranks.
  bool is_under_way() const { return m_stage != Stage::none; }
  /// Whether this rank is through with its stage of the file that is under way. `advance` waits for no disk once all are.
  bool is_ready() const;
  /// Waits for the end of the stage, and begins the next one. \throws AgreedError for the file, which is removed
  void advance();
  /// Waits until nothing is under way. \throws AgreedError as `advance`
  void complete();

private:
  enum class Stage { none, writing, sealing };
  class Blocks;

  std::size_t most_blocks() const;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> all_places() const;
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
  std::vector<std::pair<std::uint64_t, std::uint64_t>> m_places;  ///< [begin, end) of this rank's pieces
  std::future<void> m_task;
};

}  // namespace onebit
