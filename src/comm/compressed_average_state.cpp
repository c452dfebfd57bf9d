/// \file compressed_average_state.cpp
/// What a compressed average keeps from call to call: buffers, residuals, and the messages of the last average.

#include <utility>

#include "base/float_bits.hpp"
#include "comm/compressed_average.hpp"

namespace onebit::comm {
namespace {

/// to ← from, in memory of its own.
template <class Exec, class View>
void copy(const Exec& exec, View& to, const View& from) {
  if (to.extent(0) != from.extent(0)) to = View("OneBit::comm::saved_residual", from.extent(0));
  Kokkos::deep_copy(exec, to, from);
}

template <class Exec>
void copy(const Exec& exec, compress::Feedback<Exec>& to, const compress::Feedback<Exec>& from) {
  copy(exec, to.c, from.c);
  copy(exec, to.scales, from.scales);
}

}  // namespace

template <class Exec>
CompressedAverage<Exec>::CompressedAverage(Messenger<Exec>& transport, const compress::Layout& layout,
                                           const compress::Options& options, bool error_feedback)
    : CompressedAverage(transport, nullptr, {layout}, options, error_feedback) {}

template <class Exec>
CompressedAverage<Exec>::CompressedAverage(const Hosts<Exec>& hosts, const std::vector<compress::Layout>& shards,
                                           const compress::Options& options, bool error_feedback)
    : CompressedAverage(hosts.across, &hosts.local, shards, options, error_feedback) {}

template <class Exec>
CompressedAverage<Exec>::CompressedAverage(Messenger<Exec>& across, Transport<Exec>* local,
                                           const std::vector<compress::Layout>& shards,
                                           const compress::Options& options, bool error_feedback)
    : m_across(across), m_local(local), m_error_feedback(error_feedback), m_shard(local ? local->rank() : 0) {
  std::size_t longest = 0;
  m_shard_begins.push_back(0);
  for (const compress::Layout& shard : shards) {
    m_compressors.push_back(compress::make_compressor<Exec>(shard, options));
    m_shard_begins.push_back(m_shard_begins.back() + shard.length);
    longest = std::max(longest, shard.chunks * m_compressors.back()->message_words());
  }
  const int chunks = own().layout().chunks;
  const std::size_t message = own().message_words();
  m_worker = own().no_feedback(0, chunks);
  m_server = own().no_feedback(across.rank(), 1);
  m_send = Words("OneBit::comm::send", chunks * message);
  m_received = Words("OneBit::comm::received", chunks * message);
  m_recompressed = Words("OneBit::comm::recompressed", message);
  if (local == nullptr) {
    m_gathered = Words("OneBit::comm::gathered", chunks * message);
    m_last = Words("OneBit::comm::last", chunks * message);
  } else {
    m_shard_messages = Words("OneBit::comm::shard_messages", longest);
    m_gathered = Kokkos::subview(m_shard_messages, std::make_pair(std::size_t{0}, chunks * message));
    m_last = Words("OneBit::comm::last", shards.size() * longest);
  }
}

template <class Exec>
typename CompressedAverage<Exec>::Words CompressedAverage<Exec>::last_of(std::size_t shard) const {
  const std::size_t words = m_last.extent(0) / m_compressors.size();
  return Kokkos::subview(m_last, std::make_pair(shard * words, (shard + 1) * words));
}

template <class Exec>
std::vector<typename CompressedAverage<Exec>::Piece> CompressedAverage<Exec>::last() const {
  std::vector<Piece> pieces;
  for (std::size_t shard = 0; shard < m_compressors.size(); ++shard)
    pieces.push_back({elements_of(shard), m_compressors[shard]->decoder(last_of(shard))});
  return pieces;
}

template <class Exec>
void CompressedAverage<Exec>::decompress_last(const Exec& exec, const Vector<Exec, float>& x) const {
  for (std::size_t shard = 0; shard < m_compressors.size(); ++shard) {
    const Range elements = elements_of(shard);
    m_compressors[shard]->decompress(exec, 0, m_across.ranks(), last_of(shard),
                                     Kokkos::subview(x, std::make_pair(elements.begin, elements.end)));
  }
}

template <class Exec>
bool CompressedAverage<Exec>::last_is_finite(const Exec& exec) const {
  const Words messages = m_last;
  const std::size_t scales = own().scale_words(), words = own().message_words();
  const std::size_t count = m_across.ranks() * scales;
  std::size_t infinite = 0;
  Kokkos::parallel_reduce(
      "OneBit::comm::last_is_finite", Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, count),
      KOKKOS_LAMBDA(std::size_t i, std::size_t & found) {
        const float scale = as_float(messages(i / scales * words + i % scales));
        if (!(scale - scale == 0)) ++found;
      },
      infinite);
  return infinite == 0;
}

