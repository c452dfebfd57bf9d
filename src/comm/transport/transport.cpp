/// \file transport.cpp
/// See transport.hpp. If MPI cannot take the memory of `Exec`, a call copies to a staging buffer on the host,
/// communicates there and copies back.

#include "comm/transport/transport.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <type_traits>

#include "base/error.hpp"
#include "base/system/crash_message.hpp"
#include "comm/transport/combined/grid.hpp"
#include "comm/transport/device_mpi.hpp"
#include "comm/transport/nccl.hpp"
#include "comm/transport/pairwise.hpp"
#include "comm/transport/probe.hpp"

namespace onebit::comm {
namespace {

/// Host memory between device memory and MPI. It grows to the largest size asked for.
template <class Exec>
class Staging {
public:
  using Bytes = Kokkos::View<char*, StagingSpace<Exec>>;

  char* reserve(std::size_t bytes) {
    if (m_bytes.extent(0) < bytes)
      m_bytes = Bytes(Kokkos::view_alloc("OneBit::comm::staging", Kokkos::WithoutInitializing), bytes);
    return m_bytes.data();
  }
  template <class T>
  T* from_device(const Exec& exec, const Vector<Exec, T>& values) {
    reserve(values.extent(0) * sizeof(T));
    Kokkos::deep_copy(exec, view<T>(values.extent(0)), values);
    fence(exec, "OneBit::comm::staged_for_send");
    return reinterpret_cast<T*>(m_bytes.data());
  }
  template <class T>
  void to_device(const Exec& exec, const Vector<Exec, T>& values) {
    Kokkos::deep_copy(exec, values, view<T>(values.extent(0)));
    fence(exec, "OneBit::comm::unstaged");
  }

private:
  template <class T>
  auto view(std::size_t length) const {
    return Kokkos::View<T*, Kokkos::LayoutRight, StagingSpace<Exec>, Kokkos::MemoryUnmanaged>(
        reinterpret_cast<T*>(m_bytes.data()), length);
  }
  Bytes m_bytes;
};

template <class Exec>
class MpiTransport : public Transport<Exec> {
public:
  using Words = typename Transport<Exec>::Words;

  MpiTransport(bool host, const DeviceSupport& support, const Communicator& communicator, Exchange exchange)
      : Transport<Exec>(communicator),
        m_kind(host ? TransportKind::host : TransportKind::device),
        m_staged(is_host<Exec> ? exchange.stages_host : host),
        m_communicator(communicator),
        m_largest_count(exchange.largest_count),
        m_pairwise(exchange.message_bytes > 0),
        m_message_bytes(m_pairwise ? exchange.message_bytes : default_message_bytes),
        m_pairwise_sum(communicator, m_message_bytes),
        m_pairwise_sum_on_host(communicator, m_message_bytes) {
    this->m_device_support = support;
  }

  void all_to_all(const Exec& exec, const Words& send, const Words& received) override {
    const Region region("OneBit::comm::all_to_all", waits_for_ranks);
    const std::size_t words = send.extent(0) / this->m_ranks;
    exchange(exec, send, received, [&](const std::uint32_t* from, std::uint32_t* to) {
      const std::size_t bytes = words * sizeof *from;
      if (in_messages(words)) return exchange_messages(m_communicator, m_message_bytes, from, bytes, to, bytes);
      const int count = static_cast<int>(words);
      MPI_Alltoall(from, count, MPI_UINT32_T, to, count, MPI_UINT32_T, m_communicator.get());
    });
    this->count_all_to_all(send.extent(0));
  }

  void all_gather(const Exec& exec, const Words& send, const Words& received) override {
    const Region region("OneBit::comm::all_gather", waits_for_ranks);
    const std::size_t words = send.extent(0);
    exchange(exec, send, received, [&](const std::uint32_t* from, std::uint32_t* to) {
      const std::size_t bytes = words * sizeof *from;
      if (in_messages(words)) return exchange_messages(m_communicator, m_message_bytes, from, 0, to, bytes);
      const int count = static_cast<int>(words);
      MPI_Allgather(from, count, MPI_UINT32_T, to, count, MPI_UINT32_T, m_communicator.get());
    });
    this->count_all_gather(words);
  }

