#pragma once
/// \file stop_signal.hpp
/// Signals that ask a training to end: from a batch system that will end the job, or from the keyboard.

#include <unistd.h>

#include <atomic>
#include <csignal>

#include "base/error.hpp"

namespace onebit {

/// While one lives, SIGTERM, SIGUSR1 and SIGINT only set a flag. The step loop reads it, so that all ranks can agree to
/// stop. A second SIGINT ends the process at once.
class StopSignal {
public:
  StopSignal() {
    state().received = 0;
    state().interrupts = 0;
    state().setting_up = 1;
    // oneDNN's products keep other things than a stack where the stack pointer points, which a handler's frame would
    // overwrite. So the handler has a stack of its own. Linux gives a process' signals to its first thread.
    static char stack[1 << 16];
    const stack_t of_handler{stack, 0, sizeof stack};
    ::sigaltstack(&of_handler, &m_stack);
    struct sigaction action {};
    action.sa_handler = [](int signal) { receive(signal); };
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(SIGTERM, &action, &m_terminate);
    ::sigaction(SIGUSR1, &action, &m_user);
    ::sigaction(SIGINT, &action, &m_interrupt);
    // A shell starts background jobs with SIGINT ignored, and that stays.
    if (m_interrupt.sa_handler == SIG_IGN) ::sigaction(SIGINT, &m_interrupt, nullptr);
  }
  ~StopSignal() {
    ::sigaction(SIGTERM, &m_terminate, nullptr);
    ::sigaction(SIGUSR1, &m_user, nullptr);
    ::sigaction(SIGINT, &m_interrupt, nullptr);
    ::sigaltstack(&m_stack, nullptr);
  }
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Whether this process has received one of them. Any thread may ask.
  static bool received() { return state().received != 0; }
  /// The set-up is over: `check` throws no more, because a signal asks for a checkpoint from now on.
  static void begin_steps() { state().setting_up = 0; }
  /// Called in long work of the set-up, which has nothing to save. \throws Error when a signal was received
  static void check() {
    if (received() && state().setting_up != 0) throw stopped();
  }
  /// What the set-up ends with when a signal asks it to.
  static Error stopped() {
    return {ExitStatus::stopped,
            "stopped by a signal before the first step, so there is nothing to save\n"
            "  to continue: give the same command again"};
  }

private:
  /// Lock-free, so that a handler may write it; atomic, because the signal may interrupt any thread.
  struct State {
    std::atomic<int> received{0}, interrupts{0}, setting_up{0};
  };
  static State& state() {
    static State of_process;
    return of_process;
  }
  static void receive(int signal) {
    state().received = 1;
    if (signal != SIGINT) return;
    if (++state().interrupts > 1) {
      ::signal(SIGINT, SIG_DFL);
      ::raise(SIGINT);
      return;
    }
    static constexpr char text[] =
        "stopping after this step, with a checkpoint; a second Ctrl-C ends the run at once\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, sizeof text - 1);
  }

  struct sigaction m_terminate, m_user, m_interrupt;  ///< earlier actions
  stack_t m_stack;                                    ///< earlier stack of handlers
};

}  // namespace onebit
