#pragma once
/// \file run_files.hpp
/// The files that a command reads and writes: that no two of them are the same one, and that no other run writes them.

#include <memory>
#include <string>
#include <vector>

#include "config/input.hpp"
#include "io/run_lock.hpp"

namespace onebit::app {

/// Refuses a command that would write a file twice, or one that it reads.
/// \param command its words, e.g. "bench kernels" \param path of the input \param json of the option; may be empty
/// \throws InputError
void check_files(const config::Input& input, const std::string& command, const std::string& path,
                 const std::string& json);

/// Holds what a run writes in its scope: `run.output`, and what a training writes elsewhere.
class RunLocks {
public:
  /// Makes and locks the directories.
  /// \throws InputError when they cannot be written, or another run holds them
  RunLocks(const config::Input& input, bool trains);

private:
  void lock(const std::string& path, const std::string& where, const std::string& what);

  MadeDirectories m_made;  ///< outlives the locks, whose files are in them
  std::vector<std::unique_ptr<RunLock>> m_locks;
};

}  // namespace onebit::app
