/// \file collective.cpp
/// `onebit bench collective`: the averages, their check and their times. collective_report.hpp has the output.

#include "bench/bench.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "base/error.hpp"
#include "base/memory.hpp"
#include "base/parallel.hpp"
#include "bench/collective_report.hpp"
#include "bench/measurement.hpp"
#include "comm/allreduce.hpp"
#include "comm/hierarchical.hpp"
#include "comm/reference.hpp"
#include "compress/layout.hpp"
#include "optim/compression.hpp"

namespace onebit::bench {
namespace {

/// Element j of a rank's vector: small integers, whose sum is exact in any order.
KOKKOS_INLINE_FUNCTION float element(int rank, std::size_t j) {
  return static_cast<float>((j * 7 + static_cast<std::size_t>(rank) * 13 + j / 1000) % 33) - 16.0f;
}

/// An average, and its result for the vectors of `element`.
template <class Exec>
struct Average {
  std::function<void(const Vector<Exec, float>&, PhaseTimes&)> run;
  std::function<std::vector<float>()> oracle;
  comm::Transport<Exec>* transport;  ///< counts its bytes
  double more_bytes = 0;             ///< of a call without the transport: the volume of a ring
};

std::vector<float> dense_oracle(std::size_t length, int ranks) {
  std::vector<float> mean(length);
  for (std::size_t j = 0; j < length; ++j) {
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += element(rank, j);
    mean[j] = sum / static_cast<float>(ranks);
  }
  return mean;
}

std::vector<std::vector<float>> vectors_of_all(std::size_t length, int ranks) {
  std::vector<std::vector<float>> vectors(ranks, std::vector<float>(length));
  for (int rank = 0; rank < ranks; ++rank)
    for (std::size_t j = 0; j < length; ++j) vectors[rank][j] = element(rank, j);
  return vectors;
}

std::vector<float> compressed_oracle(std::size_t length, int ranks) {
  return comm::CompressedAllreduceRef(compress::LayoutRef(length, ranks, compress::Grouping::vector),
                                      compress::Options())(vectors_of_all(length, ranks));
}

/// The ranks of each host. \param hosts (ranks) number of each rank's host
std::vector<std::vector<int>> hosts_with_ranks(const std::vector<int>& hosts) {
  std::vector<std::vector<int>> ranks;
  for (const auto& [host, its_ranks] : comm::ranks_by_host(hosts)) ranks.push_back(its_ranks);
  return ranks;
}

/// \param hosts (ranks) number of what averages together in float: of each rank's host, or its own
std::vector<float> bf16_oracle(std::size_t length, const std::vector<int>& hosts) {
  return comm::DenseAverageRef{{DenseType::bf16}, hosts_with_ranks(hosts)}(
      vectors_of_all(length, static_cast<int>(hosts.size())), 0);
}

/// \param hosts (ranks) number of each rank's host
std::vector<float> hierarchical_oracle(std::size_t length, const std::vector<int>& hosts) {
  const std::vector<std::vector<int>> ranks = hosts_with_ranks(hosts);
  const int local = static_cast<int>(ranks.front().size()), across = static_cast<int>(ranks.size());
  const std::vector<std::size_t> begins = compress::equal_chunks(length, local);
  std::vector<compress::LayoutRef> shards;
  for (int shard = 0; shard < local; ++shard)
    shards.emplace_back(begins[shard + 1] - begins[shard], across, compress::Grouping::vector);
  return comm::HierarchicalAllreduceRef(shards, ranks,
                                        compress::Options())(vectors_of_all(length, static_cast<int>(hosts.size())));
}

/// The two halves of an allreduce as the library does them: MPI_Reduce_scatter and MPI_Allgatherv on host memory.
/// Counts and offsets fit an int, because the keys of section `bench` do.
template <class Exec>
void mpi_reduce_scatter(const Communicator& communicator, const Vector<Exec, float>& x) {
  const int ranks = communicator.size();
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
  const std::vector<std::size_t> begins = compress::equal_chunks(x.extent(0), ranks);
  std::vector<int> counts, places;
  for (int rank = 0; rank < ranks; ++rank) {
    counts.push_back(static_cast<int>(begins[rank + 1] - begins[rank]));
    places.push_back(static_cast<int>(begins[rank]));
  }
  std::vector<float> own(counts[communicator.rank()]);
  const Region region("OneBit::bench::mpi_reduce_scatter", waits_for_ranks);
  MPI_Reduce_scatter(host.data(), own.data(), counts.data(), MPI_FLOAT, MPI_SUM, communicator.get());
  for (float& element : own) element /= static_cast<float>(ranks);
  MPI_Allgatherv(own.data(), counts[communicator.rank()], MPI_FLOAT, host.data(), counts.data(), places.data(),
                 MPI_FLOAT, communicator.get());
  Kokkos::deep_copy(x, host);
}

/// Makes the averages of `bench.collectives`: by the library's collectives (mpi_), pairwise messages (pairwise_),
/// hierarchically (hierarchical_), or by NCCL (nccl_).
template <class Exec>
class Averages {
public:
  Averages(const Exec& exec, const config::Input& input, const Communicator& communicator)
      : m_exec(exec), m_communicator(communicator), m_hosts(communicator.hosts()) {
    if (input.comm.transport == TransportKind::nccl)
      throw InputError(input.where("comm.transport"), "each name in bench.collectives chooses its own transport",
                       "put nccl_allreduce and nccl_compressed into bench.collectives, and leave comm.transport out");
    const TransportKind kind = input.comm.transport;
    const comm::Exchange pairwise{static_cast<std::size_t>(input.comm.message_bytes)};
    constexpr std::size_t largest = std::numeric_limits<int>::max();
    m_transports["mpi"] = comm::make_transport<Exec>(kind, communicator, largest);
    m_transports["pairwise"] = comm::make_transport<Exec>(kind, communicator, largest, pairwise);
    const auto& names = input.bench.collectives;
    const auto wants = [&](const char* way) {
      return std::any_of(names.begin(), names.end(), [&](const auto& name) { return prefix(name) == way; });
    };
    if (wants("nccl")) m_transports["nccl"] = comm::make_transport<Exec>(TransportKind::nccl, communicator);
    if (wants("hierarchical"))
      m_transports["hierarchical"] = comm::make_hierarchical_transport<Exec>(kind, communicator, m_hosts, pairwise);
  }