  void allreduce(const Exec& exec, const Vector<Exec, float>& values) override {
    const Region region("OneBit::comm::allreduce", waits_for_ranks);
    const std::size_t length = values.extent(0);
    in_place(exec, values, [&](const auto& space, auto& pairwise_sum, float* data) {
      if (m_pairwise) return pairwise_sum(space, data, length);
      for (std::size_t begin = 0; begin < length; begin += m_largest_count) {
        const int count = static_cast<int>(std::min(m_largest_count, length - begin));
        MPI_Allreduce(MPI_IN_PLACE, data + begin, count, MPI_FLOAT, MPI_SUM, m_communicator.get());
      }
    });
    this->count_allreduce(length);
  }

  void reduce_scatter(const Exec& exec, const Vector<Exec, float>& values,
                      const std::vector<std::size_t>& begins) override {
    const Region region("OneBit::comm::reduce_scatter", waits_for_ranks);
    in_place(exec, values,
             [&](const auto& space, auto& pairwise_sum, float* data) { pairwise_sum.scatter(space, data, begins); });
    this->count_reduce_scatter(begins);
  }

  void exchange_ranges(const Exec& exec, const Vector<Exec, float>& values, const std::vector<Range>& sent,
                       const std::vector<Range>& received, std::uint64_t Traffic::*counter) override {
    in_place(exec, values, [&](const auto&, const auto&, float* data) {
      comm::exchange_ranges(m_communicator, m_message_bytes, data, sent, received);
    });
    this->count_ranges(sent, counter);
  }

  void free_sums() override {
    m_pairwise_sum.free_terms();
    m_pairwise_sum_on_host.free_terms();
  }

  bool overlaps() const override { return m_pairwise; }

  std::unique_ptr<Transfer<Exec>> begin_transfer(const Words& received, const std::vector<Range>& ranges,
                                                 std::uint64_t Traffic::*counter) override {
    auto unused =
        std::find_if(m_memory.begin(), m_memory.end(), [](const auto& kept) { return kept.use_count() == 1; });
    if (unused == m_memory.end()) unused = m_memory.insert(unused, std::make_shared<TransferMemory<Exec>>());
    m_last_tag = m_last_tag % most_tags + 1;  // 0 is that of all other messages
    return std::make_unique<Transfer<Exec>>(m_communicator, m_message_bytes, m_last_tag, m_staged, *unused, received,
                                            ranges, this->m_traffic.*counter);
  }

  TransportKind kind() const override { return m_kind; }

private:
  using OnHost = std::conditional_t<is_host<Exec>, Exec, HostExec>;
  static constexpr std::size_t default_message_bytes = std::size_t{1} << 20;
  /// Far more than transfers are under way at once; every MPI library has as many tags.
  static constexpr int most_tags = 1 << 10;

  /// Whether messages go in parts between pairs of ranks: few sites have MPI 4, whose collectives take any count.
  bool in_messages(std::size_t words) const { return m_pairwise || words > m_largest_count; }
  /// call(send, received) on memory that MPI takes.
  template <class Call>
  void exchange(const Exec& exec, const Words& send, const Words& received, const Call& call) {
    if (!m_staged) {
      fence(exec, "OneBit::comm::before_exchange");
      return call(send.data(), received.data());
    }
    const std::uint32_t* const from = m_send.from_device(exec, send);
    char* const to = m_received.reserve(received.extent(0) * sizeof(std::uint32_t));
    call(from, reinterpret_cast<std::uint32_t*>(to));
    m_received.to_device(exec, received);
  }
  /// call(space, sum, values) on memory that MPI takes, with the execution space and the pairwise sum of that memory.
  template <class Call>
  void in_place(const Exec& exec, const Vector<Exec, float>& values, const Call& call) {
    if (!m_staged) {
      fence(exec, "OneBit::comm::before_exchange");
      return call(exec, m_pairwise_sum, values.data());
    }
    call(OnHost(), m_pairwise_sum_on_host, m_send.from_device(exec, values));
    m_send.to_device(exec, values);
  }

