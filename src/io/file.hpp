#pragma once
/// \file file.hpp
/// Files that several threads and ranks read and write at once, by offset.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/error.hpp"
#include "base/system/activity.hpp"

namespace onebit {

/// An open file; negative where it could not be opened, with the reason in `errno`.
class Descriptor {
public:
  /// Takes over a file that a system call has opened.
  explicit Descriptor(int id) : m_id(id) {}
  Descriptor(const std::string& path, int flags) : m_id(::open(path.c_str(), flags | O_CLOEXEC)) {}
  ~Descriptor() {
    if (m_id >= 0) ::close(m_id);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return m_id; }

private:
  int m_id;
};

/// A lock for its scope, one for each number on a file. It serialises the writes of the processes of a host, which
/// would otherwise spin in the kernel for the file's lock. It does nothing on a file system without locks.
class FileTurn {
public:
  FileTurn(int file, int number) : m_file(file), m_number(number) {
    const Activity activity("OneBit::io::turn", waits_for_ranks);
    set(F_WRLCK);
  }
  ~FileTurn() { set(F_UNLCK); }
  FileTurn(const FileTurn&) = delete;
  FileTurn& operator=(const FileTurn&) = delete;

private:
  void set(short type) const {
    struct flock lock {};
    lock.l_type = type;
    lock.l_start = (off_t{1} << 60) + m_number;  // beyond the end of any file
    lock.l_len = 1;
    while (::fcntl(m_file, F_OFD_SETLKW, &lock) != 0 && errno == EINTR) {
    }
  }
  int m_file, m_number;
};

/// Why a file cannot be opened or read, in the system's words, and what to do about it. Nothing here says that the file
/// is broken: most of these reasons pass. \param error an `errno`
inline InputError unreadable(const std::string& path, int error) {
  const std::string reason = std::strerror(error);
  switch (error) {
    case ENOENT:
      return {path, "the file does not exist (" + reason + ")", "check the name"};
    case EACCES:
    case EPERM:
      return {path, "the file cannot be read: " + reason, "check the permissions of the file and of its directories"};
    case EMFILE:
    case ENFILE:
      return {path, "the file cannot be opened: " + reason, "raise the limit of open files (ulimit -n)"};
    case EISDIR:
      return {path, "this is a directory", "name a file in it"};
    case ELOOP:
    case ENOTDIR:
    case ENAMETOOLONG:
      return {path, "the file cannot be opened: " + reason, "check the name, and the links and directories in it"};
    default:
      return {path, "the file cannot be read just now: " + reason, "check its file system, and try again"};
  }
}

/// Reads up to `count` bytes at `offset`; fewer at the end of the file, where `errno` is 0, and after an error.
inline std::size_t read_at(int file, std::uint64_t offset, char* bytes, std::size_t count) {
  std::size_t done = 0;
  errno = 0;
  while (done < count) {
    const ssize_t got = ::pread(file, bytes + done, count - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

/// Writes `count` bytes at `offset`. \returns false, with the reason in `errno`, when not all could be written
inline bool write_at(int file, std::uint64_t offset, const char* bytes, std::size_t count) {
  std::size_t done = 0;
  while (done < count) {
    const ssize_t put = ::pwrite(file, bytes + done, count - done, static_cast<off_t>(offset + done));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<std::size_t>(put);
  }
  return true;
}

/// The system's reason behind a message: ": No space left on device"; empty for 0. \param error an `errno`
inline std::string because(int error) { return error != 0 ? std::string(": ") + std::strerror(error) : ""; }

/// \param error an `errno`
inline RunError unwritable(const std::string& path, int error) {
  return {path, "the file could not be written" + because(error),
          "check the directory, its permissions and the free space"};
}

/// \param where in the input \param reason ": No space left on device"; may be empty
inline InputError unwritable_directory(const std::string& where, const std::string& directory,
                                       const std::string& reason) {
  return {where, "directory '" + directory + "' cannot be written" + reason,
          "name a directory that you may write, with free space"};
}

/// Waits until a file, or the entries of a directory, is on the disk. \throws RunError
inline void sync_to_disk(const std::string& path) {
  const Descriptor file(path, O_RDONLY);
  if (file < 0 || ::fsync(file) != 0) throw unwritable(path, errno);
}

}  // namespace onebit