  Average<Exec> operator()(const std::string& name, std::size_t length) {
    const int ranks = m_communicator.size();
    comm::Transport<Exec>* const transport = m_transports.at(prefix(name)).get();
    const Exec exec = m_exec;
    if (name == "mpi_reduce_scatter")
      return {[=, communicator = &m_communicator](const Vector<Exec, float>& x, PhaseTimes& times) {
                const Stopwatch watch;
                mpi_reduce_scatter<Exec>(*communicator, x);
                times.add(Phase::allreduce, watch.seconds());
              },
              [=] { return dense_oracle(length, ranks); }, transport, 8.0 * (ranks - 1) / ranks * length};
    if (name == prefix(name) + "_allreduce")
      return {[=](const Vector<Exec, float>& x, PhaseTimes& times) { comm::average(exec, *transport, x, times); },
              [=] { return dense_oracle(length, ranks); }, transport};
    if (name == prefix(name) + "_bf16") {
      std::vector<int> hosts = m_hosts;
      if (transport->hosts() == nullptr) std::iota(hosts.begin(), hosts.end(), 0);
      const auto average = std::make_shared<comm::DenseAverage<Exec>>(*transport, comm::DenseOptions{DenseType::bf16});
      return {[=](const Vector<Exec, float>& x, PhaseTimes& times) { (*average)(exec, x, times); },
              [=] { return bf16_oracle(length, hosts); }, transport};
    }
    const auto run = [=](const std::shared_ptr<comm::CompressedAllreduce<Exec>>& allreduce) {
      return [=](const Vector<Exec, float>& x, PhaseTimes& times) { (*allreduce)(exec, x, times); };
    };
    using Compressed = comm::CompressedAllreduce<Exec>;
    if (const comm::Hosts<Exec>* const hosts = transport->hosts()) {
      const std::vector<std::size_t> begins = compress::equal_chunks(length, hosts->local.ranks());
      std::vector<compress::Layout> shards;
      for (std::size_t shard = 0; shard + 1 < begins.size(); ++shard)
        shards.emplace_back(begins[shard + 1] - begins[shard], hosts->across.ranks(), compress::Grouping::vector);
      return {run(std::make_shared<Compressed>(*hosts, shards, compress::Options())),
              [=, on = m_hosts] { return hierarchical_oracle(length, on); }, transport};
    }
    const compress::Layout layout(length, ranks, compress::Grouping::vector);
    return {run(std::make_shared<Compressed>(*transport, layout, compress::Options())),
            [=] { return compressed_oracle(length, ranks); }, transport};
  }

private:
  static std::string prefix(const std::string& name) { return name.substr(0, name.find('_')); }

