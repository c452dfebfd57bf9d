#pragma once
/// \file watchdog.hpp
/// Ends a run that hangs, and prints in which activity each rank was last seen, even if it is stopped.

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/mpi.hpp"
#include "base/system/activity.hpp"
#include "config/input.hpp"

namespace onebit::app {

/// In its scope, a thread of each rank writes the activity of its main thread (base/system/activity.hpp) about once a
/// second, more rarely with more than 256 ranks, into its own line of `watchdog.txt`. It is a file because a run that
/// hangs exchanges no messages any more.
///
/// A rank is alive while it writes its line. When no living rank has changed its activity for `run.watchdog_seconds`,
/// the lowest of them reads all lines, prints which ranks keep the others waiting, and ends all ranks with status 1.
/// When a signal asks a training to end (base/system/stop_signal.hpp) while its main thread waits for a process that is
/// gone, the watchdog names that process: mpirun signals the survivors before it kills them.
class Watchdog {
public:
  /// Watches the calling thread, unless `run.watchdog_seconds` is 0. Directory `run.output` exists. Collective.
  /// \throws AgreedError when the file cannot be written
  Watchdog(const Communicator& communicator, const config::Input& input);
  /// Writes that this rank has left. The file stays, as a record of why the run ended.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Removes the file, at the end of a successful run.
  void remove_file() const;

private:
  struct Line;
  void run();
  void write_line(const Activity::Seen& seen, const char* kind, double still);
  std::vector<Line> read_lines() const;
  bool must_end_run(const std::vector<Line>& lines, double still) const;
  std::string describe(const std::vector<Line>& lines) const;
  void report_dead_processes() const;
  [[noreturn]] void end_run(const std::string& message) const;

  const Communicator& m_communicator;
  std::string m_path, m_host;
  double m_seconds;
  double m_beat;  ///< seconds between two writes
  std::mutex m_mutex;
  std::condition_variable m_changed;
  bool m_ends = false;
  unsigned long m_beats = 0;  ///< lines that this rank has written
  std::thread m_thread;       ///< last, so that it starts after all other members exist
};

}  // namespace onebit::app
