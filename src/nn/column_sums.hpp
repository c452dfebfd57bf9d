#pragma once
/// \file column_sums.hpp
/// Sums of the columns of a matrix in a fixed order, in one pass with the loop that makes their terms. A first kernel
/// adds blocks of rows, a second one adds the blocks.

#include "nn/rows.hpp"

namespace onebit::nn {

/// Rows of a block. On the host enough to make partial sums cheap. On a device few if a team takes whole rows, because
/// teams are few then.
template <class Exec, bool whole_rows = true>
inline constexpr int rows_per_block = !rows_have_lanes<Exec> ? 32
                                      : whole_rows           ? 16
                                                             : 64;

/// Most blocks of a matrix.
template <class Exec, bool whole_rows = true>
KOKKOS_INLINE_FUNCTION constexpr int row_block_count(int rows) {
  return (rows + rows_per_block<Exec, whole_rows> - 1) / rows_per_block<Exec, whole_rows>;
}

/// The terms of `sum_columns`: a struct that derives from this one and has
///   static constexpr int sums           the number of sums of a column
///   load(r, j)                          reads all that element (r, j) needs
///   (r, j, loaded, row, factor, add)    computes and stores; calls add(k, term) once for each sum k
/// and replaces what follows where it needs to know the whole row or drops elements.
template <class Exec, class RealType>
struct ColumnTerms {
  using Real = RealType;
  static constexpr bool whole_rows = false;
  struct Row {};
  KOKKOS_FORCEINLINE_FUNCTION Row row(const RowTeam<Exec>&, int) const { return {}; }
  KOKKOS_FORCEINLINE_FUNCTION DropoutRow<Real> dropout(int) const { return {0, 0, 0, 0, Real(1)}; }
};

/// Sums of blocks of rows on the host: a thread takes a block, row after row.
template <class Exec, class Terms, bool = rows_have_lanes<Exec>>
struct BlockSums {
  using Real = typename Terms::Real;
  Terms terms;
  int groups, rows, columns;
  Real* partial;  ///< (sums, groups, blocks, columns)

  KOKKOS_FUNCTION void operator()(int block) const {
    const int blocks = row_block_count<Exec>(rows), group = block / blocks;
    const int begin = group * rows + block % blocks * rows_per_block<Exec>, last = (group + 1) * rows;
    const int end = begin + rows_per_block<Exec> < last ? begin + rows_per_block<Exec> : last;
    const ThreadRow team;
    const std::size_t stride = static_cast<std::size_t>(groups) * blocks * columns;
    Real* const sums = partial + static_cast<std::size_t>(block) * columns;
    for (int k = 0; k < Terms::sums; ++k) team.for_each(columns, [&](int j) { sums[k * stride + j] = 0; });
    for (int r = begin; r < end; ++r) {
      const auto row = terms.row(team, r);
      team.for_each(columns, terms.dropout(r), [&](int j, Real factor) {
        terms(r, j, terms.load(r, j), row, factor, [&](int k, Real term) { sums[k * stride + j] += term; });
      });
    }
  }

  void run(const Exec& exec, const char* label) const {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(exec, 0, groups * row_block_count<Exec>(rows)), *this);
  }
};

/// On a device: a strip is the 256 columns of a warp. A team of 8 warps takes one strip of 64 rows, or all strips of 16
/// rows if it needs to know whole rows. Its warps divide strips and rows among them, so some rows' loads are in flight
/// at once. A lane keeps the sums of its 8 columns in registers, and the warps of a strip add theirs in scratch memory.
template <class Exec, class Terms>
struct BlockSums<Exec, Terms, true> {
  using Real = typename Terms::Real;
  using Row = typename Terms::Row;
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  static constexpr int strip = lane_count * LaneColumns::count, sums = Terms::sums;
  static constexpr int block_rows = rows_per_block<Exec, Terms::whole_rows>;
  static constexpr int most_subsets = 32 / sizeof(Real);  ///< 24 KiB of scratch memory for three sums

  Terms terms;
  int groups, rows, columns;
  Real* partial;  ///< (sums, groups, blocks, columns)
  int blocks = row_block_count<Exec, Terms::whole_rows>(rows), strips = (columns + strip - 1) / strip;
  int strips_of_team = Terms::whole_rows ? strips : 1;
  /// Into which the warps divide the rows of each strip.
  int subsets = strips_of_team < most_subsets ? most_subsets / strips_of_team : 1;