  Exec m_exec;
  const Communicator& m_communicator;
  std::vector<int> m_hosts;  ///< (ranks) number of each rank's host
  std::map<std::string, std::unique_ptr<comm::Transport<Exec>>> m_transports;
};

template <class Exec>
void fill(const Exec& exec, int rank, const Vector<Exec, float>& x) {
  for_each(
      exec, "OneBit::bench::fill", x.extent(0), KOKKOS_LAMBDA(std::size_t j) { x(j) = element(rank, j); });
  fence(exec, "OneBit::bench::fill");
}

/// Runs an average once and compares its result with the oracle.
/// \returns the number of elements over all ranks \throws WrongResult for a wrong one
template <class Exec>
double check(const Exec& exec, const Communicator& communicator, const std::string& name, const Average<Exec>& average,
             const Vector<Exec, float>& x) {
  PhaseTimes times;
  fill(exec, communicator.rank(), x);
  average.run(x, times);
  const Region region("OneBit::bench::check");
  const std::vector<float> right = average.oracle();
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
  double counts[2] = {static_cast<double>(right.size()), 0};
  for (std::size_t j = 0; j < right.size(); ++j) counts[1] += host(j) != right[j];
  communicator.sum(counts, 2);
  if (counts[1] > 0)
    throw WrongResult(name + " of " + std::to_string(right.size()) +
                      " parameters: " + std::to_string(static_cast<long>(counts[1])) +
                      " elements are wrong, so it is not timed\n  remedy: report it with the MPI library's version and "
                      "this input");
  return counts[0];
}

template <class Exec>
Measurement measure(const Exec& exec, const config::Input& input, const Communicator& communicator,
                    const Average<Exec>& average, const Vector<Exec, float>& x) {
  const Region region("OneBit::bench::measure");
  const int repetitions = input.bench.repetitions;
  std::vector<double> seconds;
  PhaseTimes times, unused;
  std::uint64_t bytes = 0;
  for (int repetition = -input.bench.warmup; repetition < repetitions; ++repetition) {
    fill(exec, communicator.rank(), x);
    communicator.barrier();
    const std::uint64_t before = average.transport->traffic().total();
    const Stopwatch watch;
    average.run(x, repetition < 0 ? unused : times);
    if (repetition >= 0) seconds.push_back(watch.seconds());
    bytes = average.transport->traffic().total() - before + static_cast<std::uint64_t>(average.more_bytes);
  }
  Measurement result;
  result.seconds = communicator.gather(seconds.data(), repetitions);
  std::vector<double> others = {static_cast<double>(bytes)};
  for (std::size_t phase = 0; phase < phase_names.size(); ++phase) others.push_back(times[static_cast<Phase>(phase)]);
  others = slowest_rank(communicator, others);
  result.wire_bytes = others[0];
  for (std::size_t phase = 0; phase < phase_names.size(); ++phase)
    result.phases.add(static_cast<Phase>(phase), others[phase + 1] / repetitions);
  return result;
}

}  // namespace

template <class Exec>
FiguresOfMerit collective(const Exec& exec, const config::Input& input, const Communicator& communicator) {
  CollectiveReport report(input, communicator, BackendName<Exec>::value);
  Averages<Exec> averages(exec, input, communicator);
  for (std::int64_t length = input.bench.smallest; length <= input.bench.largest; length *= input.bench.factor) {
    const std::size_t d = static_cast<std::size_t>(length);
    Vector<Exec, float> x;
    communicator.collectively([&] {
      check_length<Exec>(d);
      x = make_uninitialized<Exec, float>("OneBit::bench::vector", d);
    });
    for (const std::string& name : input.bench.collectives) {
      Average<Exec> average;
      communicator.collectively([&] { average = averages(name, d); });
      const double checked = check(exec, communicator, name, average, x);
      report.add(name, d, checked, measure(exec, input, communicator, average, x));
    }
  }
  return report.finish();
}

#define ONEBIT_INSTANTIATE(Exec) \
  template FiguresOfMerit collective(const Exec&, const config::Input&, const Communicator&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::bench
