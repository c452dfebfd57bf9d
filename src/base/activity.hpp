#pragma once
/// \file activity.hpp
/// What this process is at, for a thread that watches it (app/watchdog.hpp): a few atomic writes where the work
/// changes, and nothing where nobody watches.

#include <atomic>
#include <cstdint>

namespace onebit {

/// Marks its scope as what the calling thread is at. Every profiling region (`Region`) is one. Scopes nest, and the
/// innermost one counts; what happens within a wait for other ranks is that wait.
///
/// One thread is watched. A thread that works for it, such as the one that averages buckets, helps it: each activity
/// that it begins shows that the watched thread's wait goes on, and the name stays that of the watched thread.
class Activity {
public:
  /// What the watched thread was at.
  struct Seen {
    const char* name;
    bool waits;             ///< for other ranks
    std::uint64_t changes;  ///< grows whenever an activity begins or ends, or one of a helping thread begins
    long step;
  };

  /// \param name  that lives as long as the program
  /// \param waits whether other ranks must act before this ends
  explicit Activity(const char* name, bool waits = false) {
    if (role() == Role::helps) goes_on();
    if (role() != Role::watched) return;
    m_outer = state().name.load(std::memory_order_relaxed);
    m_outer_waits = state().waits.load(std::memory_order_relaxed);
    set(name, waits || m_outer_waits);
  }
  ~Activity() {
    if (m_outer != nullptr) set(m_outer, m_outer_waits);
  }
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  /// Whether the calling thread, and no other, is watched from now on.
  static void watch(bool is_watched) { role() = is_watched ? Role::watched : Role::none; }
  /// From now on what the calling thread does is work for the watched thread.
  static void help() { role() = Role::helps; }
  static void set_step(long step) { state().step.store(step, std::memory_order_relaxed); }
  /// Says that a long activity goes on.
  static void goes_on() {
    if (role() != Role::none) state().changes.fetch_add(1, std::memory_order_relaxed);
  }
  /// Any thread may ask.
  static Seen seen() {
    return {state().name.load(std::memory_order_relaxed), state().waits.load(std::memory_order_relaxed),
            state().changes.load(std::memory_order_relaxed), state().step.load(std::memory_order_relaxed)};
  }

private:
  enum class Role { none, watched, helps };
  struct State {
    std::atomic<const char*> name{"OneBit"};
    std::atomic<bool> waits{false};
    std::atomic<std::uint64_t> changes{0};
    std::atomic<long> step{0};
  };
  static State& state() {
    static State of_process;
    return of_process;
  }
  static Role& role() {
    static thread_local Role of_thread = Role::none;
    return of_thread;
  }
  static void set(const char* name, bool waits) {
    state().name.store(name, std::memory_order_relaxed);
    state().waits.store(waits, std::memory_order_relaxed);
    goes_on();
  }

  const char* m_outer = nullptr;  ///< null where nobody watches
  bool m_outer_waits = false;
};

/// For activities and regions that end when other ranks have done their part.
inline constexpr bool waits_for_ranks = true;

}  // namespace onebit
