#pragma once
/// \file parallel.hpp
/// Two patterns over flat buffers: `for_each` applies a function, and `reduce_blocks` adds in a fixed tree or finds
/// maxima. Their results depend on the length alone, not on the number of threads or the schedule.
///
/// What two source files instantiate alike holds structs instead of KOKKOS_LAMBDA here and in other headers: nvcc keeps
/// a pointer to such a lambda's body in each file, and the linker may take the function of one file and leave the
/// pointer that it calls unset (tests/cuda/without_gpu.py finds such lambdas).

#include <cstddef>
#include <type_traits>

#include "base/kokkos.hpp"

/// Asserts that the iterations of the following loop are independent.
#ifdef __clang__
#define ONEBIT_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define ONEBIT_IVDEP _Pragma("GCC ivdep")
#endif

namespace onebit {

/// Elements of a block: the work of a thread in `for_each` on the host, and a leaf of the tree of `OrderedSum`.
inline constexpr std::size_t block_length = 1024;
/// Partial sums of a block, the lanes: element i of a block is added to lane i % lane_count.
inline constexpr int lane_count = 32;

/// Number of blocks; the last one may be shorter.
KOKKOS_INLINE_FUNCTION constexpr std::size_t block_count(std::size_t length) {
  return (length + block_length - 1) / block_length;
}

/// Calls f(i) for i = first, first + stride, …: the elements of a thread of a device.
template <class F>
struct WithStride {
  F f;
  std::size_t length, stride;

  KOKKOS_FUNCTION void operator()(std::size_t first) const {
    for (std::size_t i = first; i < length; i += stride) f(i);
  }
};

/// Calls f(i) for i in [0, length).
///
/// On a device a thread takes several elements of a long vector: to start the small blocks that Kokkos chooses takes
/// longer than one element of each thread. On the host a thread takes whole blocks, because the vectorised loop and its
/// scalar remainder may round differently: with any number of threads, the remainder is at the same elements.
template <class Exec, class F>
void for_each(const Exec& exec, const char* label, std::size_t length, const F& f) {
  if (length == 0) return;
  if constexpr (is_host<Exec>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, block_count(length)),
                         [=](std::size_t block) {
                           const std::size_t begin = block * block_length;
                           const std::size_t end = begin + block_length < length ? begin + block_length : length;
                           ONEBIT_IVDEP
                           for (std::size_t i = begin; i < end; ++i) f(i);
                         });
  } else {
    const std::size_t most = 4 * static_cast<std::size_t>(concurrency(exec)), threads = length < most ? length : most;
    Kokkos::parallel_for(label, light(Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, threads)),
                         WithStride<F>{f, length, threads});
  }
}

/// Reduction to the sum; 0 without terms.
struct Sum {
  template <class T>
  using Reducer = Kokkos::Sum<T>;
  template <class T>
  KOKKOS_FUNCTION static T identity() {
    return 0;
  }
  template <class T>
  KOKKOS_FUNCTION static void join(T& result, T term) {
    result += term;
  }
};

/// Reduction to the maximum; the lowest finite number of the type without terms. Ignores NaN.
struct Maximum {
  template <class T>
  using Reducer = Kokkos::Max<T>;
  template <class T>
  KOKKOS_FUNCTION static T identity() {
    return lowest_number<T>;
  }
  template <class T>
  KOKKOS_FUNCTION static void join(T& result, T term) {
    result = result < term ? term : result;
  }
};

/// Calls f(block, i), or f(i) if f takes one argument.
template <class F>
KOKKOS_FORCEINLINE_FUNCTION auto call(const F& f, std::size_t block, std::size_t i) {
  if constexpr (std::is_invocable_v<F, std::size_t, std::size_t>) {
    return f(block, i);
  } else {
    (void)block;
    return f(i);
  }
}

/// The blocks of `reduce_blocks` on a device: a warp takes a block, and its threads are the lanes.
template <class Join, class Exec, class Begins, class F>
struct ReduceBlocks {
  using Member = typename Kokkos::TeamPolicy<Exec>::member_type;
  static constexpr int warps = 8;
  static constexpr int terms_in_flight = 8;  ///< read before the first is joined: one at a time would wait for memory

  int blocks;
  Begins begins;
  Vector<Exec, double> results;
  F f;

