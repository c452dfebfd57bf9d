#pragma once
/// \file crash_message.hpp
/// Last words: a library that crashes or hangs cannot be stopped, but it can be named.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>

namespace onebit {

/// Where this process crashes (SIGSEGV, SIGBUS) while this lives, or this lives longer than so many seconds, a message
/// goes to standard error before the process ends as it would have ended without. One at a time.
class CrashMessage {
public:
  /// \param text of static lifetime
  CrashMessage(const char* text, std::chrono::seconds patience) {
    s_text = text;
    struct sigaction action = {};
    action.sa_handler = &speak;
    for (int i = 0; i < signal_count; ++i) sigaction(signals[i], &action, &s_before[i]);
    alarm(static_cast<unsigned>(patience.count()));
  }
  ~CrashMessage() {
    alarm(0);
    for (int i = 0; i < signal_count; ++i) sigaction(signals[i], &s_before[i], nullptr);
  }
  CrashMessage(const CrashMessage&) = delete;
  CrashMessage& operator=(const CrashMessage&) = delete;

private:
  static constexpr int signal_count = 3;
  static constexpr int signals[signal_count] = {SIGSEGV, SIGBUS, SIGALRM};

  /// Calls only what a signal handler may call. The signal is blocked in here and comes again after the return, for who
  /// handled it before (a library's backtrace, or the default).
  static void speak(int signal) {
    const ssize_t written = write(STDERR_FILENO, s_text, std::strlen(s_text));
    (void)written;
    for (int i = 0; i < signal_count; ++i)
      if (signals[i] == signal) sigaction(signal, &s_before[i], nullptr);
    raise(signal);
  }

  static inline const char* s_text = "";
  static inline struct sigaction s_before[signal_count] = {};
};

}  // namespace onebit
