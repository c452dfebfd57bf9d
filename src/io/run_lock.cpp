#include "io/run_lock.hpp"

#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <thread>

#include "base/system/host.hpp"

namespace onebit {
namespace {

namespace fs = std::filesystem;

constexpr double patience_seconds = 2;
constexpr std::chrono::milliseconds pause{100};
/// What a file system without locks answers.
bool has_no_locks(int error) {
  return error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP || error == ENOTSUP || error == EINVAL;
}

struct Holder {
  long process = 0;  ///< 0 while nobody has signed
  std::string host, since;

  std::string text() const { return "process " + std::to_string(process) + " on " + host + " since " + since + "\n"; }
  std::string words() const {
    return process > 0 ? "process " + std::to_string(process) + " on " + host + ", since " + since
                       : "it has not written who it is";
  }
  /// Whether it is a process of this host that is gone.
  bool is_dead() const {
    return process > 0 && host == host_name() && ::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
  }
};

Holder holder_in(const std::string& path) {
  char text[512] = {};
  const Descriptor file(path, O_RDONLY);
  if (file >= 0) read_at(file, 0, text, sizeof text - 1);
  Holder holder;
  char host[257] = {}, since[65] = {};
  if (std::sscanf(text, "process %ld on %256s since %64s", &holder.process, host, since) < 3) return {};
  holder.host = host;
  holder.since = since;
  return holder;
}

/// Signs the file. An error is ignored: the lock holds without it, and only a message is poorer.
void sign(int file) {
  const std::string text = Holder{static_cast<long>(::getpid()), host_name(), utc_now()}.text();
  if (::ftruncate(file, 0) == 0) write_at(file, 0, text.data(), text.size());
}

}  // namespace

MadeDirectories::~MadeDirectories() {
  std::error_code ignored;  // those with files stay
  for (auto made = m_made.rbegin(); made != m_made.rend(); ++made) fs::remove(*made, ignored);
}

bool MadeDirectories::make(const fs::path& directory) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = fs::absolute(directory).lexically_normal(); !fs::exists(at, error); at = at.parent_path()) {
    if (at == at.parent_path()) break;
    if (at.has_filename()) missing.push_back(at);
  }
  for (auto at = missing.rbegin(); at != missing.rend(); ++at)
    if (fs::create_directory(*at, error)) m_made.push_back(*at);
  if (!error && !fs::is_directory(directory, error) && !error) error = std::make_error_code(std::errc::not_a_directory);
  errno = error.value();
  return !error;
}

RunLock::RunLock(const std::string& path, const std::string& where, const std::string& what)
    : m_path(path), m_where(where), m_what(what) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_seconds);
  bool is_first = true;
  for (Attempt attempt; (attempt = try_to_lock(is_first)) != Attempt::locked; is_first = false) {
    m_file.reset();
    if (attempt == Attempt::changed) continue;
    if (std::chrono::steady_clock::now() > end)
      throw InputError(where, "another run writes to " + what + " (" + holder_in(path).words() + ")",
                       "wait until it ends, stop it, or name another place; if that run is gone, remove " + path);
    std::this_thread::sleep_for(pause);
  }
}

RunLock::~RunLock() {
  if (m_file) std::remove(m_path.c_str());
}

InputError RunLock::error(int reason) const {
  return {m_where, m_what + " cannot be written" + because(reason), "name a place that you may write, with free space"};
}

RunLock::Attempt RunLock::try_to_lock(bool may_warn) {
  constexpr int flags = O_RDWR | O_CREAT | O_CLOEXEC;
  int file = ::open(m_path.c_str(), flags | O_EXCL, 0644);
  const bool is_new = file >= 0;
  if (!is_new && errno == EEXIST) file = ::open(m_path.c_str(), flags, 0644);
  if (file < 0) throw error(errno);
  m_file.emplace(file);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  while (::fcntl(*m_file, F_OFD_SETLK, &lock) != 0) {
    if (errno == EINTR) continue;
    if (has_no_locks(errno)) return lock_by_existence(is_new, may_warn);
    if (errno == EACCES || errno == EAGAIN) return Attempt::held;
    throw error(errno);
  }
  // The run that held it may have removed the file since it was opened: then this lock keeps nobody away.
  struct stat mine {
  }, named{};
  const bool same = ::fstat(*m_file, &mine) == 0 && ::stat(m_path.c_str(), &named) == 0 &&
                    mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
  if (!same) return Attempt::changed;
  sign(*m_file);
  return Attempt::locked;
}

RunLock::Attempt RunLock::lock_by_existence(bool is_new, bool may_warn) {
  if (may_warn)
    std::printf("warning: the file system of %s has no locks (%s): the file itself keeps other runs away\n",
                m_path.c_str(), std::strerror(errno));
  if (!is_new && !holder_in(m_path).is_dead()) return Attempt::held;
  sign(*m_file);
  return Attempt::locked;
}

void keep_earlier(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) return;
  static std::map<fs::path, fs::path> places;  // of this process, by directory
  const fs::path directory = path.parent_path();
  fs::path& place = places[directory];
  if (place.empty() || !fs::is_directory(place, error) || fs::exists(place / path.filename(), error)) {
    struct stat state {};
    ::stat(path.c_str(), &state);
    std::string date = utc(state.st_mtime);
    date.erase(std::remove(date.begin(), date.end(), ':'), date.end());  // which some file systems forbid
    fs::create_directory(directory / "earlier", error);
    for (int number = 1; !error || number == 1; ++number) {
      place = directory / "earlier" / (date + (number > 1 ? "_" + std::to_string(number) : ""));
      if (fs::create_directory(place, error)) break;
    }
    if (!error)
      std::printf("an earlier run's results of %s are kept in %s\n", directory.empty() ? "." : directory.c_str(),
                  place.c_str());
  }
  if (!error) fs::rename(path, place / path.filename(), error);
  if (error) throw unwritable(place.string(), error.value());
}

}  // namespace onebit
