#include "train/gradient_exchange.hpp"

#include <utility>

#include "optim/compression.hpp"
#include "train/averaging.hpp"

namespace onebit::train {
namespace {

/// Calls f with the transport of a second thread: in device memory where the run's transport exchanges it.
template <class Exec, class F>
void with_second_transport(const config::Input& input, const Communicator& communicator, TransportKind kind,
                           const F& f) {
  if constexpr (!is_host<Exec>)
    if (kind != TransportKind::host) return f(make_transport<Exec>(input, communicator, input.comm.collective, kind));
  f(make_transport<Kokkos::Serial>(input, communicator, input.comm.collective, TransportKind::host));
}

/// Why buckets of momenta cannot be averaged beside the backward pass; empty if they can.
std::string obstacle(const config::Input& input, const Communicator& communicator) {
  if (input.optimizer.clip > 0 && input.optimizer.clip_norm == ClipNorm::this_step)
    return "optimizer.clip needs the norm of the whole gradient (optimizer.clip_norm: last_step does not)";
  if (communicator.size() == 1) return "one rank sends nothing";
  // The loop's small messages are MPI's, whatever the transport is.
  if (!any_thread_may_call()) return "in this MPI library only one thread may call";
  return "";
}

}  // namespace

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

#define ONEBIT_INSTANTIATE(Exec) template class GradientExchange<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::train
