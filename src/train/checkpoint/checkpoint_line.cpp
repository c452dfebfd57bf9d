#include "train/checkpoint/checkpoint_line.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>
#include <regex>

#include "base/error.hpp"
#include "io/file.hpp"
#include "io/sealed/seal.hpp"

namespace onebit::train {
namespace {

namespace fs = std::filesystem;

std::string name_of(long step) {
  char name[32];
  std::snprintf(name, sizeof name, "step_%08ld.h5", step);
  return name;
}

/// The step in the name of a checkpoint; −1 for any other name.
long step_in(const std::string& name) {
  long step = -1;
  std::sscanf(name.c_str(), "step_%18ld", &step);
  return step >= 0 && name == name_of(step) ? step : -1;
}

/// N of "line_N"; 1, the number of the first line, for any other name.
long line_in(const std::string& name) {
  long number = 1;
  std::sscanf(name.c_str(), "line_%18ld", &number);
  return number > 1 && name == "line_" + std::to_string(number) ? number : 1;
}

/// Calls work(path, name) for each entry of a directory; for none if it is missing.
/// \throws InputError where it cannot be read: a run must not take its checkpoints for none
template <class Work>
void for_each_entry(const fs::path& directory, const Work& work) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    work(entry->path(), entry->path().filename().string());
  if (error && error.value() != ENOENT && error.value() != ENOTDIR) throw unreadable(directory.string(), error.value());
}

fs::path newest_line(const fs::path& root) {
  long newest = 1;
  for_each_entry(root, [&](const fs::path& path, const std::string& name) {
    std::error_code error;
    if (line_in(name) > newest && fs::is_directory(path, error)) newest = line_in(name);
  });
  return newest == 1 ? root : root / ("line_" + std::to_string(newest));
}

/// Removes what a killed run left half-written, and the locks that Open MPI put beside it.
void remove_halves(const fs::path& directory) {
  const std::regex left(R"((.*)\.partial(|\.reserve|\.locktest\.\d+|-\d+-\d+\.lock))");
  for_each_entry(directory, [&](const fs::path& path, const std::string& name) {
    std::error_code ignored;
    std::smatch parts;
    if (std::regex_match(name, parts, left) && step_in(parts[1]) >= 0) fs::remove(path, ignored);
  });
}

/// 64 random bits.
std::string random_id() {
  std::random_device random;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", random(), random());
  return text;
}

/// Whether a file is a whole checkpoint; true also if reading it fails, since it may be one.
bool is_whole(const std::string& path) {
  try {
    verify_seal(path);
  } catch (const InputError&) {
    return false;
  } catch (const RunError&) {
  }
  return true;
}

}  // namespace

std::string Line::label() const {
  if (parent.empty()) return "line " + id;
  return "line " + id + " from " + parent + " at step " + std::to_string(branched_at);
}

std::string Line::text() const {
  if (id.empty()) return "unknown, written by an earlier version";
  if (parent.empty()) return id + ", from step 1";
  return id + ", branched from " + (parent == "unknown" ? "one that is unknown" : "line " + parent) + " at step " +
         std::to_string(branched_at);
}

Line Line::of(const std::string& path) {
  const std::string label = read_label(path);
  char id[17] = "", parent[17] = "";
  long step = 0;
  std::sscanf(label.c_str(), "line %16s from %16s at step %18ld", id, parent, &step);
  const Line line = {id, parent, step};
  return line.label() == label ? line : Line();
}

std::map<long, fs::path, std::greater<>> checkpoints_in(const fs::path& directory) {
  std::map<long, fs::path, std::greater<>> found;
  for_each_entry(directory, [&](const fs::path& path, const std::string& name) {
    const long step = step_in(name);
    if (step >= 0) found.emplace(step, path);
  });
  return found;
}

LineDirectory::LineDirectory(const fs::path& root, std::size_t keep)
    : m_root(root), m_newest(newest_line(root)), m_keep(keep) {}

void LineDirectory::begin() {
  m_line = {random_id(), "", 0};
  choose_directory(!checkpoints_in(m_newest).empty());
}

void LineDirectory::restart_from(const std::string& path, long step, bool is_auto) {
  const Line before = Line::of(path);
  const auto checkpoints = checkpoints_in(m_newest);
  std::error_code error;
  const bool is_newest = is_auto || (!checkpoints.empty() && fs::equivalent(path, checkpoints.begin()->second, error));
  if (is_newest && !before.id.empty())
    m_line = before;
  else
    m_line = {random_id(), before.id.empty() ? "unknown" : before.id, step};
  choose_directory(!is_newest && !checkpoints.empty());
  // Later ones are damaged, because `auto` passed over them: they do not count for `keep`.
  if (is_newest)
    for (const auto& [other, file] : checkpoints)
      if (other <= step && Line::of(file).id == m_line.id) m_own.emplace(other, file);
}

void LineDirectory::choose_directory(bool newest_is_taken) {
  m_directory = newest_is_taken ? fs::path() : m_newest;
  m_is_open = false;
}

bool LineDirectory::open() {
  std::error_code error;
  if (!m_directory.empty()) {
    fs::create_directories(m_directory, error);
    remove_halves(m_directory);
  } else {
    const auto theirs = checkpoints_in(m_newest);
    long number = m_newest == m_root ? 1 : line_in(m_newest.filename().string());
    do {  // the next number if another run has just made this one
      m_directory = m_root / ("line_" + std::to_string(++number));
    } while (!fs::create_directory(m_directory, error) && (!error || error == std::errc::file_exists));
    if (!error && !theirs.empty())
      std::printf("checkpoints: another run's stay in %s (%zu, steps %ld to %ld); this run writes into %s\n",
                  m_newest.c_str(), theirs.size(), theirs.rbegin()->first, theirs.begin()->first, m_directory.c_str());
  }
  errno = error ? error.value() : 0;
  m_is_open = !error && ::access(m_directory.c_str(), W_OK) == 0;
  return m_is_open;
}

std::string LineDirectory::path(long step) {
  if (!m_is_open && !open()) throw unwritable(m_directory.string(), errno);
  const fs::path place = m_directory / name_of(step);
  std::error_code error;
  if (!fs::exists(place, error) || Line::of(place).id == m_line.id || !is_whole(place)) return place.string();
  m_newest = m_directory;
  choose_directory(true);
  return path(step);
}

void LineDirectory::completed(long step, const std::string& path) {
  std::error_code ignored;
  m_own[step] = path;
  while (m_own.size() > m_keep) {
    const fs::path oldest = m_own.begin()->second;
    if (Line::of(oldest).id == m_line.id) fs::remove(oldest, ignored);
    m_own.erase(m_own.begin());
  }
}

}  // namespace onebit::train