  KOKKOS_FUNCTION void operator()(const Member& team) const {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, warps), [&](int warp) {
      const int block = team.league_rank() * warps + warp;
      if (block >= blocks) return;
      const std::size_t begin = begins(block), end = begins(block + 1);
      double total = 0;
      // The shuffle tree of a reduction over 32 threads joins by halving, too.
      Kokkos::parallel_reduce(
          Kokkos::ThreadVectorRange(team, lane_count),
          [&](int lane, double& result) {
            using Term = decltype(call(f, std::size_t{0}, std::size_t{0}));
            Term mine = Join::template identity<Term>();
            std::size_t i = begin + lane;
            for (; i + (terms_in_flight - 1) * lane_count < end; i += terms_in_flight * lane_count) {
              Term terms[terms_in_flight];
              ONEBIT_UNROLL
              for (int k = 0; k < terms_in_flight; ++k) terms[k] = call(f, block, i + k * lane_count);
              ONEBIT_UNROLL
              for (int k = 0; k < terms_in_flight; ++k) Join::join(mine, terms[k]);
            }
            for (; i < end; i += lane_count) Join::join(mine, call(f, block, i));
            Join::join(result, static_cast<double>(mine));
          },
          typename Join::template Reducer<double>(total));
      Kokkos::single(Kokkos::PerThread(team), [&]() { results(block) = total; });
    });
  }
};

/// results(b) = Σ f(i), or max f(i), over i in [begins(b), begins(b+1)) for each block b. Lane i % 32 (counted from the
/// begin of the block) joins its terms one after the other in the type of f. Then the lanes are joined in double by
/// halving (16, 8, 4, 2, 1). f is called once for each i, as f(b, i) or f(i), and may write element i of any View.
///
/// \tparam Join   `Sum` or `Maximum`
/// \param begins  (blocks + 1) first elements; for a sum of floats at most `block_length` apart, for its precision
/// \param results (blocks)
template <class Join, class Exec, class Begins, class F>
void reduce_blocks(const Exec& exec, const char* label, const Begins& begins, const Vector<Exec, double>& results,
                   const F& f) {
  const int blocks = static_cast<int>(results.extent(0));
  if (blocks == 0) return;
  if constexpr (is_host<Exec>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec>(exec, 0, blocks), [=](int block) {
      using Term = decltype(call(f, std::size_t{0}, std::size_t{0}));
      const std::size_t begin = begins(block), end = begins(block + 1);
      Term lanes[lane_count];
      for (int lane = 0; lane < lane_count; ++lane) lanes[lane] = Join::template identity<Term>();
      std::size_t i = begin;
      for (; i + lane_count <= end; i += lane_count) {
        ONEBIT_IVDEP
        for (int lane = 0; lane < lane_count; ++lane) Join::join(lanes[lane], call(f, block, i + lane));
      }
      for (int lane = 0; i < end; ++i, ++lane) Join::join(lanes[lane], call(f, block, i));
      double tree[lane_count];
      for (int lane = 0; lane < lane_count; ++lane) tree[lane] = lanes[lane];
      for (int half = lane_count / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) Join::join(tree[lane], tree[lane + half]);
      results(block) = tree[0];
    });
  } else {
    using Policy = Kokkos::TeamPolicy<Exec>;
    using Kernel = ReduceBlocks<Join, Exec, Begins, F>;
    constexpr int warps = Kernel::warps;
    Kokkos::parallel_for(label, light(Policy(exec, (blocks + warps - 1) / warps, warps, lane_count)),
                         Kernel{blocks, begins, results, f});
  }
}

/// Joins the results of blocks, which is the rest of the tree: a segment of more than 1024 results is cut into blocks
/// of 1024 of them, and their results are joined as one block. Owns the scratch space, so it is made once for all
/// steps.
template <class Exec>
class BlockTree {
public:
  /// \param segments most segments of a call \param longest most results of a segment
  BlockTree(std::size_t segments, std::size_t longest)
      : m_nodes_of_segment(block_count(longest)),
        m_nodes("OneBit::base::BlockTree::nodes", m_nodes_of_segment > 1 ? segments * m_nodes_of_segment : 0) {}

  /// results(s) ← Σ or max of blocks(k) for k in [begins(s), begins(s+1)).
  template <class Join, class Begins>
  void join(const Exec& exec, const char* label, const Begins& begins, const Vector<Exec, double>& blocks,
            const Vector<Exec, double>& results) const {
    if (m_nodes_of_segment <= 1) return join_blocks<Join>(exec, label, begins, blocks, results);
    const std::size_t segments = results.extent(0), of_segment = m_nodes_of_segment;
    const Vector<Exec, double> nodes = Kokkos::subview(m_nodes, std::make_pair(std::size_t{0}, segments * of_segment));
    join_blocks<Join>(exec, label, NodeBegins<Begins>{begins, of_segment}, blocks, nodes);
    join_blocks<Join>(exec, label, SegmentBegins{of_segment}, nodes, results);
  }

