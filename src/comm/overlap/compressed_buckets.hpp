#pragma once
/// \file compressed_buckets.hpp
/// The compressed average of a momentum in buckets, so that a bucket can travel while the backward pass still computes
/// the gradients of the next ones. A momentum that is averaged in one piece is one bucket.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/compressed_average.hpp"
#include "comm/overlap/bucket_average.hpp"

namespace onebit::comm {

/// m ← CA(m_i), where each bucket is a compressed average of its own, with its own chunks, scales and residuals. The
/// averages stay in their messages. They are complete on every rank only when all buckets of a step have been averaged,
/// and `roll_back` can undo all of them.
template <class Exec>
class CompressedBuckets : public BucketAverage<Exec> {
public:
  /// Makes the residuals and the messages, unless they are there. A run needs them from its first compressed step on.
  virtual void allocate() = 0;
  virtual bool allocated() const = 0;

  /// Begins a step. \param momentum shares of m_i; without them, what is averaged is m_i itself
  virtual void begin_step(const std::optional<compress::MomentumShares>& momentum, float residual_factor) = 0;
  /// Averages all buckets of the step in turn, the last first, with the times of each phase. Instead, an
  /// OverlappedAverage may average them one by one; their times then count as `Phase::allreduce`.
  /// \param values (d) g_i or m_i, as `begin_step` said; overwritten where averages are hierarchical
  virtual void average(const Exec& exec, const Vector<Exec, float>& values, PhaseTimes& times) = 0;
  /// Undoes the last step, all of whose buckets have been averaged. Needs `undoable` of the maker.
  virtual void roll_back() = 0;

  /// The last average, in pieces whose elements count from the start of the whole vector.
  virtual std::vector<typename CompressedAverage<Exec>::Piece> last() const = 0;
  /// m ← the last averages. \param m (d)
  virtual void decompress(const Exec& exec, const Vector<Exec, float>& m) const = 0;

  /// A bucket's residuals, as of its CompressedAverage; extents count from the start of the whole vector.
  struct Residuals {
    Vector<Exec, float> worker, server;
    typename CompressedAverage<Exec>::ResidualExtents extents;
  };
  virtual std::size_t size() const = 0;
  virtual Residuals residuals(std::size_t k) const = 0;
  virtual void set_residuals(std::size_t k, const Residuals& residuals) = 0;
  /// ‖δ_i‖₂ and ‖δ̄‖₂ over all buckets.
  virtual double worker_residual_l2() const = 0;
  virtual double server_residual_l2() const = 0;
};

/// What makes the averages of buckets, each when the first compressed step needs it.
/// \tparam On where the kernels run. Kokkos::Serial on a host lets OverlappedAverage's thread average: kernels of
///            OpenMP may come from one thread only. On a GPU they have a stream of their own. Exec, with the caller's
///            instance, is for `average` alone.
template <class Exec, class On>
struct BucketsOptions {
  std::vector<std::size_t> begins;  ///< (buckets + 1) first elements; each bucket but the last has the same length
  std::function<std::unique_ptr<CompressedAverage<On>>(std::size_t k)> make;  ///< the average of bucket k
  /// Decodes bucket k's messages by kernels of Exec; empty where On is Exec.
  std::function<std::unique_ptr<const compress::Compressor<Exec>>(std::size_t k)> make_decoder;
  std::unique_ptr<Transport<On>> transport;  ///< that of the averages, where nothing else has it; may be null
  bool undoable = false;                     ///< `roll_back` will be called, which needs a copy of the residuals
};

/// Buckets without memory yet. What the functions of `options` refer to must outlive them.
template <class Exec, class On>
std::unique_ptr<CompressedBuckets<Exec>> make_buckets(BucketsOptions<Exec, On> options);

}  // namespace onebit::comm
