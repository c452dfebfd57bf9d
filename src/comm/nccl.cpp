#include "comm/nccl.hpp"

#ifdef ONEBIT_NCCL
#include <nccl.h>
#endif

#include <algorithm>
#include <map>
#include <thread>

#include "base/error.hpp"
#include "comm/pairwise.hpp"

namespace onebit::comm {
namespace {

#ifdef ONEBIT_NCCL

void check(ncclResult_t result, const char* call) {
  if (result != ncclSuccess)
    throw RunError("NCCL", std::string(call) + " failed: " + ncclGetErrorString(result),
                   "set NCCL_DEBUG=WARN for its reasons, or use comm.transport host or device");
}

class NcclTransport final : public Transport<Kokkos::Cuda> {
public:
  explicit NcclTransport(const Communicator& communicator) : Transport(communicator) {
    m_device_support = comm::device_support<Kokkos::Cuda>();
    refuse_shared_gpus(communicator);
    ncclUniqueId id{};
    communicator.collectively([&] {
      if (m_rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    });
    const std::string bytes = communicator.broadcast(std::string(id.internal, sizeof id.internal), 0);
    std::copy(bytes.begin(), bytes.end(), id.internal);
    // Uses the GPU that Kokkos has chosen for this thread.
    communicator.collectively([&] { check(ncclCommInitRank(&m_comm, m_ranks, id, m_rank), "ncclCommInitRank"); });
  }
  ~NcclTransport() override {
    if (m_comm != nullptr) ncclCommDestroy(m_comm);
  }

  void all_to_all(const Kokkos::Cuda& exec, const Words& send, const Words& received) override {
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

  void all_gather(const Kokkos::Cuda& exec, const Words& send, const Words& received) override {
    const Region region("OneBit::comm::all_gather", waits_for_ranks);
    check(ncclAllGather(send.data(), received.data(), send.extent(0), ncclUint32, m_comm, exec.cuda_stream()),
          "ncclAllGather");
    wait(exec);
    count_all_gather(send.extent(0));
  }

  void allreduce(const Kokkos::Cuda& exec, const Vector<Kokkos::Cuda, float>& values) override {
    const Region region("OneBit::comm::allreduce", waits_for_ranks);
    check(
        ncclAllReduce(values.data(), values.data(), values.extent(0), ncclFloat32, ncclSum, m_comm, exec.cuda_stream()),
        "ncclAllReduce");
    wait(exec);
    count_allreduce(values.extent(0));
  }

  // ncclReduceScatter takes only equal ranges and adds in an order of its own.
  void reduce_scatter(const Kokkos::Cuda& exec, const Vector<Kokkos::Cuda, float>& values,
                      const std::vector<std::size_t>& begins) override {
    const Region region("OneBit::comm::reduce_scatter", waits_for_ranks);
    const std::size_t own = begins[m_rank + 1] - begins[m_rank];
    if (m_terms.extent(0) < m_ranks * own)
      m_terms = make_uninitialized<Kokkos::Cuda, float>("OneBit::comm::terms", m_ranks * own);
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

  void all_gather(const Kokkos::Cuda& exec, const Vector<Kokkos::Cuda, float>& values,
                  const std::vector<std::size_t>& begins) override {
    const Region region("OneBit::comm::all_gather", waits_for_ranks);
    const auto length = [&](int rank) { return begins[rank + 1] - begins[rank]; };
    group([&] {
      for (int rank = 0; rank < m_ranks; ++rank) {
        if (rank == m_rank) continue;
        send_to(exec, rank, values.data() + begins[m_rank], length(m_rank), ncclFloat32);
        receive_from(exec, rank, values.data() + begins[rank], length(rank), ncclFloat32);
      }
    });
    wait(exec);
    count_all_gather(length(m_rank));
  }

  // A send occupies the stream until its receiver is ready, so no kernel could run meanwhile.
  bool overlaps() const override { return false; }
  std::string name() const override { return "nccl"; }

private:
  static void refuse_shared_gpus(const Communicator& communicator) {
    int device = 0;
    cudaDeviceProp properties{};
    communicator.collectively([&] {
      if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess)
        throw RunError("CUDA", "the GPU of this rank does not tell its PCI address", "check it with nvidia-smi");
    });
    const double address = 65536.0 * properties.pciDomainID + 256.0 * properties.pciBusID + properties.pciDeviceID;
    const auto sharing = ranks_that_share(communicator.hosts(), communicator.gather(&address, 1));
    if (!sharing) return;
    throw InputError("comm.transport",
                     "NCCL takes one rank to a GPU, and ranks " + std::to_string(sharing->first) + " and " +
                         std::to_string(sharing->second) + " share one",
                     "run as many ranks on a host as it has GPUs, or use transport host or device");
  }

  /// Starts all calls together, so no order of sends and receives can deadlock.
  template <class Calls>
  static void group(const Calls& calls) {
    check(ncclGroupStart(), "ncclGroupStart");
    calls();
    check(ncclGroupEnd(), "ncclGroupEnd");
  }
  void send_to(const Kokkos::Cuda& exec, int rank, const void* data, std::size_t count, ncclDataType_t type) {
    if (count > 0) check(ncclSend(data, count, type, rank, m_comm, exec.cuda_stream()), "ncclSend");
  }
  void receive_from(const Kokkos::Cuda& exec, int rank, void* data, std::size_t count, ncclDataType_t type) {
    if (count > 0) check(ncclRecv(data, count, type, rank, m_comm, exec.cuda_stream()), "ncclRecv");
  }

  /// Waits for the stream, and asks NCCL for errors meanwhile: if a rank or a link is lost, the stream never ends.
  void wait(const Kokkos::Cuda& exec) {
    while (cudaStreamQuery(exec.cuda_stream()) == cudaErrorNotReady) {
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
  Vector<Kokkos::Cuda, float> m_terms;  ///< (ranks * own range) terms of a sum
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

std::optional<std::pair<int, int>> ranks_that_share(const std::vector<int>& hosts, const std::vector<double>& gpus) {
  std::map<std::pair<int, double>, int> first_rank;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [known, is_first] = first_rank.try_emplace({hosts[rank], gpus[rank]}, static_cast<int>(rank));
    if (!is_first) return std::make_pair(known->second, static_cast<int>(rank));
  }
  return std::nullopt;
}

template <class Exec>
std::unique_ptr<Transport<Exec>> make_nccl_transport([[maybe_unused]] const Communicator& communicator) {
  if constexpr (is_host<Exec>) {
    throw InputError(
        "comm.transport",
        "NCCL exchanges the memory of GPUs, and backend " + std::string(BackendName<Exec>::value) + " has none",
        "set run.backend to cuda, or use transport auto, host or device");
  } else {
#ifdef ONEBIT_NCCL
    return std::make_unique<NcclTransport>(communicator);
#else
    throw InputError("comm.transport", "this build has no NCCL",
                     "use transport auto, host or device, or build where CMake finds NCCL (docs/guide/build.md)");
#endif
  }
}

#define ONEBIT_INSTANTIATE(Exec) \
  template std::unique_ptr<Transport<Exec>> make_nccl_transport<Exec>(const Communicator&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
