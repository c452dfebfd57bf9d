#pragma once
/// \file run_lock.hpp
/// Keeps two runs from writing the same files, and a later run from replacing what an earlier one left.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/file.hpp"

namespace onebit {

/// Directories that were made for a run. Those that are empty in the end, as after a refusal, are removed.
class MadeDirectories {
public:
  MadeDirectories() = default;
  ~MadeDirectories();
  MadeDirectories(const MadeDirectories&) = delete;
  MadeDirectories& operator=(const MadeDirectories&) = delete;
  /// Makes a directory and its parents. \returns false, with the reason in `errno`, when that fails
  bool make(const std::filesystem::path& directory);

private:
  std::vector<std::filesystem::path> m_made;  ///< parents first
};

/// Holds files for one run in its scope: the run's process locks a small file that says who it is. The system takes the
/// lock away when the process ends in any way. On a file system without locks, the file itself is the lock; one that a
/// dead process of this host left does not count.
class RunLock {
public:
  /// Waits a few seconds for another run that is about to end.
  /// \param path  of the lock's file, whose directory exists
  /// \param where for messages: what named `what`
  /// \param what  that is locked, in words
  /// \throws InputError when another run holds it, or the file cannot be written
  RunLock(const std::string& path, const std::string& where, const std::string& what);
  /// Removes the file.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

private:
  enum class Attempt { locked, held, changed };
  Attempt try_to_lock(bool may_warn);
  Attempt lock_by_existence(bool is_new, bool may_warn);
  InputError error(int reason) const;

  std::string m_path, m_where, m_what;
  std::optional<Descriptor> m_file;
};

/// Moves a file that an earlier run left into `earlier/DATE` beside it. DATE is when the first file was last changed
/// that this process moves out of the directory, so that the files of one run stay together; a message names the
/// place. Nothing there is replaced. Does nothing where there is no ordinary file. \throws RunError
void keep_earlier(const std::filesystem::path& path);

}  // namespace onebit
