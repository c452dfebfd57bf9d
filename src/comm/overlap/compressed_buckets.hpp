#pragma once
/// \file compressed_buckets.hpp
/// The compressed average of the momentum in buckets, so that a bucket can travel while the backward pass still
/// computes the gradients of the next ones.

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "comm/compressed_average.hpp"
#include "comm/overlap/bucket_average.hpp"

namespace onebit::comm {

/// How a rank's momentum is made of the last average and of its gradient:
/// m_i = old_share · m + new_share · (factor · g_i).
struct MomentumShares {
  float old_share, new_share, factor;
};

/// m ← CA(m_i), where each bucket is a compressed allreduce of its own, with its own chunks, scales and residuals. The
/// averages stay in their messages. They are complete on every rank only when all buckets of a step have been averaged,
/// and `take_back` can undo all of them.
///
/// As a BucketAverage it may run on the thread of OverlappedAverage. So its kernels run where those of a second thread
/// may: on Kokkos::Serial in host memory, and on a stream of their own on a GPU.
template <class Exec>
class CompressedBuckets final : public BucketAverage<Exec> {
public:
  using On = std::conditional_t<is_host<Exec>, Kokkos::Serial, Exec>;

  /// \param transport on a communicator that nothing else uses
  /// \param layouts   of the buckets in order; each but the last has the length of the first
  /// \param undoable  whether `take_back` will be called, which needs a copy of the residuals
  CompressedBuckets(std::unique_ptr<Transport<On>> transport, std::vector<compress::Layout> layouts,
                    const compress::Options& options, bool error_feedback, bool undoable);

  std::size_t size() const { return m_layouts.size(); }
  /// Elements of bucket k.
  Range elements(std::size_t k) const { return {m_begins[k], m_begins[k + 1]}; }
  /// Makes the residuals and the messages, unless they are there. A run needs them from its first compressed step on.
  void allocate();
  bool allocated() const { return !m_allreduces.empty(); }

  /// Begins a step. \param shares of m_i; without them, what is averaged is m_i itself
  void begin_step(const std::optional<MomentumShares>& shares, float residual_factor);
  /// Averages a bucket of the step. Its times count as `Phase::allreduce`.
  /// \param values g_i or m_i, as `begin_step` said; only read
  void begin(const Vector<Exec, float>& values, long step, std::size_t first, PhaseTimes& times) override;
  void serve(std::size_t first, PhaseTimes& times) override;
  void finish(std::size_t first, PhaseTimes& times) override;
  /// Averages all buckets in turn, the last first. \param values (d) complete; only read
  void average(const Exec& exec, const Vector<Exec, float>& values, PhaseTimes& times);
  /// Undoes the last step, all of whose buckets have been averaged.
  void take_back();

  /// The last average of bucket k.
  compress::AnyDecoder<Exec> decoder(std::size_t k) const;
  /// m ← the last averages. \param m (d)
  void decompress(const Vector<Exec, float>& m) const;

  /// Residuals of bucket k, as of its CompressedAverage; places count from the start of the whole vector.
  Vector<Exec, float> worker_residual(std::size_t k) const;
  Vector<Exec, float> server_residual(std::size_t k) const;
  void set_residuals(std::size_t k, const Vector<Exec, float>& worker, const Vector<Exec, float>& server);
  typename CompressedAverage<On>::Places places(std::size_t k) const;
  /// ‖δ_i‖₂ and ‖δ̄‖₂ over all buckets.
  double worker_residual_l2() const;
  double server_residual_l2() const;

  int ranks() const { return m_transport->ranks(); }
  Traffic traffic() const override { return m_transport->traffic(); }
  Traffic traffic_within_host() const override { return m_transport->traffic_within_host(); }

private:
  void begin_bucket(std::size_t k, const Vector<Exec, float>& values, PhaseTimes& times);
  CompressedAverage<On>& allreduce_from(std::size_t first) { return *m_allreduces[first / m_layouts.front().length]; }
  Vector<Exec, float> bucket(const Vector<Exec, float>& values, std::size_t k) const;

  std::unique_ptr<Transport<On>> m_transport;
  std::vector<compress::Layout> m_layouts;
  std::vector<std::size_t> m_begins;  ///< (buckets + 1) first element of each bucket
  compress::Options m_options;
  bool m_error_feedback, m_undoable;
  InstanceOfItsOwn<On> m_instance;
  std::vector<std::unique_ptr<CompressedAverage<On>>> m_allreduces;  ///< (buckets)
  /// (buckets) of Exec's kernels, where these are not those of On
  std::vector<std::unique_ptr<const compress::Compressor<Exec>>> m_decompressors;

  // The step under way.
  std::optional<MomentumShares> m_shares;
  float m_residual_factor = 1;
};

}  // namespace onebit::comm
