#pragma once
/// \file shards.hpp
/// Vectors of which each rank owns a range, its shard (Rajbhandari et al., *ZeRO*, SC 2020, Section 5.1, "P_os").

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/dense_average.hpp"
#include "optim/archive.hpp"

namespace onebit::optim {

/// The shards of vectors of all parameters' length d, and what ranks exchange of them. All exchanges are collective.
template <class Exec>
class Shards {
public:
  /// \param begins (ranks + 1) first element of each rank's shard, and d
  Shards(comm::Transport<Exec>& transport, std::vector<std::size_t> begins)
      : m_transport(transport), m_begins(std::move(begins)), m_own("OneBit::optim::own_sum", 2) {
    if (ranks() > 1) m_all = Vector<Exec, std::uint32_t>("OneBit::optim::all_sums", 2 * ranks());
  }

  int ranks() const { return m_transport.ranks(); }
  /// First element of this rank's shard.
  std::size_t begin() const { return m_begins[m_transport.rank()]; }
  std::size_t end() const { return m_begins[m_transport.rank() + 1]; }
  std::size_t length() const { return end() - begin(); }
  Part part() const { return {begin(), end()}; }
  std::size_t length_of(int rank) const { return m_begins[rank + 1] - m_begins[rank]; }
  /// Elements of the longest shard.
  std::size_t longest() const {
    std::size_t most = 0;
    for (int rank = 0; rank < ranks(); ++rank) most = std::max(most, length_of(rank));
    return most;
  }
  /// A rank's shard of a vector. \param whole (d)
  Vector<Exec, float> of(int rank, const Vector<Exec, float>& whole) const {
    return Kokkos::subview(whole, std::make_pair(m_begins[rank], m_begins[rank + 1]));
  }
  /// This rank's shard of a vector. \param whole (d)
  Vector<Exec, float> own(const Vector<Exec, float>& whole) const { return of(m_transport.rank(), whole); }

  /// own(values) ← that shard of the average over ranks: sums in rank order, divided by n. The rest is undefined then.
  /// \param values (d)
  void average(const Exec& exec, const Vector<Exec, float>& values, PhaseTimes& times) const {
    if (ranks() == 1) return;
    const Stopwatch watch;
    m_transport.reduce_scatter(exec, values, m_begins);
    comm::divide(exec, ranks(), own(values));
    times.add(Phase::allreduce, watch.seconds());
  }

  /// Copies every rank's shard of `values` to all ranks. \param values (d)
  void gather(const Exec& exec, const Vector<Exec, float>& values, PhaseTimes& times) const {
    if (ranks() == 1) return;
    const Stopwatch watch;
    m_transport.all_gather(exec, values, m_begins);
    times.add(Phase::all_gather, watch.seconds());
  }

  /// own(values) ← that shard of a vector of which rank r has elements [begins[r], begins[r+1]).
  void collect(const Exec& exec, const Vector<Exec, float>& values, const std::vector<std::size_t>& begins) const {
    if (begins != m_begins) m_transport.redistribute(exec, values, begins, m_begins);
  }
  /// The way back: rank r gets elements [begins[r], begins[r+1]) from the ranks whose shards they are of.
  void deal(const Exec& exec, const Vector<Exec, float>& values, const std::vector<std::size_t>& begins) const {
    if (begins != m_begins) m_transport.redistribute(exec, values, m_begins, begins);
  }

  /// received ← shard `rank`, which that rank has as `own`. \param received (elements of that shard)
  void broadcast(const Exec& exec, int rank, const Vector<Exec, float>& own,
                 const Vector<Exec, float>& received) const {
    if (rank == m_transport.rank()) Kokkos::deep_copy(exec, received, own);
    if (ranks() == 1) return;
    std::vector<std::size_t> begins(m_begins.size());  // of ranges that are empty, but for that rank's
    std::fill(begins.begin() + rank + 1, begins.end(), received.extent(0));
    m_transport.all_gather(exec, received, begins);
  }

  /// Σ of the ranks' numbers, added in rank order. All ranks get the same bits.
  double sum(const Exec& exec, double own_number) const {
    if (ranks() == 1) return own_number;
    std::uint32_t words[2];
    std::memcpy(words, &own_number, sizeof words);
    Kokkos::deep_copy(exec, m_own, HostWords(words, 2));
    m_transport.all_gather(exec, m_own, m_all);
    std::vector<double> numbers(ranks());
    Kokkos::deep_copy(exec, HostWords(reinterpret_cast<std::uint32_t*>(numbers.data()), m_all.extent(0)), m_all);
    fence(exec, "OneBit::optim::sum_over_ranks");
    double total = 0;
    for (const double number : numbers) total += number;
    return total;
  }

private:
  using HostWords = Kokkos::View<std::uint32_t*, Kokkos::LayoutRight, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>;

  comm::Transport<Exec>& m_transport;
  std::vector<std::size_t> m_begins;         ///< (ranks + 1)
  Vector<Exec, std::uint32_t> m_own, m_all;  ///< (2), (2 * ranks) the halves of doubles
};

}  // namespace onebit::optim
