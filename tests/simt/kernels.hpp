#pragma once
/// \file kernels.hpp
/// The parallel patterns of Kokkos 3.4 on the simulated device, as far as OneBit uses them. A launch copies its functor
/// without counting references to Views, as a device does.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "simt/space.hpp"

namespace onebit::simt {

/// A thread of a team.
class Member {
public:
  using execution_space = Exec;
  using scratch_memory_space = Kokkos::ScratchMemorySpace<Exec>;

  Member(char* scratch, int bytes, int league_rank, int league_size)
      : m_scratch(scratch, bytes), m_league_rank(league_rank), m_league_size(league_size) {}

  const scratch_memory_space& team_scratch(int level) const { return m_scratch.set_team_thread_mode(level, 1, 0); }
  int league_rank() const { return m_league_rank; }
  int league_size() const { return m_league_size; }
  int team_rank() const { return place().thread; }
  int team_size() const { return place().team; }
  void team_barrier() const { barrier(); }

private:
  scratch_memory_space m_scratch;
  int m_league_rank, m_league_size;
};

/// Which elements of [0, count) the running thread has.
enum class Level { team_thread, thread_vector, team_vector };
template <Level level, class Index>
struct Range {
  Index count;

  template <class F>
  void each(const F& f) const {
    const Place& own = place();
    const int first = level == Level::thread_vector ? own.lane
                      : level == Level::team_thread ? own.thread
                                                    : own.thread * own.vector + own.lane;
    const int step = level == Level::thread_vector ? own.vector
                     : level == Level::team_thread ? own.team
                                                   : own.team * own.vector;
    for (Index i = static_cast<Index>(first); i < count; i += static_cast<Index>(step)) f(i);
  }
};
struct OncePerThread {};
struct OncePerTeam {};

/// The scratch memory of a team, filled with NaN, between guards.
class Scratch {
public:
  explicit Scratch(int bytes) : m_bytes(bytes), m_memory(bytes + 2 * guard + alignment) {}

  char* fill() {
    std::fill(m_memory.begin(), m_memory.end(), guard_byte);
    constexpr std::uint32_t poison = 0x7fc0beef;
    for (int i = 0; i + static_cast<int>(sizeof poison) <= m_bytes; i += sizeof poison)
      std::memcpy(begin() + i, &poison, sizeof poison);
    return begin();
  }
  void check() {
    for (int i = 0; i < guard; ++i)
      if (begin()[m_bytes + i] != guard_byte || begin()[-1 - i] != guard_byte)
        fail("a kernel wrote beside its scratch memory of %d bytes", m_bytes);
  }

private:
  static constexpr int guard = 128, alignment = 128;
  static constexpr char guard_byte = 0x7f;
  char* begin() {
    const auto address = reinterpret_cast<std::uintptr_t>(m_memory.data()) + guard + alignment - 1;
    return m_memory.data() + (address / alignment * alignment - reinterpret_cast<std::uintptr_t>(m_memory.data()));
  }
  int m_bytes;
  std::vector<char> m_memory;
};

/// Appends a copy of a closure of Kokkos to the stream of its instance.
template <class Closure>
void launch(const Exec& exec, const Closure& closure) {
  Kokkos::Impl::shared_allocation_tracking_disable();
  const auto copy = std::make_shared<Closure>(closure);
  Kokkos::Impl::shared_allocation_tracking_enable();
  enqueue(exec.simt_stream(), [copy] {
    {
      const KernelScope scope;
      copy->run();
    }
    check_guards();
  });
}

/// The numbers from `begin` to `end` in a random order.
template <class Index>
std::vector<Index> shuffled(Index begin, Index end) {
  std::vector<Index> order(end > begin ? end - begin : 0);
  std::iota(order.begin(), order.end(), begin);
  std::shuffle(order.begin(), order.end(), random());
  return order;
}

/// The reductions within a vector and a team, as Kokkos 3.4 does them on CUDA: by halving, and without a barrier after
/// the last read.
template <class Reducer>
void reduce_vector(const Reducer& reducer, typename Reducer::value_type& value) {
  const Place& own = place();
  if (own.vector == 1) return;
  auto mine = value;
  for (int distance = own.vector / 2; distance > 0; distance /= 2) {
    auto other = shuffle_down(mine, distance);
    if (own.lane < distance) reducer.join(mine, other);
  }
  value = shuffle(mine, 0);
}
template <class Reducer>
void reduce_team(const Reducer& reducer, typename Reducer::value_type& value) {
  constexpr int places = 4;
  static typename Reducer::value_type results[places];  // shared by the team, of which one runs at a time
  const Place own = place();
  if (own.vector != warp_size) fail("a reduction over a team of vectors of %d threads", own.vector);
  if (own.thread < places) results[own.thread] = value;
  barrier();
  for (int shift = places; shift <= own.team; shift += places) {
    if (shift <= own.thread && own.thread < shift + places && own.lane == 0)
      reducer.join(results[own.thread % places], value);
    barrier();
  }
  value = results[0];
  for (int i = 1; i < own.team && i < places; ++i) reducer.join(value, results[i]);
}
template <Level level, class Index, class F, class Reducer>
void reduce(const Range<level, Index>& range, const F& f, const Reducer& reducer) {
  static_assert(level != Level::team_thread, "OneBit uses none");
  typename Reducer::value_type value;
  reducer.init(value);
  range.each([&](Index i) { f(i, value); });
  reduce_vector(reducer, value);
  if constexpr (level == Level::team_vector) reduce_team(reducer, value);
  reducer.reference() = value;
}

}  // namespace onebit::simt

