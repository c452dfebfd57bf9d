/// \file watchdog.cpp
/// The thread calls no function of MPI but MPI_Abort. Should MPI_Abort wait for the main thread, an
/// alarm ends the process.

#include "app/watchdog.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "base/system/affinity.hpp"
#include "base/system/host.hpp"
#include "base/system/stop_signal.hpp"
#include "base/timer.hpp"
#include "io/file.hpp"

namespace onebit::app {
namespace {

constexpr std::size_t line_bytes = 256;
/// Time between two looks at the main thread. Open MPI's mpirun sends SIGKILL a second after SIGTERM.
constexpr double look_seconds = 0.1;
/// Lines that all ranks together write in a second: the file may be on a file system of a whole computing centre.
constexpr double most_lines_a_second = 256;
/// Beats (writes of a line) that a rank may miss before it counts as silent.
constexpr int beats_waited = 3;
/// Seconds after which a rank ends the run itself instead of waiting for a lower one to do so.
constexpr double patience_seconds = 30;

constexpr const char* works = "in";
constexpr const char* waits = "waits";
constexpr const char* left = "left";

/// "12.3 s"
std::string rounded(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

}  // namespace

/// A rank's line of the file.
struct Watchdog::Line {
  int rank = -1;
  long step = 0;
  std::string kind;  ///< `works`, `waits` or `left`; empty where there is no line
  std::string activity;
  double still = 0;  ///< seconds without a change of activity
  int process = 0;
  std::string host;
  std::string time;         ///< at which it was written
  unsigned long beats = 0;  ///< number of times it was written
  bool is_silent = false;   ///< true where it was not written between two readings

