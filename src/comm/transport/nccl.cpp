#include "comm/transport/nccl.hpp"

#if defined(ONEBIT_NCCL) && defined(KOKKOS_ENABLE_HIP)
#include <rccl/rccl.h>
#elif defined(ONEBIT_NCCL)
#include <nccl.h>
#endif

#include <algorithm>
#include <exception>
#include <thread>

#include "base/device/gpus.hpp"
#include "base/error.hpp"
#include "comm/transport/pairwise.hpp"

namespace onebit::comm {
namespace {

#ifdef ONEBIT_NCCL

void check(ncclResult_t result, const char* call) {
  if (result != ncclSuccess)
    throw RunError("NCCL", std::string(call) + " failed: " + ncclGetErrorString(result),
                   "set NCCL_DEBUG=WARN for its reasons, or use comm.transport host or device");
}

class NcclTransport final : public Transport<GpuExec> {
public:
  explicit NcclTransport(const Communicator& communicator) : Transport(communicator) {
    m_device_support = comm::device_support<GpuExec>();
    one_rank_to_a_gpu(lowest_sharers<GpuExec>(communicator));
    ncclUniqueId id{};
    communicator.collectively([&] {
      if (m_rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    const std::string bytes = communicator.broadcast(std::string(id.internal, sizeof id.internal), 0);
    std::copy(bytes.begin(), bytes.end(), id.internal);
    // Uses the GPU that Kokkos has chosen for this thread.
    communicator.collectively([&] { check(ncclCommInitRank(&m_comm, m_ranks, id, m_rank), "ncclCommInitRank"); });
  }
  /// ncclCommDestroy waits for other ranks. While an exception unwinds they may never come.
  ~NcclTransport() override {
    if (m_comm == nullptr) return;
    std::uncaught_exceptions() > m_exceptions ? ncclCommAbort(m_comm) : ncclCommDestroy(m_comm);
  }

  void all_to_all(const GpuExec& exec, const Words& send, const Words& received) override {
    const Region region("OneBit::comm::all_to_all", waits_for_ranks);
    const std::size_t words = send.extent(0) / m_ranks;
    group([&] {
      for (int rank = 0; rank < m_ranks; ++rank) {
        send_to(exec, rank, send.data() + rank * words, words, ncclUint32);
        receive_from(exec, rank, received.data() + rank * words, words, ncclUint32);
      }
    });
    wait(exec);
    count_all_to_all(send.extent(0));
  }

  void all_gather(const GpuExec& exec, const Words& send, const Words& received) override {
    const Region region("OneBit::comm::all_gather", waits_for_ranks);
    check(ncclAllGather(send.data(), received.data(), send.extent(0), ncclUint32, m_comm, stream_of(exec)),
          "ncclAllGather");
    wait(exec);
    count_all_gather(send.extent(0));
  }

  void allreduce(const GpuExec& exec, const Vector<GpuExec, float>& values) override {
    const Region region("OneBit::comm::allreduce", waits_for_ranks);
    check(ncclAllReduce(values.data(), values.data(), values.extent(0), ncclFloat32, ncclSum, m_comm, stream_of(exec)),
          "ncclAllReduce");
    wait(exec);
    count_allreduce(values.extent(0));
  }

  // ncclReduceScatter takes only equal ranges and adds in an order of its own.
  void reduce_scatter(const GpuExec& exec, const Vector<GpuExec, float>& values,
                      const std::vector<std::size_t>& begins) override {
    const Region region("OneBit::comm::reduce_scatter", waits_for_ranks);
    const std::size_t own = begins[m_rank + 1] - begins[m_rank];
    if (m_terms.extent(0) < m_ranks * own)
      m_terms = make_uninitialized<GpuExec, float>("OneBit::comm::terms", m_ranks * own);
    group([&] {
      for (int rank = 0; rank < m_ranks; ++rank) {
        if (rank == m_rank) continue;
        send_to(exec, rank, values.data() + begins[rank], begins[rank + 1] - begins[rank], ncclFloat32);
        receive_from(exec, rank, m_terms.data() + rank * own, own, ncclFloat32);
      }
    });
    sum_terms(exec, m_ranks, m_rank, m_terms.data(), own, own, values.data() + begins[m_rank]);
    wait(exec);
    count_reduce_scatter(begins);
  }

  void exchange_ranges(const GpuExec& exec, const Vector<GpuExec, float>& values, const std::vector<Range>& sent,
                       const std::vector<Range>& received, std::uint64_t Traffic::*counter) override {
    group([&] {
      for (int rank = 0; rank < m_ranks; ++rank) {
        if (rank == m_rank) continue;
        send_to(exec, rank, values.data() + sent[rank].begin, sent[rank].length(), ncclFloat32);
        receive_from(exec, rank, values.data() + received[rank].begin, received[rank].length(), ncclFloat32);
      }
    });
    wait(exec);
    count_ranges(sent, counter);
  }

  void free_sums() override { m_terms = {}; }

  // A send occupies the stream until its receiver is ready, so no kernel could run meanwhile.
  bool overlaps() const override { return false; }
  TransportKind kind() const override { return TransportKind::nccl; }

private:
  /// Starts all calls together, so no order of sends and receives can deadlock.
  template <class Calls>
  static void group(const Calls& calls) {
    check(ncclGroupStart(), "ncclGroupStart");
    calls();
    check(ncclGroupEnd(), "ncclGroupEnd");
  }
  void send_to(const GpuExec& exec, int rank, const void* data, std::size_t count, ncclDataType_t type) {
    if (count > 0) check(ncclSend(data, count, type, rank, m_comm, stream_of(exec)), "ncclSend");
  }
  void receive_from(const GpuExec& exec, int rank, void* data, std::size_t count, ncclDataType_t type) {
    if (count > 0) check(ncclRecv(data, count, type, rank, m_comm, stream_of(exec)), "ncclRecv");
  }

  /// Waits for the stream, and asks NCCL for errors meanwhile: if a rank or a link is lost, the stream never ends.
  void wait(const GpuExec& exec) {
    check_launches<GpuExec>("OneBit::comm::nccl");  // a kernel that was not launched
    while (ONEBIT_GPU(StreamQuery)(stream_of(exec)) == gpu::not_ready) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(m_comm, &state), "ncclCommGetAsyncError");
      if (state != ncclSuccess) {
        ncclCommAbort(m_comm);
        m_comm = nullptr;
        check(state, "an exchange");
      }
      std::this_thread::yield();
    }
    fence(exec, "OneBit::comm::nccl");  // reports errors of kernels
  }

  ncclComm_t m_comm = nullptr;
  int m_exceptions = std::uncaught_exceptions();  ///< when it was made
  Vector<GpuExec, float> m_terms;                 ///< (ranks * own range) terms of a sum
};

#endif

}  // namespace

std::string nccl_version() {
#ifdef ONEBIT_NCCL
  return std::to_string(NCCL_MAJOR) + "." + std::to_string(NCCL_MINOR) + "." + std::to_string(NCCL_PATCH);
#else
  return "";
#endif
}

void one_rank_to_a_gpu(const std::vector<int>& sharers) {
  for (int rank = 0; rank < static_cast<int>(sharers.size()); ++rank)
    if (sharers[rank] != rank)
      throw InputError("comm.transport",
                       "NCCL takes one rank to a GPU, and ranks " + std::to_string(sharers[rank]) + " and " +
                           std::to_string(rank) + " share one",
                       "run as many ranks on a host as it has GPUs, or use transport host or device");
}

template <class Exec>
std::unique_ptr<Transport<Exec>> make_nccl_transport([[maybe_unused]] const Communicator& communicator) {
  if constexpr (is_host<Exec>) {
    throw InputError(
        "comm.transport",
        "NCCL exchanges the memory of GPUs, and backend " + std::string(BackendName<Exec>::value) + " has none",
        "set run.backend to cuda or hip, or use transport auto, host or device");
  } else {
#ifdef ONEBIT_NCCL
    return std::make_unique<NcclTransport>(communicator);
#else
    throw InputError("comm.transport", "this build has no NCCL",
                     "use transport auto, host or device, or build where CMake finds NCCL or, for HIP, RCCL "
                     "(docs/guide/build.md)");
#endif
  }
}

#define ONEBIT_INSTANTIATE(Exec) \
  template std::unique_ptr<Transport<Exec>> make_nccl_transport<Exec>(const Communicator&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