  KOKKOS_FUNCTION int scratch_reals() const { return subsets > 1 ? sums * subsets * strips_of_team * strip : 0; }

  void run(const Exec& exec, const char* label) const {
    const int bytes = static_cast<int>(block_rows * sizeof(Row) + scratch_reals() * sizeof(Real));
    Kokkos::parallel_for(
        label, teams(exec, groups * blocks * (strips / strips_of_team)).set_scratch_size(0, Kokkos::PerTeam(bytes)),
        *this);
  }

  KOKKOS_FUNCTION void operator()(const Member& member) const {
    const int teams_of_block = strips / strips_of_team, block = member.league_rank() / teams_of_block;
    const int first_column = member.league_rank() % teams_of_block * strips_of_team * strip, group = block / blocks;
    const int first_row = group * rows + block % blocks * block_rows, last = (group + 1) * rows;
    const int end = first_row + block_rows < last ? first_row + block_rows : last;
    Row* const known = reinterpret_cast<Row*>(member.team_scratch(0).get_shmem(block_rows * sizeof(Row)));
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member, end - first_row), [&](int i) {
      const Row row = terms.row(RowTeam<Exec>(member), first_row + i);
      Kokkos::single(Kokkos::PerThread(member), [&] { known[i] = row; });
    });
    member.team_barrier();

    const int width = strips_of_team * strip;
    const std::size_t stride = static_cast<std::size_t>(groups) * blocks * columns;
    Real* const result = partial + static_cast<std::size_t>(block) * columns + first_column;
    Real* const shared = subsets > 1
                             ? reinterpret_cast<Real*>(member.team_scratch(0).get_shmem(scratch_reals() * sizeof(Real)))
                             : nullptr;
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member, strips_of_team * subsets), [&](int task) {
      const int subset = task / strips_of_team, first = task % strips_of_team * strip;
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, lane_count), [&](int lane) {
        const LaneColumns mine{(first_column + first) / LaneColumns::count + lane};
        Real sum[sums][LaneColumns::count] = {};
        for (int r = first_row + subset; r < end; r += subsets) add_row(mine, r, known[r - first_row], sum);
        for (int k = 0; k < sums; ++k)
          for (int i = 0; i < LaneColumns::count; ++i) {
            if (shared)
              shared[(k * subsets + subset) * width + mine[i] - first_column] = sum[k][i];
            else if (mine[i] < columns)
              result[k * stride + mine[i] - first_column] = sum[k][i];
          }
      });
    });
    if (!shared) return;
    member.team_barrier();
    const int length = columns - first_column < width ? columns - first_column : width;
    Kokkos::parallel_for(Kokkos::TeamVectorRange(member, length), [&](int j) {
      for (int k = 0; k < sums; ++k) {
        Real sum = 0;
        for (int subset = 0; subset < subsets; ++subset) sum += shared[(k * subsets + subset) * width + j];
        result[k * stride + j] = sum;
      }
    });
  }

private:
  KOKKOS_FORCEINLINE_FUNCTION void add_row(const LaneColumns& mine, int r, const Row& row,
                                           Real (&sum)[sums][LaneColumns::count]) const {
    Real factors[LaneColumns::count];
    terms.dropout(r).call_factors(mine.batch, factors);
    mine.for_each(
        columns, [&](int j) { return terms.load(r, j); },
        [&](int i, int j, const auto& loaded) {
          terms(r, j, loaded, row, factors[i], [&](int k, Real term) { sum[k][i] += term; });
        });
  }
};

/// total(group, j) of each sum += scale · Σ partial(group, ·, j) over the blocks. On the host a thread takes 32 columns
/// of a group's sum. On a device a team of 8 warps takes them, and every eighth block goes to a warp.
template <class Exec, class Real, int sums>
struct SumsOfBlocks {
  static constexpr int subsets = 8;  ///< of the blocks, one for each warp

  int groups, blocks, columns;
  const Real* partial;  ///< (sums, groups, blocks, columns)
  Kokkos::Array<Real*, sums> totals;
  Real scale;

  /// What a thread or a team takes: columns [begin, begin + length) of a sum of a group.
  struct Part {
    int k, group, begin, length;
  };
  KOKKOS_FUNCTION int parts_of_sum() const { return (columns + lane_count - 1) / lane_count; }
  KOKKOS_FUNCTION int parts() const { return sums * groups * parts_of_sum(); }
  KOKKOS_FUNCTION Part part(int number) const {
    const int of_group = number / parts_of_sum(), begin = number % parts_of_sum() * lane_count;
    return {of_group / groups, of_group % groups, begin, columns - begin < lane_count ? columns - begin : lane_count};
  }

