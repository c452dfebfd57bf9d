#pragma once
/// \file activity.hpp
/// What this process does at the moment, for the thread that watches it (app/watchdog.hpp). A change of activity costs
/// a few atomic stores, or nothing where no thread watches.

#include <atomic>
#include <cstdint>

namespace onebit {

/// Names what the calling thread does in a scope. Every profiling region (`Region`) is one. Scopes nest, and the
/// innermost one counts; inside a wait for other ranks, everything counts as that wait.
///
/// One thread is watched. Another one may help it, such as the thread that averages buckets: each activity that the
/// helper begins shows that the watched thread's wait makes progress. The name stays that of the watched thread.
class Activity {
public:
  /// State of the watched thread.
  struct Seen {
    const char* name;
    bool waits;             ///< for other ranks
    std::uint64_t changes;  ///< grows when an activity begins or ends, and when a helper begins one
    long step;
  };

  /// \param name  of static lifetime
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

  /// Begins or ends to watch the calling thread. No other one may be watched meanwhile.
  static void watch(bool is_watched) { role() = is_watched ? Role::watched : Role::none; }
  /// From now on, the calling thread helps the watched one.
  static void help() { role() = Role::helps; }
  static void set_step(long step) { state().step.store(step, std::memory_order_relaxed); }
  /// Reports progress within a long activity.
  static void goes_on() {
    if (role() != Role::none) state().changes.fetch_add(1, std::memory_order_relaxed);
  }
  /// May be called by any thread.
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

  const char* m_outer = nullptr;  ///< null in a thread that is not watched
  bool m_outer_waits = false;
};

/// Argument of activities and regions that end only after other ranks have acted.
inline constexpr bool waits_for_ranks = true;

}  // namespace onebit
