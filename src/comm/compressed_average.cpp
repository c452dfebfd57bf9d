#include "comm/compressed_average.hpp"

#include <utility>

#include "base/device/parallel.hpp"
#include "comm/dense_average.hpp"

namespace onebit::comm {
template <class Exec>
void CompressedAverage<Exec>::operator()(const Exec& exec, const Vector<Exec, float>& x, PhaseTimes& times,
                                         float residual_factor) {
  const Region region("OneBit::comm::compressed_average");
  begin(exec, {x, {}, residual_factor, {}}, times);
  serve(exec, times);
  finish(exec, &x, times);
}

template <class Exec>
void CompressedAverage<Exec>::begin(const Exec& exec, const Contribution<Exec>& contribution, PhaseTimes& times) {
  const int ranks = m_across.ranks(), rank = m_across.rank();
  const float f = contribution.residual_factor;
  if (!m_error_feedback)
    for (const auto& feedback : {m_worker, m_server}) compress::clear(exec, feedback);

  compress::Compression<Exec> worker{0, ranks, contribution.x, m_worker, m_send};
  worker.residual_factor = f;
  if (m_local != nullptr)
    worker.x = average_on_host(exec, contribution, times);
  else if (contribution.momentum)
    worker.momentum = {*contribution.momentum, m_last};

  compress::Compression<Exec> server{rank, 1, {}, m_server, m_recompressed};
  Vector<Exec, float> chunk;
  if (contribution.server) {
    const ResidualExtents extents = residual_extents();
    chunk = Kokkos::subview(contribution.x, std::make_pair(extents.server_begin, extents.server_end));
    server.x = chunk;
  } else {
    server.mean = {ranks, m_received};
    server.residual_factor = f;
  }

  m_in_flight.emplace(InFlight{worker, server, chunk, contribution.server, nullptr, nullptr});
  if (m_across.overlaps() && ranks > 1)
    send_codes(exec, times);
  else
    exchange_by_phases(exec, times);
}

/// x ← the momentum of x, whose old value is what a decoder gives.
template <class Exec>
struct TakeMomentum {
  compress::MomentumShares shares;
  Vector<Exec, float> x;