template <class Exec>
Vector<Exec, float> CompressedAverage<Exec>::worker_residual(const Exec& exec) const {
  return compress::residual(exec, own(), 0, m_across.ranks(), m_worker);
}

template <class Exec>
Vector<Exec, float> CompressedAverage<Exec>::server_residual(const Exec& exec) const {
  Vector<Exec, float> residual("OneBit::comm::server_residual", own().layout().chunk_length());
  own().residual(exec, m_across.rank(), 1, m_server, residual);
  fence(exec, "OneBit::comm::server_residual");
  return residual;
}

template <class Exec>
void CompressedAverage<Exec>::set_residuals(const Exec& exec, const Vector<Exec, const float>& worker,
                                            const Vector<Exec, const float>& server) {
  compress::set_residual(exec, worker, m_worker);
  compress::set_residual(exec, server, m_server);
}

template <class Exec>
void CompressedAverage<Exec>::save_residuals(const Exec& exec) {
  copy(exec, m_saved_worker, m_worker);
  copy(exec, m_saved_server, m_server);
}

// A call swaps m_gathered and m_last, so the messages of the call before are still there.
template <class Exec>
void CompressedAverage<Exec>::roll_back(const Exec& exec) {
  copy(exec, m_worker, m_saved_worker);
  copy(exec, m_server, m_saved_server);
  std::swap(m_gathered, m_last);
}

template <class Exec>
typename CompressedAverage<Exec>::ResidualExtents CompressedAverage<Exec>::residual_extents() const {
  const Range shard = elements_of(m_shard);
  const std::size_t rank = static_cast<std::size_t>(m_across.rank()),
                    ranks = static_cast<std::size_t>(m_across.ranks());
  const std::vector<std::size_t>& chunks = own().layout().chunk_begins;
  return {rank, ranks, shard.begin, shard.end, shard.begin + chunks[rank], shard.begin + chunks[rank + 1]};
}

#define ONEBIT_INSTANTIATE(Exec)                                                                                \
  template CompressedAverage<Exec>::CompressedAverage(Messenger<Exec>&, const compress::Layout&,                \
                                                      const compress::Options&, bool);                          \
  template CompressedAverage<Exec>::CompressedAverage(const Hosts<Exec>&, const std::vector<compress::Layout>&, \
                                                      const compress::Options&, bool);                          \
  template std::vector<typename CompressedAverage<Exec>::Piece> CompressedAverage<Exec>::last() const;          \
  template void CompressedAverage<Exec>::decompress_last(const Exec&, const Vector<Exec, float>&) const;        \
  template bool CompressedAverage<Exec>::last_is_finite(const Exec&) const;                                     \
  template Vector<Exec, float> CompressedAverage<Exec>::worker_residual(const Exec&) const;                     \
  template Vector<Exec, float> CompressedAverage<Exec>::server_residual(const Exec&) const;                     \
  template void CompressedAverage<Exec>::set_residuals(const Exec&, const Vector<Exec, const float>&,           \
                                                       const Vector<Exec, const float>&);                       \
  template void CompressedAverage<Exec>::save_residuals(const Exec&);                                           \
  template void CompressedAverage<Exec>::roll_back(const Exec&);                                                \
  template typename CompressedAverage<Exec>::ResidualExtents CompressedAverage<Exec>::residual_extents() const;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
