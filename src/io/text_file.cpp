#include "io/text_file.hpp"

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/error.hpp"
#include "io/file.hpp"

namespace onebit {

TextFile::TextFile(const std::string& path, const std::string& where) : m_path(path), m_partial(path + ".partial") {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const std::string what = "file '" + path + "'";
  const fs::path directory = fs::path(path).parent_path();
  int reason = !directory.empty() && !m_made.make(directory) ? errno : 0;
  if (reason == 0 && fs::is_directory(path, ignored)) reason = EISDIR;
  if (reason == 0) {
    m_lock.emplace(path + ".lock", where, what);
    m_file.open(m_partial, std::ios::binary | std::ios::trunc);
    if (!m_file.is_open()) reason = errno;
  }
  if (reason != 0)
    throw InputError(where, what + " cannot be written" + because(reason),
                     "name a file in a directory that you may write, with free space");
}

TextFile::~TextFile() {
  if (!m_file.is_open()) return;
  m_file.close();
  std::remove(m_partial.c_str());
}

void TextFile::finish(const std::string& text) {
  errno = 0;
  m_file << text;
  m_file.close();
  if (!m_file || std::rename(m_partial.c_str(), m_path.c_str()) != 0) throw unwritable(m_path, errno);
}

}  // namespace onebit
