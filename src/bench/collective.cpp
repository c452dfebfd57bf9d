/// \file collective.cpp
/// `onebit bench collective`: the averages, their check, their times, and the output.

#include "bench/bench.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/device/memory.hpp"
#include "base/device/parallel.hpp"
#include "base/error.hpp"
#include "base/float_bits.hpp"
#include "base/hash.hpp"
#include "base/system/build_info.hpp"
#include "base/timer.hpp"
#include "bench/measurement.hpp"
#include "bench/tables.hpp"
#include "comm/compressed_average.hpp"
#include "comm/reference.hpp"
#include "comm/transport/combined/hierarchical.hpp"
#include "compress/layout.hpp"
#include "config/input.hpp"
#include "io/csv.hpp"
#include "io/figures.hpp"

namespace onebit::bench {
namespace {

/// Element j of a rank's vector: small integers, whose sum is exact in any order.
KOKKOS_INLINE_FUNCTION float element(int rank, std::size_t j) {
  return static_cast<float>((j * 7 + static_cast<std::size_t>(rank) * 13 + j / 1000) % 33) - 16.0f;
}

/// What a range of an average must be.
struct Expected {
  std::size_t begin = 0;
  std::vector<float> values;
};

/// An average, and its result for the vectors of `element`.
template <class Exec>
struct Average {
  std::function<void(const Vector<Exec, float>&, PhaseTimes&)> run;
  /// Collective. The rank's own range of the result, by plain loops. The ranges of all ranks are the whole vector, so
  /// that a rank computes and keeps no more than a few vectors, however many ranks there are.
  std::function<Expected()> oracle;
  comm::Transport<Exec>* transport;  ///< counts its bytes
  double more_bytes = 0;             ///< of a call without the transport: the volume of a ring
};

/// Elements [begin, end) of the vectors of some ranks.
std::vector<std::vector<float>> vectors_of(const std::vector<int>& ranks, std::size_t begin, std::size_t end) {
  std::vector<std::vector<float>> vectors;
  for (const int rank : ranks) {
    vectors.emplace_back();
    for (std::size_t j = begin; j < end; ++j) vectors.back().push_back(element(rank, j));
  }
  return vectors;
}

std::vector<int> all_ranks(int ranks) {
  std::vector<int> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// This rank's range of equal parts.
std::pair<std::size_t, std::size_t> own_range(const Communicator& communicator, std::size_t length) {
  const std::vector<std::size_t> begins = compress::equal_chunks(length, communicator.size());
  return {begins[communicator.rank()], begins[communicator.rank() + 1]};
}

/// The ranks of each host. \param hosts (ranks) number of each rank's host
std::vector<std::vector<int>> hosts_with_ranks(const std::vector<int>& hosts) {
  std::vector<std::vector<int>> ranks;
  for (const auto& [host, its_ranks] : comm::ranks_by_host(hosts)) ranks.push_back(its_ranks);
  return ranks;
}

/// \param hosts (ranks) number of what averages together in float: of each rank's host, or its own
Expected bf16_oracle(const Communicator& communicator, std::size_t length, const std::vector<int>& hosts) {
  const auto [begin, end] = own_range(communicator, length);
  if (begin == end) return {begin, {}};
  return {begin, comm::DenseAverageRef{
                     DenseType::bf16, hosts_with_ranks(hosts)}(vectors_of(all_ranks(communicator.size()), begin, end))};
}

/// The average of some ranks' vectors in float. \returns elements [begin, end)
std::vector<float> mean_of(const std::vector<int>& ranks, std::size_t begin, std::size_t end) {
  std::vector<float> mean;
  for (std::size_t j = begin; j < end; ++j) {
    float sum = 0;
    for (const int rank : ranks) sum += element(rank, j);
    mean.push_back(sum / static_cast<float>(ranks.size()));
  }
  return mean;
}

Expected dense_oracle(const Communicator& communicator, std::size_t length) {
  const auto [begin, end] = own_range(communicator, length);
  return {begin, mean_of(all_ranks(communicator.size()), begin, end)};
}

/// The first compressed average of senders, each the mean of some ranks: one rank alone, or a host. The senders cut
/// elements [begin, begin + length) into chunks. The rank that serves chunk k also computes the scale of sender k, and
/// all gather the scales.
/// \param servers (senders) the rank that serves each chunk; this rank is one of them
Expected compressed_oracle(const Communicator& communicator, const std::vector<std::vector<int>>& senders,
                           const std::vector<int>& servers, std::size_t begin, std::size_t length) {
  const compress::Options options;
  const compress::CodecRef codec = compress::codec_ref(options);
  const int chunks = static_cast<int>(senders.size());
  const auto place = std::find(servers.begin(), servers.end(), communicator.rank());
  const int own = static_cast<int>(place - servers.begin());
  const compress::LayoutRef layout(length, chunks, compress::Grouping::vector);
  std::vector<float> unused(length, 0.0f);
  const std::vector<std::uint32_t> message =
      compress::compress_ref(layout, options, 0, chunks, mean_of(senders[own], begin, begin + length), unused);
  const double scale = as_float(message.front());
  const std::vector<double> scales = communicator.gather(&scale, 1);

  const std::size_t first = layout.begins[own], last = layout.begins[own + 1];
  std::vector<float> average(last - first, 0.0f), residual(last - first, 0.0f);
  for (int sender = 0; sender < chunks; ++sender) {
    const float s = static_cast<float>(scales[servers[sender]]);
    const std::vector<float> mean = mean_of(senders[sender], begin + first, begin + last);
    for (std::size_t j = 0; j < mean.size(); ++j) average[j] += codec.decode(&s, codec.encode(&s, mean[j]));
  }
  for (float& one : average) one /= static_cast<float>(chunks);
  const auto sent = compress::compress_ref(layout, options, own, 1, average, residual);
  Expected expected{begin + first, {}};
  for (std::size_t j = first; j < last; ++j)
    expected.values.push_back(compress::element_ref(layout, codec, sent.data(), own, j));
  return expected;
}

/// The same of hosts, each of whose ranks averages a part of the vector. A rank alone is a host of one.
/// \param hosts (ranks) as of bf16_oracle
Expected compressed_oracle(const Communicator& communicator, std::size_t length, const std::vector<int>& hosts) {
  const std::vector<std::vector<int>> senders = hosts_with_ranks(hosts);
  const std::vector<std::size_t> begins = compress::equal_chunks(length, static_cast<int>(senders.front().size()));
  std::size_t shard = 0;
  for (const std::vector<int>& ranks : senders) {
    const auto own = std::find(ranks.begin(), ranks.end(), communicator.rank());
    if (own != ranks.end()) shard = own - ranks.begin();
  }
  std::vector<int> servers;
  for (const std::vector<int>& ranks : senders) servers.push_back(ranks[shard]);
  return compressed_oracle(communicator, senders, servers, begins[shard], begins[shard + 1] - begins[shard]);
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
/// on a grid (grid_), hierarchically (hierarchical_), or by NCCL (nccl_).
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
    m_transports["mpi"] = comm::make_transport<Exec>(kind, communicator);
    m_transports["pairwise"] = comm::make_transport<Exec>(kind, communicator, pairwise);
    const auto& names = input.bench.collectives;
    const auto wants = [&](const char* way) {
      return std::any_of(names.begin(), names.end(), [&](const auto& name) { return prefix(name) == way; });
    };
    if (wants("grid"))
      m_transports["grid"] = comm::make_transport<Exec>(kind, communicator, comm::Exchange{0, false, true});
    if (wants("nccl")) m_transports["nccl"] = comm::make_transport<Exec>(TransportKind::nccl, communicator);
    if (wants("hierarchical"))
      m_transports["hierarchical"] = comm::make_hierarchical_transport<Exec>(kind, communicator, m_hosts, pairwise);
  }

  Average<Exec> operator()(const std::string& name, std::size_t length) {
    const int ranks = m_communicator.size();
    comm::Transport<Exec>* const transport = m_transports.at(prefix(name)).get();
    const Communicator* const all = &m_communicator;
    const Exec exec = m_exec;
    const std::vector<int> hosts = transport->hosts() != nullptr ? m_hosts : all_ranks(ranks);
    if (name == "mpi_reduce_scatter")
      return {[=](const Vector<Exec, float>& x, PhaseTimes& times) {
                const Stopwatch watch;
                mpi_reduce_scatter<Exec>(*all, x);
                times.add(Phase::allreduce, watch.seconds());
              },
              [=] { return dense_oracle(*all, length); }, transport, 8.0 * (ranks - 1) / ranks * length};
    if (name == prefix(name) + "_allreduce")
      return {[=](const Vector<Exec, float>& x, PhaseTimes& times) { comm::average(exec, *transport, x, times); },
              [=] { return dense_oracle(*all, length); }, transport};
    if (name == prefix(name) + "_bf16") {
      const auto average = std::make_shared<comm::DenseAverage<Exec>>(*transport, DenseType::bf16);
      return {[=](const Vector<Exec, float>& x, PhaseTimes& times) { (*average)(exec, x, times); },
              [=] { return bf16_oracle(*all, length, hosts); }, transport};
    }
    const auto run = [=](const std::shared_ptr<comm::CompressedAverage<Exec>>& allreduce) {
      return [=](const Vector<Exec, float>& x, PhaseTimes& times) { (*allreduce)(exec, x, times); };
    };
    const auto oracle = [=] { return compressed_oracle(*all, length, hosts); };
    using Compressed = comm::CompressedAverage<Exec>;
    if (const comm::Hosts<Exec>* const levels = transport->hosts()) {
      const std::vector<std::size_t> begins = compress::equal_chunks(length, levels->local.ranks());
      std::vector<compress::Layout> shards;
      for (std::size_t shard = 0; shard + 1 < begins.size(); ++shard)
        shards.emplace_back(begins[shard + 1] - begins[shard], levels->across.ranks(), compress::Grouping::vector);
      return {run(std::make_shared<Compressed>(*levels, shards, compress::Options())), oracle, transport};
    }
    const compress::Layout layout(length, ranks, compress::Grouping::vector);
    return {run(std::make_shared<Compressed>(*transport, layout, compress::Options())), oracle, transport};
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

/// A hash of a vector's bits.
double hash_of(const float* values, std::size_t length) {
  std::uint64_t sum = 0;
  for (std::size_t j = 0; j < length; ++j) sum += hash_term(as_bits(values[j]), j);
  return static_cast<double>(sum >> 11);  // a double has 53 bits
}

/// Runs an average once, compares this rank's range with the oracle, and all of the result with the other ranks'.
/// \returns the number of elements over all ranks \throws WrongResult for a wrong one
template <class Exec>
double check(const Exec& exec, const Communicator& communicator, const std::string& name, const Average<Exec>& average,
             const Vector<Exec, float>& x) {
  PhaseTimes times;
  fill(exec, communicator.rank(), x);
  average.run(x, times);
  const Region region("OneBit::bench::check");
  const Expected right = average.oracle();
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x);
  double wrong = 0;
  for (std::size_t j = 0; j < right.values.size(); ++j) wrong += host(right.begin + j) != right.values[j];
  communicator.sum(&wrong, 1);
  const double hash = hash_of(host.data(), host.extent(0));
  const std::vector<double> hashes = communicator.gather(&hash, 1);
  const bool same = std::count(hashes.begin(), hashes.end(), hashes.front()) == communicator.size();
  if (wrong > 0 || !same)
    throw WrongResult(name + " of " + std::to_string(host.extent(0)) + " parameters: " +
                      (wrong > 0 ? std::to_string(static_cast<long>(wrong)) + " elements are wrong"
                                 : std::string("the ranks have different results")) +
                      ", so it is not timed\n  remedy: report it with the MPI library's version and this input");
  return static_cast<double>(host.extent(0)) * communicator.size();
}

/// The timed calls of an average.
struct Measurement {
  std::vector<double> seconds;  ///< (ranks × repetitions)
  double wire_bytes = 0;        ///< greatest number that a rank hands over for others
  PhaseTimes phases{};          ///< means over the repetitions, of the slowest rank
};

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

std::string network() {
  const char* const name = std::getenv("ONEBIT_NETWORK");
  return name != nullptr ? name : "";
}

/// Rates are those of nccl-tests: algbw = bytes / time and busbw = algbw · 2 (n−1)/n. For a dense average with any
/// number of ranks, the bandwidth of the links bounds busbw. Both are of the logical bytes (4 d); another rate is of
/// the bytes that left a rank. The time is the median of the slowest rank's times.
class CollectiveReport {
public:
  /// Opens collective.csv and repetitions.csv, and prints the head of the table. Collective.
  /// \throws AgreedError when a file cannot be written
  CollectiveReport(const config::Input& input, const Communicator& communicator, const char* backend)
      : m_input(input),
        m_communicator(communicator),
        m_network(network()),
        m_hosts(comm::ranks_by_host(communicator.hosts()).size()),
        m_file(open_csv(input, communicator, collective_table)),
        m_repetitions(open_csv(input, communicator, repetitions_table)) {
    if (!m_file) return;
    std::printf("# %d ranks on %zu hosts, backend %s, %s; %d repetitions after %d\n", communicator.size(), m_hosts,
                backend, mpi_library().c_str(), input.bench.repetitions, input.bench.warmup);
    if (!m_network.empty()) std::printf("# %s\n", m_network.c_str());
    std::printf("#%12s  %-22s %12s %7s %10s %10s %10s %10s  %9s %9s %9s\n", "parameters", "collective", "wire bytes",
                "#wrong", "min ms", "p50 ms", "max ms", "p99 ms", "algbw", "busbw", "wire MB/s");
  }

  /// Adds an average of vectors of d elements. \param checked elements, over all ranks, that equal the oracle
  void add(const std::string& collective, std::size_t d, double checked, const Measurement& measured) {
    m_checked += checked;
    if (!m_file) return;
    const int ranks = m_communicator.size(), repetitions = m_input.bench.repetitions;
    const RepetitionTimes seconds = times_of_slowest_rank(measured.seconds, repetitions);
    const Latency latency = latency_over_ranks(measured.seconds, repetitions);
    const PhaseTimes& phases = measured.phases;
    const double logical_bytes = 4.0 * static_cast<double>(d), algbw = logical_bytes / seconds.median;
    const double busbw = algbw * (2.0 * (ranks - 1) / ranks), wire_bandwidth = measured.wire_bytes / seconds.median;
    const int wrong = 0;  // an average with wrong elements is not timed
    std::printf("%13zu  %-22s %12.0f %7d %10.3f %10.3f %10.3f %10.3f  %9.1f %9.1f %9.1f\n", d, collective.c_str(),
                measured.wire_bytes, wrong, 1e3 * seconds.min, 1e3 * seconds.median, 1e3 * seconds.max,
                1e3 * seconds.percentile_99, algbw / 1e6, busbw / 1e6, wire_bandwidth / 1e6);
    std::fflush(stdout);
    m_file->row_of(collective, d, logical_bytes, measured.wire_bytes, ranks, m_hosts, repetitions, wrong, seconds.min,
                   seconds.median, seconds.mean, seconds.max, seconds.percentile_99, latency.mean, latency.least,
                   latency.greatest, algbw, busbw, wire_bandwidth, phases[Phase::allreduce], phases[Phase::compress],
                   phases[Phase::all_to_all], phases[Phase::average], phases[Phase::all_gather], phases[Phase::update],
                   m_network, build_git);
    int repetition = 0;
    for (const RankTimes& times : times_over_ranks(measured.seconds, repetitions))
      m_repetitions->row_of(collective, d, logical_bytes, ranks, m_hosts, ++repetition, times.slowest,
                            times.slowest_rank, times.least, times.mean, m_network, build_git);
    // Those of longer vectors take their place.
    m_figures.set("parameters", static_cast<double>(d), "elements");
    m_figures.set(collective + "_p50_s", seconds.median, "s");
    m_figures.set(collective + "_algbw_B_per_s", algbw, "B/s");
    m_figures.set(collective + "_busbw_B_per_s", busbw, "B/s");
  }

  /// Completes the files. The figures are those of the longest vectors. Collective. \throws AgreedError
  FiguresOfMerit finish() {
    m_communicator.collectively([&] {
      if (!m_file) return;
      // Both files are complete before one takes the place of an earlier run's.
      for (CsvFile* const file : {m_file.get(), m_repetitions.get()}) file->close();
      for (CsvFile* const file : {m_file.get(), m_repetitions.get()}) file->finish();
    });
    if (m_file)
      std::printf("# times are the slowest rank's, bandwidths in MB/s from their median; results are in %s\n",
                  m_input.run.output.c_str());
    m_figures.set("checked", m_checked, "elements");
    m_figures.set("wrong", 0, "elements");
    if (m_checked > 0)
      m_figures.confirm(std::to_string(static_cast<long>(m_checked)) + " elements of averages equal their oracle");
    return m_figures;
  }

private:
  const config::Input& m_input;
  const Communicator& m_communicator;
  std::string m_network;  ///< the environment variable ONEBIT_NETWORK
  std::size_t m_hosts;
  std::unique_ptr<CsvFile> m_file, m_repetitions;  ///< on rank 0
  FiguresOfMerit m_figures;                        ///< on rank 0
  double m_checked = 0;
};

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