namespace Kokkos {
namespace Impl {

template <class... Properties>
class TeamPolicyInternal<onebit::simt::Exec, Properties...> : public PolicyTraits<Properties...> {
public:
  using execution_policy = TeamPolicyInternal;
  using traits = PolicyTraits<Properties...>;
  using execution_space = onebit::simt::Exec;
  using member_type = onebit::simt::Member;
  template <class Other, class... OtherProperties>
  friend class TeamPolicyInternal;

  TeamPolicyInternal() = default;
  template <class... Other>
  TeamPolicyInternal(const TeamPolicyInternal<execution_space, Other...>& other)
      : m_space(other.m_space),
        m_league(other.m_league),
        m_team(other.m_team),
        m_vector(other.m_vector),
        m_scratch(other.m_scratch) {}
  TeamPolicyInternal(const execution_space& space, int league, int team, int vector = 1)
      : m_space(space), m_league(league), m_team(team), m_vector(vector) {
    if (team < 1 || vector < 1 || vector > onebit::simt::warp_size || (vector & (vector - 1)) != 0 ||
        team * vector > 1024)
      onebit::simt::fail("a team of %d x %d threads", team, vector);
  }
  TeamPolicyInternal(int league, int team, int vector = 1)
      : TeamPolicyInternal(execution_space(), league, team, vector) {}

