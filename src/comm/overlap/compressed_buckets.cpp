#include "comm/overlap/compressed_buckets.hpp"

#include <cmath>
#include <utility>

namespace onebit::comm {
namespace {

/// The same memory, seen by another execution space of the host.
template <class To, class T, class View>
Vector<To, T> seen_by(const View& view) {
  return Vector<To, T>(view.data(), view.extent(0));
}

/// A copy that belongs to another execution space of the host; the same vector where there is none.
template <class To, class From>
Vector<To, float> held_by(const From& vector) {
  if constexpr (std::is_same_v<From, Vector<To, float>>) {
    return vector;
  } else {
    const auto held = make_uninitialized<To, float>("OneBit::comm::residual", vector.extent(0));
    Kokkos::deep_copy(held, vector);
    return held;
  }
}

/// Counts all of a call as `Phase::allreduce`. \param call gets times of its phases, which do not count
template <class Call>
void count_as_allreduce(PhaseTimes& times, const Call& call) {
  const Stopwatch watch;
  PhaseTimes phases;
  call(phases);
  times.add(Phase::allreduce, watch.seconds());
}

}  // namespace

template <class Exec>
CompressedBuckets<Exec>::CompressedBuckets(std::unique_ptr<Transport<On>> transport,
                                           std::vector<compress::Layout> layouts, const compress::Options& options,
                                           bool error_feedback, bool undoable)
    : m_transport(std::move(transport)),
      m_layouts(std::move(layouts)),
      m_begins{0},
      m_options(options),
      m_error_feedback(error_feedback),
      m_undoable(undoable) {
  for (const compress::Layout& layout : m_layouts) m_begins.push_back(m_begins.back() + layout.length);
}

template <class Exec>
void CompressedBuckets<Exec>::allocate() {
  if (allocated()) return;
  for (const compress::Layout& layout : m_layouts) {
    m_allreduces.push_back(std::make_unique<CompressedAverage<On>>(*m_transport, layout, m_options, m_error_feedback));
    if constexpr (!std::is_same_v<On, Exec>)
      m_decompressors.push_back(compress::make_compressor<Exec>(layout, m_options));
  }
}

template <class Exec>
void CompressedBuckets<Exec>::begin_step(const std::optional<MomentumShares>& shares, float residual_factor) {
  m_shares = shares;
  m_residual_factor = residual_factor;
}

template <class Exec>
void CompressedBuckets<Exec>::begin(const Vector<Exec, float>& values, long /*step*/, std::size_t first,
                                    PhaseTimes& times) {
  count_as_allreduce(times,
                     [&](PhaseTimes& phases) { begin_bucket(first / m_layouts.front().length, values, phases); });
}

template <class Exec>
void CompressedBuckets<Exec>::serve(std::size_t first, PhaseTimes& times) {
  count_as_allreduce(times, [&](PhaseTimes& phases) { allreduce_from(first).serve(m_instance.get(), phases); });
}

template <class Exec>
void CompressedBuckets<Exec>::finish(std::size_t first, PhaseTimes& times) {
  count_as_allreduce(times, [&](PhaseTimes& phases) { allreduce_from(first).finish(m_instance.get(), phases); });
}

template <class Exec>
void CompressedBuckets<Exec>::average(const Exec& exec, const Vector<Exec, float>& values, PhaseTimes& times) {
  fence(exec, "OneBit::comm::compressed_buckets");  // the buckets are read on another instance
  // The same turns as BucketPipeline's, with the times of each phase.
  for (std::size_t turn = 0, last = size() - 1; turn <= last + 2; ++turn) {
    if (turn <= last) begin_bucket(last - turn, bucket(values, last - turn), times);
    if (turn >= 1 && turn <= last + 1) m_allreduces[last + 1 - turn]->serve(m_instance.get(), times);
    if (turn >= 2) m_allreduces[last + 2 - turn]->finish(m_instance.get(), times);
  }
}

template <class Exec>
void CompressedBuckets<Exec>::begin_bucket(std::size_t k, const Vector<Exec, float>& values, PhaseTimes& times) {
  CompressedAverage<On>& allreduce = *m_allreduces[k];
  compress::MovingAverage<On> average;
  if (m_shares) average = {m_shares->old_share, m_shares->new_share, m_shares->factor, allreduce.last()};
  if (m_undoable) allreduce.keep(m_instance.get());
  allreduce.begin(m_instance.get(), seen_by<On, float>(values), average, times, m_residual_factor);
}

template <class Exec>
void CompressedBuckets<Exec>::take_back() {
  for (const auto& allreduce : m_allreduces) allreduce->take_back(m_instance.get());
  fence(m_instance.get(), "OneBit::comm::take_back");
}

template <class Exec>
compress::AnyDecoder<Exec> CompressedBuckets<Exec>::decoder(std::size_t k) const {
  if constexpr (std::is_same_v<On, Exec>)
    return m_allreduces[k]->last_decoder();
  else
    return m_decompressors[k]->decoder(seen_by<Exec, const std::uint32_t>(m_allreduces[k]->last()));
}

template <class Exec>
void CompressedBuckets<Exec>::decompress(const Vector<Exec, float>& m) const {
  for (std::size_t k = 0; k < size(); ++k)
    m_allreduces[k]->decompress_last(m_instance.get(), seen_by<On, float>(bucket(m, k)));
  fence(m_instance.get(), "OneBit::comm::decompressed_buckets");
}

template <class Exec>
Vector<Exec, float> CompressedBuckets<Exec>::worker_residual(std::size_t k) const {
  return held_by<Exec>(m_allreduces[k]->worker_residual(m_instance.get()));
}

template <class Exec>
Vector<Exec, float> CompressedBuckets<Exec>::server_residual(std::size_t k) const {
  return held_by<Exec>(m_allreduces[k]->server_residual(m_instance.get()));
}

template <class Exec>
void CompressedBuckets<Exec>::set_residuals(std::size_t k, const Vector<Exec, float>& worker,
                                            const Vector<Exec, float>& server) {
  m_allreduces[k]->set_residuals(m_instance.get(), seen_by<On, const float>(worker), seen_by<On, const float>(server));
}

template <class Exec>
typename CompressedAverage<typename CompressedBuckets<Exec>::On>::Places CompressedBuckets<Exec>::places(
    std::size_t k) const {
  auto places = m_allreduces[k]->places();
  for (std::size_t* const place : {&places.begin, &places.end, &places.server_begin, &places.server_end})
    *place += m_begins[k];
  return places;
}

template <class Exec>
double CompressedBuckets<Exec>::worker_residual_l2() const {
  double squares = 0;
  for (const auto& allreduce : m_allreduces) squares += std::pow(allreduce->worker_residual_l2(m_instance.get()), 2);
  return std::sqrt(squares);
}

template <class Exec>
double CompressedBuckets<Exec>::server_residual_l2() const {
  double squares = 0;
  for (const auto& allreduce : m_allreduces) squares += std::pow(allreduce->server_residual_l2(m_instance.get()), 2);
  return std::sqrt(squares);
}

template <class Exec>
Vector<Exec, float> CompressedBuckets<Exec>::bucket(const Vector<Exec, float>& values, std::size_t k) const {
  return Kokkos::subview(values, std::make_pair(m_begins[k], m_begins[k + 1]));
}

#define ONEBIT_INSTANTIATE(Exec) template class CompressedBuckets<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
