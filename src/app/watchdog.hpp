#pragma once
/// \file watchdog.hpp
/// Ends a run that hangs, and says in which activity each rank was last seen: of a rank that is stopped too, which can
/// say nothing itself.

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/activity.hpp"
#include "base/mpi.hpp"
#include "config/input.hpp"

namespace onebit::app {

/// While one lives, a thread of each rank writes about once a second what its main thread is at (base/activity.hpp) into
/// a line of its own of `watchdog.txt`, by a file because a run that hangs exchanges no messages any more.
///
/// When no main thread that is heard of has changed its activity for `run.watchdog_seconds`, the lowest of these ranks reads the
/// lines of all, prints who keeps the others waiting, and ends the run on all ranks with status 1. A signal that asks a
/// training to end (train/stop_signal.hpp) while the main thread waits for a process that is gone makes it say which one:
/// so do mpirun's survivors before they are ended too.
class Watchdog {
public:
  /// Watches the calling thread; nothing where `run.watchdog_seconds` is 0. Makes `run.output` for its file where that is
  /// missing. Collective. \throws AgreedError where the file cannot be written
  Watchdog(const Communicator& communicator, const config::Input& input);
  /// Writes that this rank has left. The file stays, for those who ask why the run ended.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Removes the file, on rank 0, at the end of a run that went well.
  void remove_file() const;

private:
  struct Line;
  void run();
  void write_line(const Activity::Seen& seen, const char* kind, double still);
  std::vector<Line> read_lines() const;
  bool is_to_end(const std::vector<Line>& lines, double still) const;
  std::string describe(const std::vector<Line>& lines) const;
  void say_who_is_gone() const;
  [[noreturn]] void end_run(const std::string& message) const;

  const Communicator& m_communicator;
  std::string m_path, m_host;
  double m_seconds;
  double m_beat;  ///< seconds between two writes
  std::mutex m_mutex;
  std::condition_variable m_changed;
  bool m_ends = false;
  unsigned long m_beats = 0;  ///< lines that this rank has written
  std::thread m_thread;       ///< last, so that it begins when all else is there
};

}  // namespace onebit::app