  /// "rank 1 (process 4711 on node7), step 12, OneBit::comm::allreduce"; without the step before the first one
  std::string last_seen() const {
    return "rank " + std::to_string(rank) + " (process " + std::to_string(process) + " on " + host + "), " +
           (step > 0 ? "step " + std::to_string(step) + ", " : "") + activity;
  }
};

Watchdog::Watchdog(const Communicator& communicator, const config::Input& input)
    : m_communicator(communicator),
      m_path(input.run.output + "/watchdog.txt"),
      m_host(host_name()),
      m_seconds(input.run.watchdog_seconds),
      m_beat(std::min(std::max(1.0, communicator.size() / most_lines_a_second), m_seconds / 4)) {
  if (m_seconds <= 0) return;
  communicator.on_root([&] {
    // The whole file, so that ranks can write their lines even on a disk that fills up later.
    std::ofstream file(m_path, std::ios::binary);
    for (int rank = 0; rank < communicator.size(); ++rank) file << std::string(line_bytes - 1, ' ') << '\n';
    file.close();
    if (!file) throw unwritable_directory(input.where("run.output"), input.run.output, because(errno));
  });
  Activity::watch(true);
  m_thread = std::thread([this] { run(); });
}

Watchdog::~Watchdog() {
  if (!m_thread.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(m_mutex);
    m_ends = true;
  }
  m_changed.notify_all();
  m_thread.join();
  Activity::watch(false);
}

void Watchdog::remove_file() const {
  if (m_thread.joinable() && m_communicator.rank() == 0) std::remove(m_path.c_str());
}

void Watchdog::run() {
  leave_first_place();
  const std::chrono::duration<double> look(look_seconds);
  Activity::Seen before = Activity::seen();
  double still = 0, since_beat = 0, since_reading = 0;
  std::vector<Line> lines;  // as they were at the last reading, once this rank has been still for long enough
  bool reported = false;
  const auto write = [&] { write_line(before, before.waits ? waits : works, still); };
  write();
  Stopwatch watch;
  std::unique_lock<std::mutex> lock(m_mutex);
  while (!m_changed.wait_for(lock, look, [&] { return m_ends; })) {
    // Does not count the time in which the whole job was suspended.
    const double passed = std::min(watch.restart(), 2 * look_seconds);
    const Activity::Seen now = Activity::seen();
    still = now.changes == before.changes ? still + passed : 0;
    before = now;
    since_beat += passed;
    since_reading += passed;
    if (since_beat >= m_beat) {
      write();
      since_beat = 0;
    }
    if (!reported && StopSignal::received() && still >= look_seconds) {
      report_dead_processes();
      reported = true;
    }
    if (still < m_seconds) {
      lines.clear();
    } else if (lines.empty()) {
      lines = read_lines();
      since_reading = 0;
    } else if (since_reading >= beats_waited * m_beat) {
      std::vector<Line> again = read_lines();
      for (std::size_t i = 0; i < again.size(); ++i) again[i].is_silent = again[i].beats == lines[i].beats;
      if (must_end_run(again, still)) end_run(describe(again));
      lines = again;
      since_reading = 0;
    }
  }
  write_line(before, left, still);
}

/// Opens and closes the file each time, because a network file system shows a write to others after that. An error is
/// ignored; it only makes the later message poorer.
void Watchdog::write_line(const Activity::Seen& seen, const char* kind, double still) {
  char text[line_bytes + 1];
  std::snprintf(text, sizeof text, "rank %d step %ld %s %s for %.1f s process %d on %s at %s beat %lu",
                m_communicator.rank(), seen.step, kind, seen.name, still, static_cast<int>(::getpid()), m_host.c_str(),
                utc_now().c_str(), ++m_beats);
  std::string line = text;
  line.resize(line_bytes - 1, ' ');
  line += '\n';
  const Descriptor file(m_path, O_WRONLY);
  if (file >= 0) write_at(file, line_bytes * m_communicator.rank(), line.data(), line.size());
}

/// \returns (ranks)
std::vector<Watchdog::Line> Watchdog::read_lines() const {
  std::vector<Line> lines(m_communicator.size());
  std::ifstream file(m_path, std::ios::binary);
  std::string text;
  for (int rank = 0; rank < m_communicator.size(); ++rank) {
    Line& line = lines[rank];
    if (!std::getline(file, text)) text.clear();
    std::istringstream words(text);
    words >> text >> text >> text >> line.step >> line.kind >> line.activity >> text >> line.still >> text >> text >>
        line.process >> text >> line.host >> text >> line.time >> text >> line.beats;
    line.rank = rank;
  }
  return lines;
}

/// Whether no rank makes progress, and this one has to end the run.
bool Watchdog::must_end_run(const std::vector<Line>& lines, double still) const {
  const auto is_alive = [](const Line& line) { return !line.is_silent && line.kind != left; };
  for (const Line& line : lines)
    if (is_alive(line) && line.still < m_seconds - 2 * m_beat) return false;
  const auto lowest = std::find_if(lines.begin(), lines.end(), is_alive);
  return (lowest != lines.end() && lowest->rank == m_communicator.rank()) || still > m_seconds + patience_seconds;
}

std::string Watchdog::describe(const std::vector<Line>& lines) const {
  constexpr std::size_t most = 16;  // ranks in each list of the message
  std::vector<std::string> silent, busy, waiting;
  for (const Line& line : lines) {
    if (line.kind == left) continue;
    if (line.kind.empty())
      silent.push_back("rank " + std::to_string(line.rank) + " has never been heard of");
    else if (line.is_silent)
      silent.push_back(line.last_seen() + ": not heard of since " + line.time);
    else
      (line.kind == waits ? waiting : busy).push_back(line.last_seen() + ": for " + rounded(line.still));
  }
  std::string text = "watchdog: no rank has gone on for " + rounded(m_seconds);
  const auto list = [&](const std::string& title, const std::vector<std::string>& ranks) {
    if (ranks.empty()) return;
    text += "\n  " + title + ":";
    for (std::size_t i = 0; i < std::min(most, ranks.size()); ++i) text += "\n    " + ranks[i];
    if (ranks.size() > most) text += "\n    and " + std::to_string(ranks.size() - most) + " more";
  };
  list("silent", silent);
  list("busy", busy);
  list("waiting for others", waiting);
  text += "\n  remedy: ";
  if (!silent.empty())
    text += "see whether the silent processes are stopped, swapped out or gone, or their hosts down (ps, dmesg there)";
  else if (!busy.empty())
    text += "see what the busy processes do (gdb -p); if it only takes long, raise run.watchdog_seconds";
  else
    text += "check the network between the ranks' hosts";
  const bool trains = std::any_of(lines.begin(), lines.end(), [](const Line& line) { return line.step > 0; });
  return text + (trains ? "; checkpoint.restart=auto goes on from the last checkpoint" : "");
}

void Watchdog::report_dead_processes() const {
  std::string gone;
  int speaker = -1;
  for (const Line& line : read_lines()) {
    if (line.host != m_host || line.process <= 0 || line.kind == left) continue;
    if (::kill(line.process, 0) == 0 || errno != ESRCH)
      speaker = speaker < 0 ? line.rank : speaker;
    else
      gone += (gone.empty() ? "" : "\n") + line.last_seen() + ": the process is gone";
  }
  if (gone.empty() || speaker != m_communicator.rank()) return;
  std::fprintf(stderr,
               "error: %s\n  remedy: see who killed it; signal 9 is often the host's or the batch system's answer to a "
               "lack of memory (dmesg, sacct): take a smaller model or batch, or fewer ranks on a host; "
               "checkpoint.restart=auto goes on from the last checkpoint\n",
               gone.c_str());
  std::fflush(stderr);
}

void Watchdog::end_run(const std::string& message) const {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::fflush(stderr);
  ::signal(SIGALRM, SIG_DFL);
  ::alarm(10);
  MPI_Abort(m_communicator.get(), static_cast<int>(ExitStatus::failed_run));
  std::_Exit(static_cast<int>(ExitStatus::failed_run));
}

}  // namespace onebit::app
