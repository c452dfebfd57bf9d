#pragma once
/// \file stop_signal.hpp
/// Signals by which a batch system announces that it will end the job.

#include <atomic>
#include <csignal>

namespace onebit::train {

/// While one lives, SIGTERM and SIGUSR1 only set a flag. The step loop reads it, so that all ranks can agree to stop.
class StopSignal {
public:
  StopSignal() {
    flag() = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { flag() = 1; };
    action.sa_flags = SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGTERM, &action, &m_terminate);
    ::sigaction(SIGUSR1, &action, &m_user);
  }
  ~StopSignal() {
    ::sigaction(SIGTERM, &m_terminate, nullptr);
    ::sigaction(SIGUSR1, &m_user, nullptr);
  }
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Whether this process has received one of them. Any thread may ask.
  static bool received() { return flag() != 0; }

private:
  /// Lock-free, so that a handler may write it; atomic, because the signal may interrupt any thread.
  static std::atomic<int>& flag() {
    static std::atomic<int> of_process{0};
    return of_process;
  }

  struct sigaction m_terminate, m_user;  ///< earlier actions
};

}  // namespace onebit::train