  TeamPolicyInternal& set_scratch_size(int, const PerTeamValue& bytes) {
    m_scratch = bytes.value;
    return *this;
  }
  TeamPolicyInternal& set_chunk_size(int) { return *this; }
  const execution_space& space() const { return m_space; }
  int league_size() const { return m_league; }
  int team_size() const { return m_team; }
  int impl_vector_length() const { return m_vector; }
  bool impl_auto_team_size() const { return false; }
  bool impl_auto_vector_length() const { return false; }
  int scratch() const { return m_scratch; }

private:
  execution_space m_space;
  int m_league = 0, m_team = 1, m_vector = 1, m_scratch = 0;
};

template <class F, class... Properties>
class ParallelFor<F, TeamPolicy<Properties...>, onebit::simt::Exec> {
  using Policy = TeamPolicy<Properties...>;
  F m_f;
  Policy m_policy;

public:
  ParallelFor(const F& f, const Policy& policy) : m_f(f), m_policy(policy) {}
  void execute() const { onebit::simt::launch(m_policy.space(), *this); }
  void run() const {
    using Bounds = typename Policy::launch_bounds;
    const int team = m_policy.team_size(), vector = m_policy.impl_vector_length();
    if (Bounds::maxTperB > 0 && team * vector > static_cast<int>(Bounds::maxTperB))
      onebit::simt::fail("a team of %d threads, which is above its launch bounds", team * vector);
    // As in Kokkos 3.4: memory of team reductions lies before it, and both must fit into 48 KiB.
    const int begin = 8 * (team + 2), bytes = begin + m_policy.scratch();
    if (bytes > 48 * 1024) onebit::simt::fail("a team with %d bytes of shared memory", bytes);
    onebit::simt::Scratch scratch(bytes);
    for (const int league : onebit::simt::shuffled(0, m_policy.league_size())) {
      char* const memory = scratch.fill() + begin;
      onebit::simt::run_team(
          team, vector, [&] { m_f(onebit::simt::Member(memory, m_policy.scratch(), league, m_policy.league_size())); });
      scratch.check();
    }
  }
};

template <class F, class... Traits>
class ParallelFor<F, RangePolicy<Traits...>, onebit::simt::Exec> {
  using Policy = RangePolicy<Traits...>;
  F m_f;
  Policy m_policy;

public:
  ParallelFor(const F& f, const Policy& policy) : m_f(f), m_policy(policy) {}
  void execute() const { onebit::simt::launch(m_policy.space(), *this); }
  void run() const {
    for (const auto i : onebit::simt::shuffled(m_policy.begin(), m_policy.end())) {
      if constexpr (std::is_void_v<typename Policy::work_tag>)
        m_f(i);
      else
        m_f(typename Policy::work_tag(), i);
    }
  }
};

template <class F, class... Traits>
class ParallelFor<F, MDRangePolicy<Traits...>, onebit::simt::Exec> {
  using Policy = MDRangePolicy<Traits...>;
  F m_f;
  Policy m_policy;

public:
  ParallelFor(const F& f, const Policy& policy) : m_f(f), m_policy(policy) {}
  void execute() const { onebit::simt::launch(m_policy.space(), *this); }
  void run() const {
    static_assert(Policy::rank == 2, "fills and copies of matrices");
    for (const auto i : onebit::simt::shuffled(m_policy.m_lower[0], m_policy.m_upper[0]))
      for (const auto j : onebit::simt::shuffled(m_policy.m_lower[1], m_policy.m_upper[1])) m_f(i, j);
  }
};

/// A sum into a number of the host; Kokkos waits for it.
template <class F, class... Traits>
class ParallelReduce<F, RangePolicy<Traits...>, InvalidType, onebit::simt::Exec> {
  using Policy = RangePolicy<Traits...>;
  using Value = typename FunctorValueTraits<F, void>::value_type;
  F m_f;
  Policy m_policy;
  Value* m_result;

public:
  template <class Result>
  ParallelReduce(const F& f, const Policy& policy, const Result& result)
      : m_f(f), m_policy(policy), m_result(result.data()) {}
  void execute() const {
    onebit::simt::launch(m_policy.space(), *this);
    m_policy.space().fence();
  }
  void run() const {
    Value sum = Value();
    for (const auto i : onebit::simt::shuffled(m_policy.begin(), m_policy.end())) m_f(i, sum);
    *m_result = sum;
  }
};

}  // namespace Impl

template <class Index>
auto TeamThreadRange(const onebit::simt::Member&, Index count) {
  return onebit::simt::Range<onebit::simt::Level::team_thread, Index>{count};
}
template <class Index>
auto ThreadVectorRange(const onebit::simt::Member&, Index count) {
  return onebit::simt::Range<onebit::simt::Level::thread_vector, Index>{count};
}
template <class Index>
auto TeamVectorRange(const onebit::simt::Member&, Index count) {
  return onebit::simt::Range<onebit::simt::Level::team_vector, Index>{count};
}
template <onebit::simt::Level level, class Index, class F>
void parallel_for(const onebit::simt::Range<level, Index>& range, const F& f) {
  range.each(f);
  if constexpr (level == onebit::simt::Level::thread_vector) onebit::simt::warp_barrier();  // as Kokkos does
}
template <onebit::simt::Level level, class Index, class F, class Result>
void parallel_reduce(const onebit::simt::Range<level, Index>& range, const F& f, Result&& result) {
  using Value = std::decay_t<Result>;
  if constexpr (is_reducer<Value>::value)
    onebit::simt::reduce(range, f, result);
  else
    onebit::simt::reduce(range, f, Sum<Value>(result));
}

inline onebit::simt::OncePerThread PerThread(const onebit::simt::Member&) { return {}; }
inline onebit::simt::OncePerTeam PerTeam(const onebit::simt::Member&) { return {}; }
template <class F>
void single(const onebit::simt::OncePerThread&, const F& f) {
  if (onebit::simt::place().lane == 0) f();
  onebit::simt::warp_barrier();
}
template <class F>
void single(const onebit::simt::OncePerTeam&, const F& f) {
  if (onebit::simt::place().lane == 0 && onebit::simt::place().thread == 0) f();
}

}  // namespace Kokkos
