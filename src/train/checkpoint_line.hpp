#pragma once
/// \file checkpoint_line.hpp
/// Lines of checkpoints: those of a run from step 1 and of the restarts that go on with it. Each line has its own
/// directory, so that no run removes or overwrites what another one wrote. docs/guide/checkpoint.md describes them.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace onebit::train {

/// Which line a checkpoint is of: the label of its seal (io/seal.hpp).
struct Line {
  std::string id;        ///< 64 random bits in hexadecimal; empty for a checkpoint of an earlier version
  std::string parent;    ///< id of the line that it branched from, or "unknown"; empty for a run from step 1
  long branched_at = 0;  ///< the step of the parent's checkpoint

  std::string label() const;
  /// In words, for `onebit checkpoint info`.
  std::string text() const;
  /// Of a file, which need not be verified. The id is empty where the file does not say.
  static Line of(const std::string& path);
};

/// The checkpoints in one directory: steps and paths, the newest first.
std::map<long, std::filesystem::path, std::greater<>> checkpoints_in(const std::filesystem::path& directory);

/// Where a run writes its checkpoints, and which of those that are there it may remove. For rank 0 alone.
///
/// The first line is in `checkpoint.directory` itself, the others are in its subdirectories line_2, line_3, …; the one
/// with the greatest number is the newest line.
class LineDirectory {
public:
  LineDirectory() = default;
  /// \param root `checkpoint.directory` \param keep `checkpoint.keep`
  LineDirectory(const std::filesystem::path& root, std::size_t keep);

  /// The directory of the newest line, which may hold no checkpoint yet, or not be there.
  const std::filesystem::path& newest() const { return m_newest; }
  /// For a run from step 1: a line of its own, in the newest directory if that holds no checkpoint, else in a new one.
  void begin();
  /// For a run from step `step`, of checkpoint `path`. The newest line goes on where that is the newest checkpoint in
  /// its directory, or `restart: auto` found it there; else the run is a branch, with a line of its own.
  void go_on(const std::string& path, long step, bool is_auto);

  const Line& line() const { return m_line; }
  const std::filesystem::path& directory() const { return m_directory; }
  /// Makes the directory, and says where it is if it is a new one beside another line's. Removes what a killed run left
  /// half-written there.
  /// \returns false where it cannot be made or written, and `errno` says why
  bool open();
  /// Where the checkpoint of step `step` goes. Where another run's is in its place, that is in a new directory.
  /// \throws RunError where a directory cannot be made
  std::string path(long step);
  /// Takes note of a complete checkpoint, and removes the oldest of this line that are more than `keep`.
  void completed(long step, const std::string& path);

private:
  void take_new_directory_if(bool is_taken);

  std::filesystem::path m_root, m_newest, m_directory;
  std::size_t m_keep = 0;
  Line m_line;
  bool m_is_open = false;
  std::map<long, std::filesystem::path> m_own;  ///< checkpoints of this line, the oldest first
};

}  // namespace onebit::train