  /// Σ of a part's column over the blocks first, first + step, …
  KOKKOS_FORCEINLINE_FUNCTION Real sum(const Part& of, int lane, int first, int step) const {
    const Real* const values =
        partial + (static_cast<std::size_t>(of.k) * groups + of.group) * blocks * columns + of.begin + lane;
    Real sum = 0;
    for (int block = first; block < blocks; block += step) sum += values[static_cast<std::size_t>(block) * columns];
    return sum;
  }
  KOKKOS_FORCEINLINE_FUNCTION Real& total(const Part& of, int lane) const {
    return totals[of.k][static_cast<std::size_t>(of.group) * columns + of.begin + lane];
  }

  /// A part, by a team of a device.
  KOKKOS_FUNCTION void operator()(const typename Kokkos::TeamPolicy<Exec>::member_type& member) const {
    const Part mine = part(member.league_rank());
    Real* const shared = reinterpret_cast<Real*>(member.team_scratch(0).get_shmem(subsets * lane_count * sizeof(Real)));
    Kokkos::parallel_for(Kokkos::TeamThreadRange(member, subsets), [&](int subset) {
      Kokkos::parallel_for(Kokkos::ThreadVectorRange(member, mine.length),
                           [&](int lane) { shared[subset * lane_count + lane] = sum(mine, lane, subset, subsets); });
    });
    member.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamVectorRange(member, mine.length), [&](int lane) {
      Real sum = 0;
      for (int subset = 0; subset < subsets; ++subset) sum += shared[subset * lane_count + lane];
      total(mine, lane) += scale * sum;
    });
  }

  void run(const Exec& exec, const char* label) const {
    if constexpr (rows_have_lanes<Exec>) {
      Kokkos::parallel_for(
          label, teams(exec, parts()).set_scratch_size(0, Kokkos::PerTeam(subsets * lane_count * sizeof(Real))), *this);
    } else {
      const SumsOfBlocks self = *this;
      Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(exec, 0, parts()), [=](int number) {
        const Part mine = self.part(number);
        ONEBIT_IVDEP
        for (int lane = 0; lane < mine.length; ++lane)
          self.total(mine, lane) += self.scale * self.sum(mine, lane, 0, 1);
      });
    }
  }
};

/// totals[k](group, j) += scale · the sum over a group's rows of the terms that `terms` makes for sum k of column j.
/// Group g has the rows [g · rows, (g + 1) · rows).
/// \param scratch sums * groups * row_block_count(rows) * columns elements
template <class Exec, class Terms, class Real = typename Terms::Real>
void sum_columns(const Exec& exec, const char* label, int rows, int columns, const Terms& terms,
                 VectorRef<Exec, Real> scratch, const Kokkos::Array<Real*, Terms::sums>& totals, Real scale = 1,
                 int groups = 1) {
  BlockSums<Exec, Terms>{terms, groups, rows, columns, scratch.data()}.run(exec, label);
  SumsOfBlocks<Exec, Real, Terms::sums>{
      groups, row_block_count<Exec, Terms::whole_rows>(rows), columns, scratch.data(), totals, scale}
      .run(exec, "OneBit::nn::sums_of_blocks");
}

/// The terms of one sum: term(r, j, load(r, j)).
template <class Exec, class Real, class Load, class Term>
struct OneSum : ColumnTerms<Exec, Real> {
  static constexpr int sums = 1;
  Load load;
  Term term;

  OneSum(const Load& load_, const Term& term_) : load(load_), term(term_) {}
  template <class Loaded, class Row, class Add>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(int r, int j, const Loaded& loaded, const Row&, Real,
                                              const Add& add) const {
    add(0, term(r, j, loaded));
  }
};

/// total(j) += scale · Σ term(r, j, load(r, j)) over the rows r. \param term may store, too
/// \param scratch row_block_count(rows) * columns elements
template <class Exec, class Real, class Load, class Term>
void sum_columns(const Exec& exec, const char* label, int rows, int columns, const Load& load, const Term& term,
                 VectorRef<Exec, Real> scratch, VectorRef<Exec, Real> total, Real scale = 1) {
  sum_columns(exec, label, rows, columns, OneSum<Exec, Real, Load, Term>(load, term), scratch, {{total.data()}}, scale);
}

}  // namespace onebit::nn
