#pragma once
/// \file rows.hpp
/// The pattern of every kernel in nn: loops and reductions over the columns of one row of a row-major matrix, for many
/// rows at once. On the host a thread takes a row and the compiler vectorises its loops. On a device a warp takes a
/// row, or a team of warps where rows are few and long.
///
/// Results do not depend on the thread count, because a row has one thread, warp or team, which adds in a fixed order.
///
/// A device needs about 30 KB in flight on each multiprocessor to read at full speed. A loop that loads and stores in
/// turn has one load a lane in flight, because a store may change what the next load reads. So loops take two
/// functions: `load(j)` reads all that column j needs, and `f(j, loaded)` computes and stores. A device lane loads 8
/// columns before it stores the first one.

#include "base/device/parallel.hpp"
#include "base/kokkos.hpp"
#include "nn/dropout.hpp"

namespace onebit::nn {

/// A vector inside a flat buffer: no ownership, no reference count.
template <class Exec, class T>
using VectorRef = Kokkos::View<T*, Kokkos::LayoutRight, DeviceOf<Exec>, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// What a `load` function reads of several arrays.
template <class Real, int count>
using Values = Kokkos::Array<Real, count>;

/// Whether lanes share a row, as on a device.
template <class Exec>
inline constexpr bool rows_have_lanes = !is_host<Exec>;
/// Warps of a team. A thread of the host does the work of all.
template <class Exec>
inline constexpr int warps_of_team = is_host<Exec> ? 1 : 8;

/// The teams of every kernel that has lanes.
template <class Exec>
Kokkos::TeamPolicy<Exec> teams(const Exec& exec, int count) {
  return {exec, count, warps_of_team<Exec>, is_host<Exec> ? 1 : lane_count};
}

/// The columns that a lane works on at a time: those that one call of Philox decides on. The loads of 16 neighbouring
/// lanes cover 64 or 128 consecutive bytes. Loads of 16 bytes would not have these columns.
struct LaneColumns {
  static constexpr int count = dropout_decisions;
  int batch;  ///< number of the call of Philox

  /// Batches of a row.
  KOKKOS_FORCEINLINE_FUNCTION static int batches(int columns) {
    return (columns + dropout_block - 1) / dropout_block * dropout_calls;
  }
  KOKKOS_FORCEINLINE_FUNCTION int operator[](int i) const {
    return batch / dropout_calls * dropout_block + batch % dropout_calls + i * dropout_calls;
  }
  /// f(i, column i, load(column i)) for all columns, after all loads.
  template <class Load, class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(int columns, const Load& load, const F& f) const {
    decltype(load(0)) loaded[count];
    for (int i = 0; i < count; ++i)
      if ((*this)[i] < columns) loaded[i] = load((*this)[i]);
    for (int i = 0; i < count; ++i)
      if ((*this)[i] < columns) f(i, (*this)[i], loaded[i]);
  }
};

// The threads that work on one row are a ThreadRow or a LaneRow. All of them call each function with the same arguments
// and return from it together, so a loop may read what the loop before has written.

/// On the host: the calling thread.
class ThreadRow {
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

  /// f(j, load(j)) for the columns j.
  template <class Load, class F, class = decltype(std::declval<const Load&>()(0))>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(int columns, const Load& load, const F& f) const {
    for_each(columns, [&](int j) { f(j, load(j)); });
  }