  KOKKOS_FUNCTION void operator()(std::size_t begin, std::size_t count, const float* old) const {
    for (std::size_t j = 0; j < count; ++j) {
      float& value = x(begin + j * compress::WordTable<Exec>::stride);
      value = shares(old[j], value);
    }
  }
};

template <class Exec>
Vector<Exec, float> CompressedAverage<Exec>::average_on_host(const Exec& exec, const Contribution<Exec>& contribution,
                                                             PhaseTimes& times) {
  const Vector<Exec, float>& x = contribution.x;
  const Range shard = elements_of(m_shard);
  const Vector<Exec, float> average = Kokkos::subview(x, std::make_pair(shard.begin, shard.end));
  Stopwatch watch;
  if (contribution.momentum) {
    for (const Piece& piece : last()) {
      const Vector<Exec, float> part = Kokkos::subview(x, std::make_pair(piece.elements.begin, piece.elements.end));
      std::visit(
          [&](const auto& decoder) {
            compress::for_each_decoded(exec, "OneBit::comm::local_momentum", decoder,
                                       TakeMomentum<Exec>{*contribution.momentum, part});
          },
          piece.decoder);
    }
    fence(exec, "OneBit::comm::local_momentum");
    times.add(Phase::compress, watch.restart());
  }
  m_local->reduce_scatter(exec, x, m_shard_begins);
  divide(exec, m_local->ranks(), average);
  times.add(Phase::allreduce, watch.seconds());
  return average;
}

template <class Exec>
void CompressedAverage<Exec>::exchange_by_phases(const Exec& exec, PhaseTimes& times) {
  const bool alone = m_across.ranks() == 1;
  Stopwatch watch;
  const auto end_of = [&](Phase phase) {
    fence(exec, "OneBit::comm::end_of_phase");
    times.add(phase, watch.restart());
  };
  own().compress(exec, m_in_flight->worker);
  end_of(Phase::compress);
  if (alone)
    Kokkos::deep_copy(exec, m_received, m_send);
  else
    m_across.all_to_all(exec, m_send, m_received);
  end_of(Phase::all_to_all);
  call_server(exec, times);
  watch.restart();
  own().compress(exec, m_in_flight->server);
  end_of(Phase::average);
  if (alone)
    Kokkos::deep_copy(exec, m_gathered, m_recompressed);
  else
    m_across.all_gather(exec, m_recompressed, m_gathered);
  end_of(Phase::all_gather);
}

template <class Exec>
void CompressedAverage<Exec>::send_codes(const Exec& exec, PhaseTimes& times) {
  const int ranks = m_across.ranks(), rank = m_across.rank();
  const std::vector<Range> sent = sent_ranges();
  Stopwatch watch;
  // All receives are posted first.
  m_in_flight->all_to_all = m_across.begin_transfer(m_received, sent, &Traffic::all_to_all);
  m_in_flight->all_gather = m_across.begin_transfer(m_gathered, sent, &Traffic::all_gather);
  Transfer<Exec>& all_to_all = *m_in_flight->all_to_all;
  for (int distance = 1; distance <= ranks; ++distance) {
    const int to = other(distance);
    for (const Range& part : compress::ranges<Exec>(own().layout().words)) {
      own().encode(exec, m_in_flight->worker, to, part);
      if (own().codes_before_scales() && to != rank) all_to_all.send(exec, to, message(m_send, to));
    }
  }
  own().finish(exec, m_in_flight->worker);
  for (int distance = 1; distance < ranks; ++distance)
    send_rest(exec, all_to_all, other(distance), message(m_send, other(distance)));
  all_to_all.post();
  Kokkos::deep_copy(exec, message(m_received, rank), message(m_send, rank));
  fence(exec, "OneBit::comm::compressed");
  times.add(Phase::compress, watch.seconds());
}

template <class Exec>
void CompressedAverage<Exec>::serve(const Exec& exec, PhaseTimes& times) {
  if (m_in_flight->all_to_all == nullptr) return;
  const int ranks = m_across.ranks(), rank = m_across.rank();
  Transfer<Exec>& all_gather = *m_in_flight->all_gather;
  Stopwatch watch;
  for (int distance = 1; distance < ranks; ++distance) m_in_flight->all_to_all->receive(exec, other(-distance));
  fence(exec, "OneBit::comm::received");
  times.add(Phase::all_to_all, watch.seconds());
  call_server(exec, times);
  watch.restart();

  for (const Range& part : compress::ranges<Exec>(own().layout().words)) {
    own().encode(exec, m_in_flight->server, rank, part);
    for (int distance = 1; own().codes_before_scales() && distance < ranks; ++distance)
      all_gather.send(exec, other(distance), m_recompressed);
  }
  own().finish(exec, m_in_flight->server);
  for (int distance = 1; distance < ranks; ++distance) send_rest(exec, all_gather, other(distance), m_recompressed);
  all_gather.post();
  Kokkos::deep_copy(exec, message(m_gathered, rank), m_recompressed);
  fence(exec, "OneBit::comm::recompressed");
  times.add(Phase::average, watch.seconds());
}

template <class Exec>
void CompressedAverage<Exec>::call_server(const Exec& exec, PhaseTimes& times) {
  if (!m_in_flight->make_of_average) return;
  const Stopwatch watch;
  own().average(exec, m_across.rank(), {m_across.ranks(), m_received}, m_in_flight->chunk);
  fence(exec, "OneBit::comm::averaged");
  times.add(Phase::average, watch.seconds());
  m_in_flight->make_of_average(exec, m_in_flight->chunk, times);
}

template <class Exec>
void CompressedAverage<Exec>::finish(const Exec& exec, const Vector<Exec, float>* x, PhaseTimes& times) {
  Stopwatch watch;
  const std::vector<std::size_t>& begins = own().layout().chunk_begins;
  const auto decompress = [&](int first, int chunks) {
    times.add(Phase::all_gather, watch.restart());
    if (x == nullptr || m_local != nullptr) return;
    own().decompress(exec, first, chunks,
                     Kokkos::subview(m_gathered, std::make_pair(first * own().message_words(), m_gathered.extent(0))),
                     Kokkos::subview(*x, std::make_pair(begins[first], begins[first + chunks])));
    fence(exec, "OneBit::comm::decompressed");
    times.add(Phase::update, watch.restart());
  };
  const int ranks = m_across.ranks();
  if (m_in_flight->all_gather == nullptr) {
    decompress(0, ranks);
  } else {
    decompress(m_across.rank(), 1);
    for (int distance = 1; distance < ranks; ++distance) {
      m_in_flight->all_gather->receive(exec, other(-distance));
      decompress(other(-distance), 1);  // chunks as they arrive
    }
    m_in_flight->all_to_all->finish();
    m_in_flight->all_gather->finish();
    times.add(Phase::all_gather, watch.restart());
  }
  m_in_flight.reset();
  if (m_local == nullptr) return std::swap(m_gathered, m_last);

  m_local->all_gather(exec, m_shard_messages, m_last);
  times.add(Phase::all_gather, watch.restart());
  if (x == nullptr) return;
  decompress_last(exec, *x);
  fence(exec, "OneBit::comm::decompressed");
  times.add(Phase::update, watch.seconds());
}

template <class Exec>
std::vector<Range> CompressedAverage<Exec>::sent_ranges() const {
  const std::size_t head = own().scale_words(), planes = own().planes();
  std::vector<Range> sent;
  for (const Range& part : compress::ranges<Exec>(own().layout().words))
    sent.push_back({head + part.begin * planes, head + part.end * planes});
  sent.push_back({0, head});
  return sent;
}

template <class Exec>
void CompressedAverage<Exec>::send_rest(const Exec& exec, Transfer<Exec>& transfer, int to,
                                        const Words& message) const {
  const std::size_t ranges = own().codes_before_scales() ? 1 : sent_ranges().size();
  for (std::size_t range = 0; range < ranges; ++range) transfer.send(exec, to, message);
}

template <class Exec>
typename CompressedAverage<Exec>::Words CompressedAverage<Exec>::message(const Words& messages, int number) const {
  const std::size_t length = own().message_words();
  return Kokkos::subview(messages, std::make_pair(number * length, (number + 1) * length));
}

#define ONEBIT_INSTANTIATE(Exec) template class CompressedAverage<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
