#pragma once
/// \file checkpoint_line.hpp
/// A line of checkpoints: those of one run from step 1 and of the restarts that continue it. Each line has its own
/// directory, so that no run removes or overwrites another run's files. docs/guide/checkpoint.md describes lines.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace onebit::train {

/// The line that a checkpoint belongs to: the label of its seal (io/sealed/seal.hpp).
struct Line {
  std::string id;        ///< 64 random bits in hexadecimal; empty if the file does not say
  std::string parent;    ///< id of the line that it branched from, or "unknown"; empty for a run from step 1
  long branched_at = 0;  ///< the step of the parent's checkpoint

  std::string label() const;
  /// In words, for `onebit checkpoint info`.
  std::string text() const;
  /// Reads the line of a file, which need not be verified.
  static Line of(const std::string& path);
};

/// Steps and paths of the checkpoints in a directory, the newest first.
std::map<long, std::filesystem::path, std::greater<>> checkpoints_in(const std::filesystem::path& directory);

/// Chooses where a run writes its checkpoints, and which of them it may remove. For rank 0 alone.
///
/// The first line is in `checkpoint.directory` itself, the others are in its subdirectories line_2, line_3, …; the
/// greatest number is the newest line.
class LineDirectory {
public:
  LineDirectory() = default;
  /// \param root `checkpoint.directory` \param keep `checkpoint.keep`
  LineDirectory(const std::filesystem::path& root, std::size_t keep);

  /// The directory of the newest line, which may be empty or missing.
  const std::filesystem::path& newest() const { return m_newest; }
  /// Begins a new line, for a run from step 1: in the newest directory if that holds no checkpoint, else in a new one.
  void begin();
  /// For a run that restarts from checkpoint `path`, of step `step`. Continues the newest line if this is its newest
  /// checkpoint, or if `restart: auto` found it there; else begins a new line, a branch.
  void restart_from(const std::string& path, long step, bool is_auto);

  const Line& line() const { return m_line; }
  const std::filesystem::path& directory() const { return m_directory; }
  /// Whether the line needs a new directory, because the newest one has the checkpoints of another line.
  bool is_beside_another() const { return m_directory.empty(); }
  /// Makes the directory, and prints its name if another line's is beside it. Removes what a killed run left
  /// half-written there.
  /// \returns false if it cannot be made or written, and `errno` says why
  bool open();
  /// The path of the checkpoint of step `step`; in a new directory if another run's checkpoint has that path.
  /// \throws RunError if a directory cannot be made
  std::string path(long step);
  /// Takes note of a complete checkpoint, and removes the oldest ones of this line, all but `keep`.
  void completed(long step, const std::string& path);

private:
  void choose_directory(bool newest_is_taken);

  std::filesystem::path m_root, m_newest;
  std::filesystem::path m_directory;  ///< empty: a new one, which `open` makes
  std::size_t m_keep = 0;
  Line m_line;
  bool m_is_open = false;
  std::map<long, std::filesystem::path> m_own;  ///< checkpoints of this line, the oldest first
};

}  // namespace onebit::train