  // What kernels work with; nvcc wants it to be public.

  /// First block of a node. All segments have as many nodes as the longest. Those without blocks change no result.
  template <class Begins>
  struct NodeBegins {
    Begins begins;
    std::size_t of_segment;

    KOKKOS_FUNCTION std::size_t operator()(std::size_t node) const {
      const std::size_t segment = node / of_segment, inside = node % of_segment * block_length;
      if (inside == 0) return begins(segment);
      const std::size_t begin = begins(segment) + inside, end = begins(segment + 1);
      return begin < end ? begin : end;
    }
  };
  /// First node of a segment.
  struct SegmentBegins {
    std::size_t of_segment;
    KOKKOS_FUNCTION std::size_t operator()(std::size_t segment) const { return segment * of_segment; }
  };
  /// The result of a block.
  struct Result {
    Vector<Exec, double> blocks;
    KOKKOS_FUNCTION double operator()(std::size_t block) const { return blocks(block); }
  };

private:
  template <class Join, class Begins>
  static void join_blocks(const Exec& exec, const char* label, const Begins& begins, const Vector<Exec, double>& blocks,
                          const Vector<Exec, double>& results) {
    reduce_blocks<Join>(exec, label, begins, results, Result{blocks});
  }

  std::size_t m_nodes_of_segment;
  Vector<Exec, double> m_nodes;  ///< (segments * nodes of a segment)
};

/// Sums over a vector of `length` elements in a fixed tree: of blocks of 1024 elements, of blocks of 1024 of their
/// sums, and of the rest. Owns the scratch space, so it is made once for all steps.
template <class Exec>
class OrderedSum {
public:
  explicit OrderedSum(std::size_t length)
      : m_length(length),
        m_blocks("OneBit::base::OrderedSum::blocks", block_count(length)),
        m_tree(1, block_count(length)),
        m_total("OneBit::base::OrderedSum::total", 1) {}

  /// Σ f(i) over [0, length); fences.
  template <class F>
  double operator()(const Exec& exec, const char* label, const F& f) const {
    part(exec, label, 0, m_length, f);
    return total(exec, label);
  }

  /// Sums f(i) over the blocks of the range [begin, end); does not fence. Once the ranges cover [0, length), in any
  /// order, `total` has the same bits as one sum over [0, length).
  /// \param begin, end multiples of `block_length`; `end` may be the length
  template <class F>
  void part(const Exec& exec, const char* label, std::size_t begin, std::size_t end, const F& f) const {
    const std::size_t first = begin / block_length, last = first + block_count(end - begin);
    const Vector<Exec, double> sums = Kokkos::subview(m_blocks, std::make_pair(first, last));
    reduce_blocks<Sum>(exec, label, Begins{begin, end}, sums, f);
  }
  /// (blocks) Σ of each block.
  const Vector<Exec, double>& blocks() const { return m_blocks; }
  /// Σ of all ranges; fences.
  double total(const Exec& exec, const char* label) const {
    m_tree.template join<Sum>(exec, label, Ends{m_blocks.extent(0)}, m_blocks, m_total);
    double total = 0;
    Kokkos::deep_copy(exec, Kokkos::View<double, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(&total),
                      Kokkos::subview(m_total, 0));
    fence(exec, "OneBit::base::ordered_sum");
    return total;
  }

  // What kernels work with; nvcc wants it to be public.

  /// First element of a block of [begin, end).
  struct Begins {
    std::size_t begin, end;
    KOKKOS_FUNCTION std::size_t operator()(std::size_t block) const {
      const std::size_t first = begin + block * block_length;
      return first < end ? first : end;
    }
  };
  /// 0, and the end.
  struct Ends {
    std::size_t last;
    KOKKOS_FUNCTION std::size_t operator()(std::size_t end) const { return end == 0 ? 0 : last; }
  };

private:
  std::size_t m_length;
  Vector<Exec, double> m_blocks;
  BlockTree<Exec> m_tree;
  Vector<Exec, double> m_total;
};

}  // namespace onebit