  /// f(j, load(j), factor) for the columns j.
  template <class Real, class Load, class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(int columns, const DropoutRow<Real>& dropout, const Load& load,
                                            const F& f) const {
    for_each(columns, dropout, [&](int j, Real factor) { f(j, load(j), factor); });
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

  /// Σ f(j, load(j)) over the columns.
  template <class Load, class F>
  KOKKOS_FORCEINLINE_FUNCTION auto sum(int columns, const Load& load, const F& f) const {
    return sum(columns, [&](int j) { return f(j, load(j)); });
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

/// On a device: one warp, whose lane l takes the columns l, l + 32, …; or all warps of a team if `wide`. Functions with
/// `load` give the lanes the columns of LaneColumns.
template <class Exec, bool wide>
class LaneRow {
public:
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  KOKKOS_FORCEINLINE_FUNCTION explicit LaneRow(const Member& member) : m_member(member) {}

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(int columns, const F& f) const {
    Kokkos::parallel_for(range(columns), f);
    meet();
  }

  template <class Load, class F, class = decltype(std::declval<const Load&>()(0))>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(int columns, const Load& load, const F& f) const {
    Kokkos::parallel_for(range(LaneColumns::batches(columns)), [&](int batch) {
      LaneColumns{batch}.for_each(columns, load, [&](int, int j, const auto& loaded) { f(j, loaded); });
    });
    meet();
  }

  template <class Real, class Load, class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each(int columns, const DropoutRow<Real>& dropout, const Load& load,
                                            const F& f) const {
    Kokkos::parallel_for(range(LaneColumns::batches(columns)), [&](int batch) {
      Real factors[dropout_decisions];
      dropout.call_factors(batch, factors);
      LaneColumns{batch}.for_each(columns, load, [&](int i, int j, const auto& loaded) { f(j, loaded, factors[i]); });
    });
    meet();
  }

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION auto sum(int columns, const F& f) const {
    using Term = decltype(f(0));
    Term total = 0;
    Kokkos::parallel_reduce(
        range(columns), [&](int j, Term& partial) { partial += f(j); }, total);
    return total;
  }

  template <class Load, class F>
  KOKKOS_FORCEINLINE_FUNCTION auto sum(int columns, const Load& load, const F& f) const {
    using Term = decltype(f(0, load(0)));
    Term total = 0;
    Kokkos::parallel_reduce(
        range(LaneColumns::batches(columns)),
        [&](int batch, Term& partial) {
          LaneColumns{batch}.for_each(columns, load, [&](int, int j, const auto& loaded) { partial += f(j, loaded); });
        },
        total);
    return total;
  }

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION auto max(int columns, const F& f) const {
    using Term = decltype(f(0));
    Term largest = 0;
    Kokkos::parallel_reduce(
        range(columns),
        [&](int j, Term& partial) {
          const Term term = f(j);
          if (partial < term) partial = term;
        },
        Kokkos::Max<Term>(largest));
    return largest;
  }

  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void once(const F& f) const {
    if constexpr (wide)
      Kokkos::single(Kokkos::PerTeam(m_member), f);
    else
      Kokkos::single(Kokkos::PerThread(m_member), f);
  }

private:
  KOKKOS_FORCEINLINE_FUNCTION auto range(int count) const {
    if constexpr (wide)
      return Kokkos::TeamVectorRange(m_member, count);
    else
      return Kokkos::ThreadVectorRange(m_member, count);
  }
  KOKKOS_FORCEINLINE_FUNCTION void meet() const {
    if constexpr (wide) m_member.team_barrier();
  }

  const Member& m_member;
};

/// The threads that work on one row.
template <class Exec>
using RowTeam = std::conditional_t<rows_have_lanes<Exec>, LaneRow<Exec, false>, ThreadRow>;
/// The same for rows that are few and long.
template <class Exec>
using WideRowTeam = std::conditional_t<rows_have_lanes<Exec>, LaneRow<Exec, true>, ThreadRow>;

/// f(team, r) for each row r in [0, rows). On a device: ⌈rows / 8⌉ teams of 8 warps.
template <class Exec, class F>
void for_each_row(const Exec& exec, const char* label, int rows, const F& f) {
  if (rows == 0) return;
  if constexpr (rows_have_lanes<Exec>) {
    constexpr int warps = warps_of_team<Exec>;
    Kokkos::parallel_for(
        label, teams(exec, (rows + warps - 1) / warps),
        KOKKOS_LAMBDA(const typename Kokkos::TeamPolicy<Exec>::member_type& member) {
          const int r = member.league_rank() * warps + member.team_rank();
          if (r < rows) f(RowTeam<Exec>(member), r);
        });
  } else {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(exec, 0, rows), [=](int r) { f(ThreadRow(), r); });
  }
}

/// f(team, r) for each row r, with a WideRowTeam. On a device: `rows` teams of 8 warps.
template <class Exec, class F>
void for_each_wide_row(const Exec& exec, const char* label, int rows, const F& f) {
  if (rows == 0) return;
  if constexpr (rows_have_lanes<Exec>)
    Kokkos::parallel_for(
        label, teams(exec, rows), KOKKOS_LAMBDA(const typename Kokkos::TeamPolicy<Exec>::member_type& member) {
          f(WideRowTeam<Exec>(member), member.league_rank());
        });
  else
    for_each_row(exec, label, rows, f);
}

/// f(team, r, begin, length) for each row r and all its columns, or for 32 columns a warp on a device: for loops over
/// many rows of a matrix in each column of few rows.
template <class Exec, class F>
void for_each_row_part(const Exec& exec, const char* label, int rows, int columns, const F& f) {
  const int width = rows_have_lanes<Exec> ? lane_count : columns, parts = (columns + width - 1) / width;
  for_each_row(
      exec, label, rows * parts, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int part) {
        const int begin = part % parts * width;
        f(team, part / parts, begin, columns - begin < width ? columns - begin : width);
      });
}

}  // namespace onebit::nn
