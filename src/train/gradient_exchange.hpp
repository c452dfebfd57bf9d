#pragma once
/// \file gradient_exchange.hpp
/// The exchange of a step as the step loop sees it: after the backward pass, or in buckets beside it.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/mpi.hpp"
#include "base/tensor_table.hpp"
#include "comm/overlap/compressed_buckets.hpp"
#include "comm/overlap/overlapped_average.hpp"
#include "config/input.hpp"
#include "optim/compression.hpp"
#include "train/averaging.hpp"

namespace onebit::train {

/// Averages what the algorithm of a step gives it (optim::Algorithm::begin), bucket by bucket, on a thread of its own.
template <class Exec>
class GradientExchange {
public:
  using Ranged = std::function<void(std::size_t begin, std::size_t end)>;

  /// Makes what can average beside the backward pass: gradients in buckets of `comm.bucket_bytes`, and momenta in those
  /// of `comm.compressed_bucket_bytes`. Each is nullptr where it is off or has nothing to overlap. Collective.
  /// \param input        with the collective that `make_averaging` chose
  /// \param communicator nothing else may use it
  /// \param kind         of the transport that `make_averaging` made
  GradientExchange(const config::Input& input, const Communicator& communicator, TransportKind kind,
                   const TensorTable& tensors);

  comm::BucketAverage<Exec>* gradient_buckets() const { return m_gradients.get(); }
  comm::CompressedBuckets<Exec>* momentum_buckets() const { return m_momenta.get(); }
  /// How momenta in buckets are averaged, for the log; empty where the input asks for no such buckets.
  const std::string& about_momenta() const { return m_about_momenta; }

  /// Begins a step. \param average of the buckets of g; nullptr: the algorithm exchanges after the backward pass
  /// \param g (d) not complete yet \param check is called for every range of g before the range is averaged
  void begin(const Exec& exec, comm::BucketAverage<Exec>* average, const Vector<Exec, float>& g, const Ranged& check) {
    m_average = average;
    m_check = check;
    m_length = g.extent(0);
    if (average != nullptr) m_overlapped->start(exec, *average, g, check);
  }
  /// Says that elements [b, d) of g are complete when the kernels so far are done.
  void gradient_ready_from(std::size_t b) {
    if (m_average != nullptr) m_overlapped->ready_from(b);
  }
  /// All of g is complete: waits for the average, if there is one.
  /// \param hidden gets the seconds of the average that the backward pass hid
  /// \returns whether all buckets are averaged now, on this rank
  bool finish(PhaseTimes& times, double& hidden) {
    if (m_average == nullptr) {
      times.add_rest(Phase::check, [&] { m_check(0, m_length); });
      return false;
    }
    hidden = m_overlapped->finish(times);
    return true;
  }

  /// Bytes of this rank so far that the run's transport does not count, and those of them that stayed on the host.
  comm::Traffic traffic() const { return sum(&comm::BucketAverage<Exec>::traffic); }
  comm::Traffic traffic_within_host() const { return sum(&comm::BucketAverage<Exec>::traffic_within_host); }

private:
  comm::Traffic sum(comm::Traffic (comm::BucketAverage<Exec>::*part)() const) const {
    comm::Traffic sum;
    if (m_gradients) sum += (*m_gradients.*part)();
    if (m_momenta) sum += (*m_momenta.*part)();
    return sum;
  }

  std::unique_ptr<comm::BucketAverage<Exec>> m_gradients;
  std::unique_ptr<comm::CompressedBuckets<Exec>> m_momenta;
  std::string m_about_momenta;
  std::unique_ptr<comm::OverlappedAverage<Exec>> m_overlapped;  ///< null where nothing overlaps

  // The step under way.
  comm::BucketAverage<Exec>* m_average = nullptr;
  Ranged m_check;
  std::size_t m_length = 0;
};

/// Calls f with the transport of a second thread: in device memory where the run's transport exchanges it.
template <class Exec, class F>
void with_second_transport(const config::Input& input, const Communicator& communicator, TransportKind kind,
                           const F& f) {
  if constexpr (!is_host<Exec>)
    if (kind != TransportKind::host) return f(make_transport<Exec>(input, communicator, input.comm.collective, kind));
  f(make_transport<Kokkos::Serial>(input, communicator, input.comm.collective, TransportKind::host));
}

/// Why buckets of momenta cannot be averaged beside the backward pass; empty if they can.
inline std::string obstacle(const config::Input& input, const Communicator& communicator) {
  if (input.optimizer.clip > 0 && input.optimizer.clip_norm == ClipNorm::this_step)
    return "optimizer.clip needs the norm of the whole gradient (optimizer.clip_norm: last_step does not)";
  if (communicator.size() == 1) return "one rank sends nothing";
  // The loop's small messages are MPI's, whatever the transport is.
  if (!any_thread_may_call()) return "in this MPI library only one thread may call";
  return "";
}

template <class Exec>
GradientExchange<Exec>::GradientExchange(const config::Input& input, const Communicator& communicator,
                                         TransportKind kind, const TensorTable& tensors) {
  const std::size_t length = comm::bucket_length(input.comm.bucket_bytes), d = tensors.size();
  const bool possible = communicator.size() > 1 && (kind == TransportKind::nccl || any_thread_may_call());
  if (possible && input.comm.bucket_bytes > 0 && length < d)
    with_second_transport<Exec>(input, communicator, kind, [&](auto transport) {
      communicator.collectively(
          [&] { m_gradients = comm::make_bucket_average<Exec>(std::move(transport), length, input.comm.dense_type); });
    });

  if (const std::size_t bytes = input.comm.compressed_bucket_bytes; bytes > 0) {
    const std::string reason = obstacle(input, communicator);
    const std::size_t buckets = (d + comm::bucket_length(bytes) - 1) / comm::bucket_length(bytes);
    m_about_momenta =
        "averaged in " + std::to_string(buckets) + " bucket(s) " +
        (reason.empty() ? "during the backward pass, because each needs its own part of the gradient alone"
                        : "after the backward pass, because " + reason);
    if (reason.empty()) {
      using On = comm::ForSecondThread<Exec>;
      auto transport =
          make_transport<On>(input, communicator, input.comm.collective, is_host<Exec> ? TransportKind::host : kind);
      communicator.collectively(
          [&] { m_momenta = optim::make_overlapped_momentum_buckets<Exec>(input, tensors, std::move(transport)); });
    }
  }
  if (m_gradients || m_momenta)
    communicator.collectively([&] { m_overlapped = std::make_unique<comm::OverlappedAverage<Exec>>(); });
}

}  // namespace onebit::train