  TransportKind m_kind;
  bool m_staged;
  const Communicator& m_communicator;
  std::size_t m_largest_count;
  bool m_pairwise;  ///< false: MPI's collectives, except for reduce-scatter and for ranges of one vector
  std::size_t m_message_bytes;
  PairwiseSum<Exec> m_pairwise_sum;
  PairwiseSum<OnHost> m_pairwise_sum_on_host;  ///< for staged vectors
  Staging<Exec> m_send, m_received;
  std::vector<std::shared_ptr<TransferMemory<Exec>>> m_memory;  ///< one for each transfer that was under way at a time
  int m_last_tag = 0;
};

}  // namespace

DeviceSupport without_pools(DeviceSupport said, bool from_pool) {
  if (!said.supported || !from_pool) return said;
  return {false, said.evidence +
                     ", but Kokkos allocates by cudaMallocAsync or hipMallocAsync, whose memory other processes cannot "
                     "map; build Kokkos with -DKokkos_ENABLE_IMPL_CUDA_MALLOC_ASYNC=OFF (HIP: "
                     "-DKokkos_ENABLE_IMPL_HIP_MALLOC_ASYNC=OFF)"};
}

template <class Exec>
DeviceSupport device_support() {
  if constexpr (is_host<Exec>) {
    return {true, "host memory"};
  } else {
    return without_pools(said_by(this_mpi_library()), allocates_from_pool);
  }
}

bool is_tried(TransportKind kind, const DeviceSupport& said, bool from_pool) {
  if (kind == TransportKind::device) return !from_pool;
  return kind == TransportKind::automatic && said.supported;
}

template <class Exec>
DeviceSupport try_device_memory(const Communicator& communicator, Exchange exchange) {
  const DeviceSupport said = device_support<Exec>();
  const Communicator own(communicator.get());
  MpiTransport<Exec> transport(false, said, own, exchange);
  std::string fault;
  {
    const MpiErrors errors(own);
    const CrashMessage message(
        "error: comm.transport: MPI crashed, or did not answer within a minute, when it was handed device memory\n"
        "  remedy: set comm.transport to host, or run with a GPU-aware MPI that works here (docs/guide/build.md)\n",
        std::chrono::seconds(60));
    fault = fault_of(Exec(), own, transport, errors);
  }
  return {fault.empty(), said.evidence + (fault.empty() ? ", and exchanges came out right" : ", but " + fault)};
}

template <class Exec>
std::unique_ptr<Transport<Exec>> make_transport(TransportKind kind, const Communicator& communicator,
                                                Exchange exchange) {
  if (kind == TransportKind::nccl) return make_nccl_transport<Exec>(communicator);
  if (exchange.grid) return make_grid_transport<Exec>(kind, communicator, exchange);
  DeviceSupport support = device_support<Exec>();
  if (!is_host<Exec> && is_tried(kind, support, allocates_from_pool))
    support = try_device_memory<Exec>(communicator, exchange);
  if (kind == TransportKind::device && !support.supported)
    throw InputError("comm.transport", "MPI cannot take device memory: " + support.evidence,
                     "use transport host or auto, or run with a GPU-aware MPI (docs/guide/build.md)");
  // On a host backend both names mean the same transport.
  const bool host = kind == TransportKind::host || !support.supported;
  return std::make_unique<MpiTransport<Exec>>(host, support, communicator, exchange);
}

#define ONEBIT_INSTANTIATE(Exec)                                                 \
  template DeviceSupport device_support<Exec>();                                 \
  template DeviceSupport try_device_memory<Exec>(const Communicator&, Exchange); \
  template std::unique_ptr<Transport<Exec>> make_transport(TransportKind, const Communicator&, Exchange);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::comm
