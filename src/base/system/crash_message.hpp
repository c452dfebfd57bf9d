#pragma once
/// \file crash_message.hpp
/// A last message: a crash or a hang inside a library cannot be prevented, but the library can be named.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>

namespace onebit {

/// Prints a message to standard error when the process crashes (SIGSEGV, SIGBUS) in its scope, or when the scope lasts
/// longer than `patience`. The process then ends as it would have ended without this object. One object at a time.
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

  /// Calls only async-signal-safe functions. The signal is blocked in here; the one raised at the end arrives after the
  /// return, at the earlier handler (a library's backtrace, or the default).
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
