#pragma once
/// \file bucket_pipeline.hpp
/// Buckets whose averages are under way at once, so that the network has messages while a rank computes.

#include <optional>

#include "comm/overlap/bucket_average.hpp"

namespace onebit::comm {

/// Takes buckets through the three parts of their averages. In a turn a bucket begins, the one that began in an earlier
/// turn is served, and the one that was served in an earlier turn finishes. So at most three are under way, and
/// messages of two travel while the third is compressed.
///
/// The ranks' turns may differ, because a bucket may be final on one rank before another. A part waits only for parts
/// of the same bucket on other ranks, and every rank takes the buckets in the same order, so no rank waits in a circle.
template <class Exec>
class BucketPipeline {
public:
  BucketPipeline() = default;  ///< of no average
  explicit BucketPipeline(BucketAverage<Exec>& average) : m_average(&average) {}

  bool empty() const { return !m_begun && !m_served; }

  /// A turn that begins the bucket at place `first`. \returns the place of the bucket that finished, if one did
  std::optional<std::size_t> begin(const Vector<Exec, float>& bucket, std::size_t first, PhaseTimes& times) {
    m_average->begin(bucket, first, times);
    return advance(first, times);
  }
  /// A turn that begins none. \returns as `begin`
  std::optional<std::size_t> advance(PhaseTimes& times) { return advance(std::nullopt, times); }

private:
  std::optional<std::size_t> advance(std::optional<std::size_t> begun, PhaseTimes& times) {
    if (m_begun) m_average->serve(*m_begun, times);
    const std::optional<std::size_t> finished = m_served;
    if (finished) m_average->finish(*finished, times);
    m_served = m_begun;
    m_begun = begun;
    return finished;
  }

  BucketAverage<Exec>* m_average = nullptr;
  std::optional<std::size_t> m_begun, m_served;  ///< places of the buckets that wait to be served and to finish
};

}  // namespace onebit::comm
