#include "bench/collective_report.hpp"

#include <cstdio>
#include <cstdlib>

#include "base/system/build_info.hpp"
#include "bench/measurement.hpp"
#include "bench/tables.hpp"
#include "comm/transport/combined/hierarchical.hpp"

namespace onebit::bench {
namespace {

std::string network() {
  const char* const name = std::getenv("ONEBIT_NETWORK");
  return name != nullptr ? name : "";
}

}  // namespace

CollectiveReport::CollectiveReport(const config::Input& input, const Communicator& communicator, const char* backend)
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

void CollectiveReport::add(const std::string& collective, std::size_t d, double checked, const Measurement& measured) {
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
    m_repetitions->row_of(collective, d, logical_bytes, ranks, m_hosts, ++repetition, times.slowest, times.slowest_rank,
                          times.least, times.mean, m_network, build_git);
  // Those of longer vectors take their place.
  m_figures.set("parameters", static_cast<double>(d), "elements");
  m_figures.set(collective + "_p50_s", seconds.median, "s");
  m_figures.set(collective + "_algbw_B_per_s", algbw, "B/s");
  m_figures.set(collective + "_busbw_B_per_s", busbw, "B/s");
}

FiguresOfMerit CollectiveReport::finish() {
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

}  // namespace onebit::bench
