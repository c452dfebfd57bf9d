#pragma once
/// \file rows.hpp
/// The pattern of every kernel in nn: loops and reductions over the columns of one row of a row-major matrix, for many
/// rows at once. On the host a thread takes a row and the compiler vectorises its loops; on a device a warp takes it.
///
/// Results do not depend on the thread count, because one thread or warp works on a row, or on a block of rows whose
/// columns are summed, in a fixed order.

#include "base/kokkos.hpp"
#include "base/parallel.hpp"
#include "nn/dropout.hpp"

namespace onebit::nn {

/// A vector inside a flat buffer: no ownership, no reference count.
template <class Exec, class T>
using VectorRef = Kokkos::View<T*, Kokkos::LayoutRight, DeviceOf<Exec>, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// The lanes that work on one row. All of them call each function with the same arguments and return from it together,
/// so a loop may read what the loop before has written.
template <class Exec, bool = is_host<Exec>>
class RowTeam;

/// On the host: the calling thread.
template <class Exec>
class RowTeam<Exec, true> {
public:
  /// f(j) for the columns j in [0, columns), in any order.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(int columns, const F& f) const {
    ONEBIT_IVDEP
    for (int j = 0; j < columns; ++j) f(j);
  }

  /// f(j, factor) for the columns j, where dropout multiplies element (row, j) by `factor`.
  template <class Real, class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(int columns, const DropoutRow<Real>& dropout, const F& f) const {
    if (!dropout.active()) {
      ONEBIT_IVDEP
      for (int j = 0; j < columns; ++j) f(j, Real(1));
      return;
    }
    for (int begin = 0; begin < columns; begin += dropout_block) {
      Real factors[dropout_block];
      dropout.block_factors(begin / dropout_block, factors);
      const int length = columns - begin < dropout_block ? columns - begin : dropout_block;
      ONEBIT_IVDEP
      for (int i = 0; i < length; ++i) f(begin + i, factors[i]);
    }
  }

  /// Σ f(j) over the columns, in f's type: lane j % 32 adds its terms in order, then the lanes are added by halving.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION auto sum(int columns, const F& f) const {
    using Term = decltype(f(0));
    Term lanes[lane_count] = {};
    int j = 0;
    for (; j + lane_count <= columns; j += lane_count) {
      ONEBIT_IVDEP
      for (int lane = 0; lane < lane_count; ++lane) lanes[lane] += f(j + lane);
    }
    for (int lane = 0; j < columns; ++j, ++lane) lanes[lane] += f(j);
    for (int half = lane_count / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
  }

  /// max f(j) over the columns; columns > 0. A NaN may be ignored, because the sums that follow see it.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION auto max(int columns, const F& f) const {
    using Term = decltype(f(0));
    Term lanes[lane_count];
    for (int lane = 0; lane < lane_count; ++lane) lanes[lane] = f(0);
    int j = 0;
    for (; j + lane_count <= columns; j += lane_count) {
      ONEBIT_IVDEP
      for (int lane = 0; lane < lane_count; ++lane) {
        const Term term = f(j + lane);
        lanes[lane] = lanes[lane] < term ? term : lanes[lane];
      }
    }
    for (int lane = 0; j < columns; ++j, ++lane) {
      const Term term = f(j);
      lanes[lane] = lanes[lane] < term ? term : lanes[lane];
    }
    for (int half = lane_count / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; ++lane)
        lanes[lane] = lanes[lane] < lanes[lane + half] ? lanes[lane + half] : lanes[lane];
    return lanes[0];
  }

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void once(const F& f) const {
    f();
  }
};

/// On a device: one warp, whose lane l takes the columns l, l + 32, …
template <class Exec>
class RowTeam<Exec, false> {
public:
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FORCEINLINE_FUNCTION explicit RowTeam(const Member& member) : m_member(member) {}

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(int columns, const F& f) const {
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(m_member, columns), f);
  }

  template <class Real, class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(int columns, const DropoutRow<Real>& dropout, const F& f) const {
    if (!dropout.active()) {
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(m_member, columns), [&](int j) { f(j, Real(1)); });
      return;
    }
    // A lane takes the columns that one call of Philox decides on.
    const int blocks = (columns + dropout_block - 1) / dropout_block;
    Kokkos::parallel_for(Kokkos::ThreadVectorRange(m_member, blocks * dropout_calls), [&](int call) {
      Real factors[dropout_decisions];
      dropout.call_factors(call, factors);
      const int begin = call / dropout_calls * dropout_block + call % dropout_calls;
      for (int i = 0; i < dropout_decisions; ++i)
        if (begin + i * dropout_calls < columns) f(begin + i * dropout_calls, factors[i]);
    });
  }

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION auto sum(int columns, const F& f) const {
    using Term = decltype(f(0));
    Term total = 0;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(m_member, columns), [&](int j, Term& partial) { partial += f(j); }, total);
    return total;
  }

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION auto max(int columns, const F& f) const {
    using Term = decltype(f(0));
    Term largest = 0;
    Kokkos::parallel_reduce(
        Kokkos::ThreadVectorRange(m_member, columns),
        [&](int j, Term& partial) {
          const Term term = f(j);
          if (partial < term) partial = term;
        },
        Kokkos::Max<Term>(largest));
    return largest;
  }

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void once(const F& f) const {
    Kokkos::single(Kokkos::PerThread(m_member), f);
  }

private:
  const Member& m_member;
};

/// f(team, r) for each row r in [0, rows).
template <class Exec, class F>
void for_each_row(const Exec& exec, const char* label, int rows, const F& f) {
  if (rows == 0) return;
  if constexpr (is_host<Exec>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(exec, 0, rows), [=](int r) { f(RowTeam<Exec>(), r); });
  } else {
    using Policy = Kokkos::TeamPolicy<Exec>;
    constexpr int warps = 8;
    Kokkos::parallel_for(
        label, Policy(exec, (rows + warps - 1) / warps, warps, lane_count),
        KOKKOS_LAMBDA(const typename Policy::member_type& member) {
          const int r = member.league_rank() * warps + member.team_rank();
          if (r < rows) f(RowTeam<Exec>(member), r);
        });
  }
}

/// Rows over which one team sums columns: enough to make partial sums cheap on the host, few enough to fill a device.
template <class Exec>
inline constexpr int rows_per_block = is_host<Exec> ? 32 : 8;

template <class Exec>
constexpr int row_block_count(int rows) {
  return (rows + rows_per_block<Exec> - 1) / rows_per_block<Exec>;
}

}  // namespace onebit::nn
