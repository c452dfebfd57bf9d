#pragma once
/// \file bucket_update.hpp
/// The update of the parameters from buckets of averaged momenta, which may go on during the next forward pass.

#include "train/session.hpp"

namespace onebit::train {

/// Updates x bucket by bucket, from the beginning of x on, as the buckets' averages arrive.
template <class Exec>
class BucketUpdate {
public:
  explicit BucketUpdate(Session<Exec>& session) : m_session(session) {}

  bool under_way() const { return m_under_way; }
  /// Begins the update of a step whose buckets are under way. \param context as the algorithm began its buckets
  void begin(const optim::StepContext& context) {
    m_context = context;
    m_next = 0;
    m_under_way = true;
  }
  /// Updates elements [0, e) of x, and waits for their averages.
  void until(std::size_t e, PhaseTimes& times) {
    if (!m_under_way) return;
    const comm::CompressedBuckets<Exec>& buckets = *m_session.momenta.buckets;
    for (; m_next < buckets.size() && buckets.elements(m_next).begin < e; ++m_next) {
      m_session.momenta.overlapped->wait_until(buckets.elements(m_next).end, times);
      m_session.algorithm->update_bucket(m_session.exec, m_session.x, m_next, m_context, times);
    }
  }
  /// Updates the rest, and ends the step. \param record of the step; gets its state and how much of the average was
  /// hidden
  void end(StepRecord& record, PhaseTimes& times) {
    until(m_session.x.extent(0), times);
    record.hidden_allreduce = m_session.momenta.overlapped->wait(times);
    times.add_rest(Phase::check, [&] { record.state = m_session.algorithm->end_buckets(m_session.exec); });
    m_under_way = false;
  }

private:
  Session<Exec>& m_session;
  optim::StepContext m_context;
  std::size_t m_next = 0;  ///< bucket
  bool m_under_way = false;
};

}  // namespace onebit::train
