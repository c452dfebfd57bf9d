#pragma once
/// \file text_file.hpp
/// A file of one text, which is written at the end of a run.

#include <fstream>
#include <optional>
#include <string>

#include "io/run_lock.hpp"

namespace onebit {

/// A file that is opened as `PATH.partial` and renamed to `PATH` when its text is written: the file of an earlier run
/// stays until then.
class TextFile {
public:
  /// Makes the directories of `path`, opens the file and keeps other runs away from it, so that a run whose text could
  /// not be written is refused before it begins. \throws InputError that begins with `where`
  TextFile(const std::string& path, const std::string& where);
  /// Removes what was not finished.
  ~TextFile();
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;

  /// Writes the text and gives the file its name. \throws RunError
  void finish(const std::string& text);

private:
  std::string m_path, m_partial;
  MadeDirectories m_made;
  std::optional<RunLock> m_lock;
  std::ofstream m_file;
};

}  // namespace onebit
