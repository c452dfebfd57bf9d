#pragma once
/// \file column_reduction.hpp
/// Reductions of the columns of a row-major matrix to a few numbers each, where numbers join in any way. Blocks of rows
/// come first, then the blocks of a column in their order. So a result does not depend on the thread count.

#include "nn/rows.hpp"

namespace onebit::nn {

/// Rows of a block.
inline constexpr int reduction_rows = 256;
/// Columns that a thread of the host takes at a time.
inline constexpr int reduction_columns = 64;

/// Numbers that `reduce_columns` needs as scratch for each number of a column.
KOKKOS_INLINE_FUNCTION int reduction_blocks(int rows) { return (rows + reduction_rows - 1) / reduction_rows; }

/// A device's thread reduces a block of rows of one column, a thread of the host a block of many columns.
/// \tparam Terms has
///   Value                        the type of the numbers
///   count                        how many numbers a column has
///   init(v)                      v ← no element
///   add(v, i, j)                 v ← v with element (i, j)
///   join(v, other)               v ← v with the elements of `other`
///   finish(v, j)                 stores the result of column j
template <class Exec, class Terms>
struct ColumnReduction {
  using Value = typename Terms::Value;
  static constexpr int count = Terms::count;
  Terms terms;
  int rows, columns;
  Value* partial;  ///< (count, blocks, columns)

  struct OfBlocks {};
  struct OfColumns {};

  KOKKOS_FORCEINLINE_FUNCTION static int least(int a, int b) { return a < b ? a : b; }

  KOKKOS_FORCEINLINE_FUNCTION void store(const Value (&v)[count], int block, int j) const {
    const std::size_t stride = static_cast<std::size_t>(reduction_blocks(rows)) * columns;
    for (int k = 0; k < count; ++k) partial[k * stride + static_cast<std::size_t>(block) * columns + j] = v[k];
  }

  KOKKOS_FUNCTION void operator()(OfBlocks, int index) const {
    if constexpr (rows_have_lanes<Exec>) {
      const int block = index / columns, j = index % columns;
      Value v[count];
      terms.init(v);
      const int end = least(rows, (block + 1) * reduction_rows);
      for (int i = block * reduction_rows; i < end; ++i) terms.add(v, i, j);
      store(v, block, j);
    } else {
      const int strips = (columns + reduction_columns - 1) / reduction_columns;
      const int block = index / strips, begin = index % strips * reduction_columns;
      const int length = least(reduction_columns, columns - begin), end = least(rows, (block + 1) * reduction_rows);
      Value lanes[count][reduction_columns];
      for (int lane = 0; lane < reduction_columns; ++lane) {
        Value v[count];
        terms.init(v);
        for (int k = 0; k < count; ++k) lanes[k][lane] = v[k];
      }
      for (int i = block * reduction_rows; i < end; ++i) {
        ONEBIT_IVDEP
        for (int lane = 0; lane < length; ++lane) {
          Value v[count];
          for (int k = 0; k < count; ++k) v[k] = lanes[k][lane];
          terms.add(v, i, begin + lane);
          for (int k = 0; k < count; ++k) lanes[k][lane] = v[k];
        }
      }
      for (int lane = 0; lane < length; ++lane) {
        Value v[count];
        for (int k = 0; k < count; ++k) v[k] = lanes[k][lane];
        store(v, block, begin + lane);
      }
    }
  }

  KOKKOS_FUNCTION void operator()(OfColumns, int j) const {
    const std::size_t stride = static_cast<std::size_t>(reduction_blocks(rows)) * columns;
    Value total[count];
    terms.init(total);
    for (int block = 0; block < reduction_blocks(rows); ++block) {
      Value v[count];
      for (int k = 0; k < count; ++k) v[k] = partial[k * stride + static_cast<std::size_t>(block) * columns + j];
      terms.join(total, v);
    }
    terms.finish(total, j);
  }
};

/// \param partial (count, reduction_blocks(rows), columns) numbers of scratch
template <class Exec, class Terms>
void reduce_columns(const Exec& exec, const char* label, int rows, int columns, const Terms& terms,
                    const Vector<Exec, typename Terms::Value>& partial) {
  if (columns == 0) return;
  using Reduction = ColumnReduction<Exec, Terms>;
  const Reduction reduction{terms, rows, columns, partial.data()};
  const int width = rows_have_lanes<Exec> ? 1 : reduction_columns;
  const int parts = reduction_blocks(rows) * ((columns + width - 1) / width);
  Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, typename Reduction::OfBlocks>(exec, 0, parts), reduction);
  Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, typename Reduction::OfColumns>(exec, 0, columns), reduction);
}

}  // namespace onebit::nn
