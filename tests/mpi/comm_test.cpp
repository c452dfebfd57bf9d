/// \file comm_test.cpp
/// Collectives at this number of ranks: the compressed allreduce against its serial simulation, bit for bit; what it
/// hands to MPI, seen through MPI's profiling interface; transports, the dense average, and agreement on errors.
///
/// An assertion that ends a test on one rank would leave the others waiting, so none does between collectives.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "../cuts.hpp"
#include "../skips.hpp"
#include "../support.hpp"
#include "base/device/gpus.hpp"
#include "base/error.hpp"
#include "base/mpi.hpp"
#include "comm/compressed_average.hpp"
#include "comm/reference.hpp"
#include "comm/transport/combined/grid.hpp"
#include "comm/transport/combined/hierarchical.hpp"
#include "comm/transport/device_mpi.hpp"
#include "comm/transport/nccl.hpp"
#include "comm/transport/probe.hpp"
#include "comm/transport/transport.hpp"

namespace {

/// What this process asked of MPI since the last reset.
struct MpiCalls {
  int all_to_all = 0, all_gather = 0, allreduce = 0;
  int other = 0;              ///< any other call that moves data or waits for other ranks
  std::uint64_t bytes = 0;    ///< handed to all_to_all and all_gather for other ranks
  std::uint64_t reduced = 0;  ///< bytes of the vectors given to allreduce
  int largest_count = 0;      ///< of any call
};
MpiCalls mpi_calls;

std::uint64_t bytes_of(int count, MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  mpi_calls.largest_count = std::max(mpi_calls.largest_count, count);
  return static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(size);
}

std::uint64_t other_ranks(MPI_Comm comm) {
  int size = 0;
  PMPI_Comm_size(comm, &size);
  return static_cast<std::uint64_t>(size - 1);
}

}  // namespace

// MPI's profiling interface (MPI 3.1, chapter 14): these stand before the library's functions.
extern "C" {

int MPI_Alltoall(const void* send, int send_count, MPI_Datatype send_type, void* received, int receive_count,
                 MPI_Datatype receive_type, MPI_Comm comm) {
  ++mpi_calls.all_to_all;
  mpi_calls.bytes += bytes_of(send_count, send_type) * other_ranks(comm);
  return PMPI_Alltoall(send, send_count, send_type, received, receive_count, receive_type, comm);
}
int MPI_Allgather(const void* send, int send_count, MPI_Datatype send_type, void* received, int receive_count,
                  MPI_Datatype receive_type, MPI_Comm comm) {
  ++mpi_calls.all_gather;
  mpi_calls.bytes += bytes_of(send_count, send_type) * other_ranks(comm);
  return PMPI_Allgather(send, send_count, send_type, received, receive_count, receive_type, comm);
}
int MPI_Allreduce(const void* send, void* received, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  ++mpi_calls.allreduce;
  mpi_calls.reduced += bytes_of(count, type);
  return PMPI_Allreduce(send, received, count, type, op, comm);
}

#define ONEBIT_COUNT(name, parameters, arguments) \
  int name parameters {                           \
    ++mpi_calls.other;                            \
    return P##name arguments;                     \
  }
ONEBIT_COUNT(MPI_Barrier, (MPI_Comm comm), (comm))
ONEBIT_COUNT(MPI_Bcast, (void* data, int count, MPI_Datatype type, int root, MPI_Comm comm),
             (data, count, type, root, comm))
ONEBIT_COUNT(MPI_Reduce,
             (const void* send, void* received, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm),
             (send, received, count, type, op, root, comm))
ONEBIT_COUNT(MPI_Gather,
             (const void* send, int send_count, MPI_Datatype send_type, void* received, int receive_count,
              MPI_Datatype receive_type, int root, MPI_Comm comm),
             (send, send_count, send_type, received, receive_count, receive_type, root, comm))
ONEBIT_COUNT(MPI_Scatter,
             (const void* send, int send_count, MPI_Datatype send_type, void* received, int receive_count,
              MPI_Datatype receive_type, int root, MPI_Comm comm),
             (send, send_count, send_type, received, receive_count, receive_type, root, comm))
ONEBIT_COUNT(MPI_Allgatherv,
             (const void* send, int send_count, MPI_Datatype send_type, void* received, const int* counts,
              const int* places, MPI_Datatype receive_type, MPI_Comm comm),
             (send, send_count, send_type, received, counts, places, receive_type, comm))
ONEBIT_COUNT(MPI_Alltoallv,
             (const void* send, const int* send_counts, const int* send_places, MPI_Datatype send_type, void* received,
              const int* receive_counts, const int* receive_places, MPI_Datatype receive_type, MPI_Comm comm),
             (send, send_counts, send_places, send_type, received, receive_counts, receive_places, receive_type, comm))
ONEBIT_COUNT(MPI_Reduce_scatter_block,
             (const void* send, void* received, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
             (send, received, count, type, op, comm))
ONEBIT_COUNT(MPI_Send, (const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm),
             (data, count, type, to, tag, comm))
ONEBIT_COUNT(MPI_Isend,
             (const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request),
             (data, count, type, to, tag, comm, request))
ONEBIT_COUNT(MPI_Recv, (void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status),
             (data, count, type, from, tag, comm, status))
ONEBIT_COUNT(MPI_Irecv,
             (void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request),
             (data, count, type, from, tag, comm, request))
ONEBIT_COUNT(MPI_Sendrecv,
             (const void* send, int send_count, MPI_Datatype send_type, int to, int send_tag, void* received,
              int receive_count, MPI_Datatype receive_type, int from, int receive_tag, MPI_Comm comm,
              MPI_Status* status),
             (send, send_count, send_type, to, send_tag, received, receive_count, receive_type, from, receive_tag, comm,
              status))
ONEBIT_COUNT(MPI_Iallreduce,
             (const void* send, void* received, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
              MPI_Request* request),
             (send, received, count, type, op, comm, request))
#undef ONEBIT_COUNT

}  // extern "C"

namespace onebit::comm {
namespace {

using compress::Grouping;
using compress::Options;
using test::Cut;

/// True on every rank when all ranks hold rank 0's bits.
template <class T>
bool same_on_all_ranks(const Communicator& world, const std::vector<T>& values) {
  std::vector<T> first = values;
  PMPI_Bcast(first.data(), static_cast<int>(first.size() * sizeof(T)), MPI_BYTE, 0, world.get());
  return static_cast<bool>(test::same_bits(values, first));
}

/// The vector that a rank gives in a round; every rank can draw all of them. Drawn once: hundreds of tests share them.
const std::vector<float>& vector_of(int rank, int round, std::size_t length) {
  static std::map<std::tuple<int, int, std::size_t>, std::vector<float>> drawn;
  std::vector<float>& values = drawn[{rank, round, length}];
  if (values.empty()) values = test::random_values(length, static_cast<std::uint64_t>(100 * round + rank));
  return values;
}

/// Short messages, so that even small vectors go in many.
constexpr Exchange by_pairs{1024};
constexpr Exchange by_grid{0, false, true};

template <class Exec>
std::unique_ptr<Transport<Exec>> transport_by(const Communicator& world, Exchange exchange) {
  return make_transport<Exec>(TransportKind::automatic, world, exchange);
}

/// Factors of the residuals of each round, one after the other. Those below are powers of two, so that products are
/// exact and a fused multiply and add rounds as two operations do.
using Factors = std::vector<float>;
const Factors unscaled = {1}, scaled = {1, 2, 0.25f, 4, 0.5f};
float factor_of(const Factors& factors, int round) { return factors[static_cast<std::size_t>(round) % factors.size()]; }

/// The vector that rank 0 has for this rank. \param of_rank (rank) ↦ vector, called on rank 0
template <class OfRank>
std::vector<float> handed_out(const Communicator& world, const OfRank& of_rank) {
  constexpr int tag = 1;
  if (world.rank() == 0) {
    for (int rank = 1; rank < world.size(); ++rank) {
      const std::vector<float>& values = of_rank(rank);
      PMPI_Send(values.data(), static_cast<int>(values.size()), MPI_FLOAT, rank, tag, world.get());
    }
    return of_rank(0);
  }
  MPI_Status status;
  // A rank that waits inside MPI takes a core from rank 0, which simulates meanwhile.
  for (int arrived = 0; PMPI_Iprobe(0, tag, world.get(), &arrived, &status), arrived == 0;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  int count = 0;
  PMPI_Get_count(&status, MPI_FLOAT, &count);
  std::vector<float> values(static_cast<std::size_t>(count));
  PMPI_Recv(values.data(), count, MPI_FLOAT, 0, tag, world.get(), MPI_STATUS_IGNORE);
  return values;
}

/// Lets `allreduce` and a simulation average the same vectors. Rank 0 alone simulates long ones, which takes up to
/// seconds. \param worker, server (rank) ↦ the simulation's residuals that belong to it
template <class Exec, class Simulation, class Worker, class Server>
void expect_simulation(const Communicator& world, std::size_t length, int rounds, CompressedAverage<Exec>& allreduce,
                       Simulation& simulation, const Worker& worker, const Server& server,
                       const Factors& factors = unscaled) {
  const Exec exec{};
  const bool once = length > 10000;
  const auto own = [&](const auto& of_rank) { return once ? handed_out(world, of_rank) : of_rank(world.rank()); };
  PhaseTimes times;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    const auto x = test::to_device<Exec>(vector_of(world.rank(), round, length));
    const float factor = factor_of(factors, round);
    allreduce(exec, x, times, factor);
    const std::vector<float> average = test::to_host(x);

    std::vector<float> simulated;
    if (!once || world.rank() == 0) {
      std::vector<std::vector<float>> all;
      for (int rank = 0; rank < world.size(); ++rank) all.push_back(vector_of(rank, round, length));
      simulated = simulation(all, factor);
    }
    EXPECT_TRUE(test::same_bits(average, own([&](int) -> std::vector<float>& { return simulated; })));
    EXPECT_TRUE(same_on_all_ranks(world, average));
    const std::vector<float> worker_residual = test::to_host(allreduce.worker_residual(exec));
    EXPECT_TRUE(test::same_bits(worker_residual, own(worker)));
    const std::vector<float> server_residual = test::to_host(allreduce.server_residual(exec));
    std::vector<float> padded_server = own(server);
    padded_server.resize(server_residual.size(), 0.0f);
    EXPECT_TRUE(test::same_bits(server_residual, padded_server));

    // What was set is what the next round goes on from.
    allreduce.set_residuals(exec, test::to_device<Exec>(worker_residual), test::to_device<Exec>(server_residual));
    EXPECT_TRUE(test::same_bits(test::to_host(allreduce.worker_residual(exec)), worker_residual));
  }
}

template <class Exec>
void expect_simulation(const Communicator& world, const Cut& cut, const Options& options, int rounds,
                       bool error_feedback = true, const Factors& factors = unscaled) {
  for (const Exchange exchange : {Exchange{}, by_pairs}) {
    if (cut.length >= test::large_length && exchange.message_bytes == 0) continue;  // each simulation takes seconds
    SCOPED_TRACE(::testing::Message() << cut << " " << test::name_of(options) << " error feedback " << error_feedback
                                      << " messages " << exchange.message_bytes);
    const auto transport = transport_by<Exec>(world, exchange);
    CompressedAverage<Exec> allreduce(*transport, cut.layout(), options, error_feedback);
    CompressedAllreduceRef simulation(cut.reference(), options, error_feedback);
    const auto worker = [&](int rank) -> std::vector<float>& { return simulation.worker_residuals[rank]; };
    const auto server = [&](int rank) -> std::vector<float>& { return simulation.server_residuals[rank]; };
    expect_simulation<Exec>(world, cut.length, rounds, allreduce, simulation, worker, server, factors);
  }
}

/// Writes what messages stand for into a vector.
template <class Exec>
struct Store {
  Vector<Exec, float> x;
  KOKKOS_FUNCTION void operator()(std::size_t begin, std::size_t count, const float* values) const {
    for (std::size_t j = 0; j < count; ++j) x(begin + j * compress::WordTable<Exec>::stride) = values[j];
  }
};

template <class Exec>
class Collectives : public ::testing::Test {
protected:
  const Communicator world;
  const Exec exec{};
};
TYPED_TEST_SUITE(Collectives, test::Backends, test::BackendNames);

TYPED_TEST(Collectives, compressed_allreduce_equals_simulation) {
  for (const std::size_t length : test::small_lengths)
    for (const Cut& cut : test::cuts(length, this->world.size()))
      for (const Scale scale : {Scale::l1, Scale::l2})
        expect_simulation<TypeParam>(this->world, cut, {CompressorKind::sign, scale}, 3);
}

TYPED_TEST(Collectives, compressed_allreduce_equals_simulation_for_each_compressor) {
  for (const Options& options : test::compressors()) {
    if (options.kind == CompressorKind::sign) continue;
    for (const std::size_t length : {0, 33, 1000})
      for (const Cut& cut : test::cuts(length, this->world.size()))
        expect_simulation<TypeParam>(this->world, cut, options, 2);
  }
}

TYPED_TEST(Collectives, compressed_allreduce_multiplies_residuals_as_the_simulation) {
  for (const Options& options : test::compressors())
    for (const std::size_t length : {33, 1000})
      for (const Cut& cut : test::cuts(length, this->world.size()))
        expect_simulation<TypeParam>(this->world, cut, options, 5, true, scaled);
}

TYPED_TEST(Collectives, compressed_allreduce_without_error_feedback) {
  for (const Options& options : test::compressors())
    for (const Cut& cut : test::cuts(1000, this->world.size())) {
      expect_simulation<TypeParam>(this->world, cut, options, 2, false);

      // Nothing is carried over: the same vectors give the same average again, as from residuals of 0.
      SCOPED_TRACE(::testing::Message() << cut << " " << test::name_of(options));
      const auto transport = make_transport<TypeParam>(TransportKind::automatic, this->world);
      CompressedAverage<TypeParam> without(*transport, cut.layout(), options, false);
      CompressedAverage<TypeParam> fresh(*transport, cut.layout(), options);
      PhaseTimes times;
      const auto average_by = [&](CompressedAverage<TypeParam>& allreduce) {
        const auto x = test::to_device<TypeParam>(vector_of(this->world.rank(), 0, cut.length));
        allreduce(this->exec, x, times);
        return test::to_host(x);
      };
      const std::vector<float> first = average_by(without);
      EXPECT_TRUE(test::same_bits(average_by(without), first));
      EXPECT_TRUE(test::same_bits(average_by(fresh), first));
    }
}

// m_i = m/2 + g_i, m ← CA(m_i), with m written out and with m in its messages. The shares are powers of two, so a fused
// multiply and add rounds as two operations do.
TYPED_TEST(Collectives, average_that_stays_in_messages_is_the_one_written_out) {
  for (const Options& options : test::compressors())
    for (const Exchange exchange : {Exchange{}, by_pairs, by_grid})
      for (const Cut& cut : test::cuts(1000, this->world.size())) {
        SCOPED_TRACE(::testing::Message() << cut << " " << test::name_of(options) << " messages "
                                          << exchange.message_bytes << " grid " << exchange.grid);
        const auto transport = transport_by<TypeParam>(this->world, exchange);
        CompressedAverage<TypeParam> writes(*transport, cut.layout(), options);
        CompressedAverage<TypeParam> keeps(*transport, cut.layout(), options);
        std::vector<float> m(cut.length, 0.0f);
        PhaseTimes times;
        for (int round = 0; round < 3; ++round) {
          const std::vector<float> g = vector_of(this->world.rank(), round, cut.length);
          for (std::size_t j = 0; j < cut.length; ++j) m[j] = 0.5f * m[j] + g[j];
          const auto written = test::to_device<TypeParam>(m);
          Contribution<TypeParam> mine{test::to_device<TypeParam>(round == 0 ? m : g)};
          if (round > 0) mine.momentum = compress::MomentumShares{0.5f, 0.5f, 2.0f};
          if (round > 0) mine.residual_factor = factor_of(scaled, round);
          keeps.begin(this->exec, mine, times);
          keeps.serve(this->exec, times);
          keeps.finish(this->exec, times);
          writes(this->exec, written, times, factor_of(scaled, round));
          m = test::to_host(written);

          const auto decompressed = make_uninitialized<TypeParam, float>("decompressed", cut.length);
          keeps.decompress_last(this->exec, decompressed);
          EXPECT_TRUE(test::same_bits(test::to_host(decompressed), m));
          const auto decoded = make_uninitialized<TypeParam, float>("decoded", cut.length);
          std::visit(
              [&](const auto& decoder) {
                compress::for_each_decoded(this->exec, "decoded", decoder, Store<TypeParam>{decoded});
              },
              keeps.last().front().decoder);
          EXPECT_TRUE(test::same_bits(test::to_host(decoded), m));
          EXPECT_TRUE(test::same_bits(test::to_host(keeps.worker_residual(this->exec)),
                                      test::to_host(writes.worker_residual(this->exec))));
          EXPECT_TRUE(test::same_bits(test::to_host(keeps.server_residual(this->exec)),
                                      test::to_host(writes.server_residual(this->exec))));
        }
      }
}

TYPED_TEST(Collectives, zeros_of_all_ranks_stay_zero) {
  for (const Options& options : test::compressors()) {
    if (options.kind == CompressorKind::sign || options.kind == CompressorKind::column) continue;
    for (const Cut& cut : test::cuts(1000, this->world.size())) {
      SCOPED_TRACE(::testing::Message() << cut << " " << test::name_of(options));
      const auto transport = make_transport<TypeParam>(TransportKind::automatic, this->world);
      CompressedAverage<TypeParam> allreduce(*transport, cut.layout(), options);
      PhaseTimes times;
      std::size_t wrong = 0;
      for (int round = 0; round < 3; ++round) {
        std::vector<float> x = vector_of(this->world.rank(), round, cut.length);
        for (std::size_t j = 0; j < cut.length; j += 3) x[j] = 0;
        const auto averaged = test::to_device<TypeParam>(x);
        allreduce(this->exec, averaged, times);
        x = test::to_host(averaged);
        for (std::size_t j = 0; j < cut.length; j += 3) wrong += x[j] != 0;
      }
      EXPECT_EQ(wrong, 0u);
    }
  }
}

TYPED_TEST(Collectives, compressed_allreduce_equals_simulation_for_a_large_vector) {
  const int ranks = this->world.size();
  const int rounds = ranks > 4 ? 1 : 2;
  const std::size_t length = test::large_length;
  const auto tensors = test::ragged_offsets(length);
  expect_simulation<TypeParam>(this->world, {length, ranks, Grouping::vector}, {CompressorKind::sign}, rounds);
  expect_simulation<TypeParam>(this->world, {length, ranks, Grouping::chunk}, {CompressorKind::sign, Scale::l2}, 1);
  expect_simulation<TypeParam>(this->world, {length, ranks, Grouping::tensor, 0, tensors}, {CompressorKind::sign},
                               rounds);
  expect_simulation<TypeParam>(this->world, {length, ranks, Grouping::fixed, 4096}, {CompressorKind::sign, Scale::l2},
                               1);
  expect_simulation<TypeParam>(this->world, {length, ranks, Grouping::vector}, {CompressorKind::sign_ternary}, 1);
  expect_simulation<TypeParam>(this->world, {length, ranks, Grouping::column, 0, tensors}, {CompressorKind::column}, 1);
  expect_simulation<TypeParam>(this->world, {length, ranks, Grouping::vector}, {CompressorKind::nbit}, 1);
}

TYPED_TEST(Collectives, one_all_to_all_and_one_all_gather_a_call) {
  const int ranks = this->world.size();
  for (const std::size_t length : {0, 1, 1000, 100000})
    for (const Cut& cut : test::cuts(length, ranks)) {
      SCOPED_TRACE(::testing::Message() << cut);
      const auto transport = make_transport<TypeParam>(TransportKind::automatic, this->world);
      CompressedAverage<TypeParam> allreduce(*transport, cut.layout(), {CompressorKind::sign});
      const auto x = test::to_device<TypeParam>(vector_of(this->world.rank(), 0, length));
      PhaseTimes times;
      for (int call = 1; call <= 3; ++call) {
        mpi_calls = {};
        const Traffic before = transport->traffic();
        allreduce(this->exec, x, times);
        const MpiCalls calls = mpi_calls;
        EXPECT_EQ(calls.all_to_all, ranks > 1 ? 1 : 0);
        EXPECT_EQ(calls.all_gather, ranks > 1 ? 1 : 0);
        EXPECT_EQ(calls.allreduce, 0);
        EXPECT_EQ(calls.other, 0);

        // One message of S scales and W sign words for each other rank, in both exchanges.
        const std::uint64_t message = (cut.reference().groups + cut.reference().words) * 4;
        const Traffic after = transport->traffic();
        EXPECT_EQ(after.all_to_all - before.all_to_all, (ranks - 1) * message);
        EXPECT_EQ(after.all_gather - before.all_gather, (ranks - 1) * message);
        EXPECT_EQ(after.allreduce, 0u);
        EXPECT_EQ(after.total() - before.total(), calls.bytes);
      }
      EXPECT_EQ(times[Phase::allreduce], 0.0);
      EXPECT_GT(times[Phase::compress], 0.0);
    }
}

TYPED_TEST(Collectives, volume_is_31_times_below_dense) {
  const int ranks = this->world.size();
  if (ranks == 1) GTEST_SKIP() << test::other_ranks << "nothing travels";
  for (const std::size_t length : {std::size_t{100000}, std::size_t{333333}, test::large_length}) {
    SCOPED_TRACE(::testing::Message() << "length " << length);
    const auto transport = make_transport<TypeParam>(TransportKind::automatic, this->world);
    const auto x = test::to_device<TypeParam>(std::vector<float>(length, 1.0f));
    PhaseTimes times;
    mpi_calls = {};
    average(this->exec, *transport, x, times);
    const std::uint64_t dense = transport->traffic().total();
    // A ring moves 2 (n−1)/n of the vector.
    EXPECT_EQ(dense, 2 * (ranks - 1) * length * 4 / ranks);
    EXPECT_EQ(mpi_calls.reduced, length * 4);

    CompressedAverage<TypeParam> allreduce(*transport, compress::Layout(length, ranks, Grouping::vector),
                                           {CompressorKind::sign});
    allreduce(this->exec, x, times);
    const std::uint64_t compressed = transport->traffic().total() - dense;
    EXPECT_GE(static_cast<double>(dense) / static_cast<double>(compressed), 31.0);
  }
}

TYPED_TEST(Collectives, volume_of_each_compressor) {
  const int ranks = this->world.size();
  // In each chunk 100 words of elements, or 32 columns of 100 elements.
  const std::size_t length = 3200 * static_cast<std::size_t>(ranks);
  std::vector<std::size_t> columns;
  for (std::size_t begin = 0; begin < length; begin += 100) columns.push_back(begin);
  for (const Options& options : test::compressors()) {
    SCOPED_TRACE(test::name_of(options));
    const bool column = options.kind == CompressorKind::column;
    const compress::Layout layout(length, ranks, column ? Grouping::column : Grouping::vector, 0, columns);
    const std::uint64_t bits = options.kind == CompressorKind::nbit           ? options.bits
                               : options.kind == CompressorKind::fp8          ? 8
                               : options.kind == CompressorKind::sign_ternary ? 2
                                                                              : 1;
    const std::uint64_t message = column ? 32 * 2 * 4 + 3200 / 8 : 4 + 3200 * bits / 8;

    const auto transport = make_transport<TypeParam>(TransportKind::automatic, this->world);
    CompressedAverage<TypeParam> allreduce(*transport, layout, options);
    const auto x = test::to_device<TypeParam>(vector_of(this->world.rank(), 0, length));
    PhaseTimes times;
    mpi_calls = {};
    allreduce(this->exec, x, times);
    EXPECT_EQ(transport->traffic().all_to_all, (ranks - 1) * message);
    EXPECT_EQ(transport->traffic().all_gather, (ranks - 1) * message);
    EXPECT_EQ(transport->traffic().total(), mpi_calls.bytes);
  }
}

TYPED_TEST(Collectives, average_is_the_mean) {
  const int ranks = this->world.size();
  for (const std::size_t length : {0, 1, 33, 1000, 100003}) {
    SCOPED_TRACE(::testing::Message() << "length " << length);
    const auto transport = make_transport<TypeParam>(TransportKind::automatic, this->world);
    const auto x = test::to_device<TypeParam>(vector_of(this->world.rank(), 0, length));
    PhaseTimes times;
    average(this->exec, *transport, x, times);
    const std::vector<float> mean = test::to_host(x);
    EXPECT_TRUE(same_on_all_ranks(this->world, mean));

    std::vector<double> sum(length, 0.0), magnitude(length, 0.0);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<float> given = vector_of(rank, 0, length);
      for (std::size_t j = 0; j < length; ++j) {
        sum[j] += given[j];
        magnitude[j] += std::fabs(given[j]);
      }
    }
    // n − 1 additions in any order and one division, half a unit in the last place each.
    std::size_t wrong = 0;
    for (std::size_t j = 0; j < length; ++j)
      wrong += !(std::fabs(mean[j] - sum[j] / ranks) <= magnitude[j] / ranks * ranks * 0x1p-24 * 1.001);
    EXPECT_EQ(wrong, 0u);
  }
}

/// Word `word` of the block that rank `from` sends to rank `to`.
std::uint32_t word_between(int from, int to, std::size_t word) {
  return philox(static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), word).word[0];
}

TYPED_TEST(Collectives, counts_beyond_the_largest_give_the_same_result) {
  using Exec = TypeParam;
  const int ranks = this->world.size(), me = this->world.rank();
  for (const std::size_t largest : {std::size_t{7}, std::size_t{64}, std::size_t{1000}, std::size_t{1} << 30}) {
    const auto transport = transport_by<Exec>(this->world, {0, false, false, largest});
    std::uint64_t sent = 0;
    for (const std::size_t words : {0, 1, 6, 7, 8, 14, 63, 64, 65, 128, 999, 1000, 1001, 4321}) {
      SCOPED_TRACE(::testing::Message() << "largest " << largest << " words " << words);
      std::vector<std::uint32_t> send, exchanged, gathered;
      for (int rank = 0; rank < ranks; ++rank)
        for (std::size_t word = 0; word < words; ++word) {
          send.push_back(word_between(me, rank, word));
          exchanged.push_back(word_between(rank, me, word));
          gathered.push_back(word_between(rank, 0, word));
        }
      const Vector<Exec, std::uint32_t> received("OneBit::test::received", ranks * words);
      mpi_calls = {};
      transport->all_to_all(this->exec, test::to_device<Exec>(send), received);
      const int calls = words <= largest ? 1 : 0;  // else in messages
      EXPECT_EQ(mpi_calls.all_to_all, calls);
      EXPECT_TRUE(test::same_bits(test::to_host(received), exchanged));

      const std::vector<std::uint32_t> mine(send.begin(), send.begin() + words);
      transport->all_gather(this->exec, test::to_device<Exec>(mine), received);
      EXPECT_EQ(mpi_calls.all_gather, calls);
      EXPECT_TRUE(test::same_bits(test::to_host(received), gathered));
      const std::uint64_t bytes = 2 * (ranks - 1) * words * sizeof(std::uint32_t);
      EXPECT_EQ(mpi_calls.bytes, calls * bytes);
      sent += bytes;
      EXPECT_EQ(transport->traffic().all_to_all + transport->traffic().all_gather, sent);

      // Whole numbers, so that the sum is exact in whatever order a library adds.
      std::vector<float> values(words), sums(words);
      for (std::size_t j = 0; j < words; ++j) {
        values[j] = static_cast<float>(me + 1) * static_cast<float>(j);
        sums[j] = static_cast<float>(ranks * (ranks + 1) / 2) * static_cast<float>(j);
      }
      const auto reduced = test::to_device<Exec>(values);
      transport->allreduce(this->exec, reduced);
      EXPECT_TRUE(test::same_bits(test::to_host(reduced), sums));
      EXPECT_EQ(mpi_calls.reduced, words * sizeof(float));
      EXPECT_LE(mpi_calls.largest_count, static_cast<int>(largest));
    }
  }
}

/// Exchanges words, and compares them with what MPI's collectives exchange.
template <class Exec>
void expect_words_of_collectives(const Communicator& world, Transport<Exec>& transport) {
  const Exec exec{};
  const auto collective = make_transport<Exec>(TransportKind::automatic, world);
  const int ranks = world.size();
  for (const std::size_t length : {0, 1, 33, 1000}) {
    SCOPED_TRACE(::testing::Message() << length << " words");
    std::vector<std::uint32_t> words(length * ranks);
    for (std::size_t j = 0; j < words.size(); ++j) words[j] = static_cast<std::uint32_t>(j * 1000 + world.rank());
    const auto send = test::to_device<Exec>(words);
    const auto block = test::to_device<Exec>(std::vector<std::uint32_t>(words.begin(), words.begin() + length));
    const auto received = make_uninitialized<Exec, std::uint32_t>("received", words.size());
    const auto expected = make_uninitialized<Exec, std::uint32_t>("expected", words.size());
    transport.all_to_all(exec, send, received);
    collective->all_to_all(exec, send, expected);
    EXPECT_TRUE(test::same_bits(test::to_host(received), test::to_host(expected)));
    transport.all_gather(exec, block, received);
    collective->all_gather(exec, block, expected);
    EXPECT_TRUE(test::same_bits(test::to_host(received), test::to_host(expected)));
  }
}

TYPED_TEST(Collectives, pairwise_messages_give_what_collectives_give) {
  const auto transport = transport_by<TypeParam>(this->world, by_pairs);
  expect_words_of_collectives(this->world, *transport);
  const std::uint64_t others = this->world.size() - 1, words = 0 + 1 + 33 + 1000;
  EXPECT_EQ(transport->traffic().total(), 2 * others * words * sizeof(std::uint32_t));
}

TEST(Grid, has_the_greatest_number_of_columns_up_to_the_root) {
  const std::map<int, int> columns = {{1, 1},  {2, 1},  {3, 1},  {4, 2},   {6, 2},     {8, 2},     {12, 3},
                                      {36, 6}, {64, 8}, {97, 1}, {128, 8}, {1000, 25}, {1024, 32}, {1 << 20, 1 << 10}};
  for (const auto& [ranks, expected] : columns) EXPECT_EQ(columns_of_grid(ranks), expected) << ranks << " ranks";
}

TYPED_TEST(Collectives, grid_gives_what_collectives_give) {
  const auto transport = transport_by<TypeParam>(this->world, by_grid);
  EXPECT_FALSE(transport->overlaps());
  expect_words_of_collectives(this->world, *transport);
  const std::uint64_t ranks = this->world.size(), columns = columns_of_grid(this->world.size()), rows = ranks / columns;
  const std::uint64_t messages = (columns - 1) * rows + (rows - 1) * columns + (columns - 1) + (rows - 1) * columns;
  EXPECT_EQ(transport->traffic().total(), messages * (0 + 1 + 33 + 1000) * sizeof(std::uint32_t));
}

// The last length has several slices at 2 and 3 ranks.
TYPED_TEST(Collectives, pairwise_sums_add_in_the_order_of_the_ranks) {
  const Communicator world;
  const TypeParam exec{};
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{1}, std::size_t{31}, std::size_t{1000}, (std::size_t{1} << 21) + 5}) {
    SCOPED_TRACE(::testing::Message() << length << " elements");
    const auto transport = make_transport<TypeParam>(TransportKind::automatic, world, Exchange{32768});
    std::vector<float> expected(length, 0.0f);
    for (int rank = 0; rank < world.size(); ++rank) {
      const std::vector<float> term = vector_of(rank, 0, length);
      for (std::size_t j = 0; j < length; ++j) expected[j] += term[j];
    }
    const auto x = test::to_device<TypeParam>(vector_of(world.rank(), 0, length));
    for (int repetition = 0; repetition < 2; ++repetition) {
      Kokkos::deep_copy(x, test::to_device<TypeParam>(vector_of(world.rank(), 0, length)));
      transport->allreduce(exec, x);
      EXPECT_TRUE(test::same_bits(test::to_host(x), expected));
    }
  }
}

/// (ranks) a host's number for each rank, with `local` ranks to a host.
std::vector<int> hosts_of(const Communicator& world, int local) {
  std::vector<int> hosts;
  for (int rank = 0; rank < world.size(); ++rank) hosts.push_back(rank / local);
  return hosts;
}

/// Numbers of ranks to a host with which all hosts have the same.
std::vector<int> ranks_to_a_host(const Communicator& world) {
  std::vector<int> all;
  for (int ranks = 1; ranks <= world.size(); ++ranks)
    if (world.size() % ranks == 0) all.push_back(ranks);
  return all;
}

// Hosts are only numbers here; the laboratory's test has real ones.
TYPED_TEST(Collectives, hierarchical_allreduce_equals_simulation) {
  const int world_size = this->world.size();
  for (const int local : ranks_to_a_host(this->world))
    for (const Exchange exchange : {Exchange{}, by_pairs, by_grid})
      for (const Options& options :
           {Options{CompressorKind::sign}, Options{CompressorKind::sign, Scale::l2}, Options{CompressorKind::nbit}})
        for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{300001}}) {
          if (length > 1000 && (exchange.message_bytes == 0 || options.kind == CompressorKind::nbit)) continue;
          SCOPED_TRACE(::testing::Message()
                       << local << " ranks a host, length " << length << ", " << test::name_of(options) << ", messages "
                       << exchange.message_bytes << ", grid " << exchange.grid);
          const auto transport = make_hierarchical_transport<TypeParam>(TransportKind::automatic, this->world,
                                                                        hosts_of(this->world, local), exchange);
          const int across = world_size / local;
          std::vector<std::vector<int>> hosts(across);
          for (int other = 0; other < world_size; ++other) hosts[other / local].push_back(other);
          const std::vector<std::size_t> begins = compress::equal_chunks(length, local);
          std::vector<compress::Layout> shards;
          std::vector<compress::LayoutRef> references;
          for (int shard = 0; shard < local; ++shard) {
            const Cut cut{begins[shard + 1] - begins[shard], across, Grouping::vector};
            shards.push_back(cut.layout());
            references.push_back(cut.reference());
          }
          CompressedAverage<TypeParam> allreduce(*transport->hosts(), shards, options);
          HierarchicalAllreduceRef simulation(references, hosts, options);
          const auto& of_shards = simulation.shards;
          const auto worker = [&](int r) { return of_shards[r % local].worker_residuals[r / local]; };
          const auto server = [&](int r) { return of_shards[r % local].server_residuals[r / local]; };
          expect_simulation<TypeParam>(this->world, length, 2, allreduce, simulation, worker, server, scaled);
        }
}

TYPED_TEST(Collectives, hierarchical_sums_add_ranks_and_then_hosts) {
  const int size = this->world.size();
  for (const int local : ranks_to_a_host(this->world))
    for (const std::size_t length : {0, 1, 1000, 300001}) {
      SCOPED_TRACE(::testing::Message() << local << " ranks a host, length " << length);
      const auto transport = make_hierarchical_transport<TypeParam>(TransportKind::automatic, this->world,
                                                                    hosts_of(this->world, local), by_pairs);
      std::vector<float> expected(length, 0.0f);
      for (int host = 0; host < size / local; ++host) {
        std::vector<float> sum(length, 0.0f);
        for (int rank = host * local; rank < (host + 1) * local; ++rank) {
          const std::vector<float> term = vector_of(rank, 0, length);
          for (std::size_t j = 0; j < length; ++j) sum[j] += term[j];
        }
        for (std::size_t j = 0; j < length; ++j) expected[j] += sum[j];
      }
      const auto x = test::to_device<TypeParam>(vector_of(this->world.rank(), 0, length));
      transport->allreduce(this->exec, x);
      EXPECT_TRUE(test::same_bits(test::to_host(x), expected));
      // Less leaves a host the more of its ranks share it.
      const std::uint64_t dense = 8 * (static_cast<std::uint64_t>(size) / local - 1) * (length + 31 * size);
      EXPECT_LE(transport->traffic().total() * size, dense);
    }
}

TYPED_TEST(Collectives, hosts_of_different_numbers_of_ranks_are_refused) {
  if (this->world.size() < 3) GTEST_SKIP() << test::other_ranks << "two hosts of one rank, or one host";
  std::vector<int> hosts(this->world.size(), 1);
  hosts[0] = 0;
  EXPECT_THROW(make_hierarchical_transport<TypeParam>(TransportKind::automatic, this->world, hosts, by_pairs),
               InputError);
}

TYPED_TEST(Collectives, transport_is_the_one_asked_for) {
  const DeviceSupport support = device_support<TypeParam>();
  EXPECT_FALSE(support.evidence.empty());
  EXPECT_EQ(make_transport<TypeParam>(TransportKind::host, this->world)->kind(), TransportKind::host);
  EXPECT_EQ(make_transport<TypeParam>(TransportKind::automatic, this->world)->kind(),
            support.supported ? TransportKind::device : TransportKind::host);
  if (support.supported)
    EXPECT_EQ(make_transport<TypeParam>(TransportKind::device, this->world)->kind(), TransportKind::device);
  else
    EXPECT_THROW(make_transport<TypeParam>(TransportKind::device, this->world), InputError);
  EXPECT_TRUE(!is_host<TypeParam> || support.supported);
}

/// All ranks, and this process alone, which calls no MPI.
class Agreement : public testing::TestWithParam<bool> {
protected:
  const Communicator world{GetParam() ? MPI_COMM_WORLD : MPI_COMM_NULL};
};

INSTANTIATE_TEST_SUITE_P(Worlds, Agreement, testing::Bool(),
                         [](const auto& world) { return world.param ? "of_all_ranks" : "of_this_process"; });

TEST_P(Agreement, sums_gathers_and_broadcasts) {
  double values[2] = {1.0 + world.rank(), -2.0};
  const std::vector<double> all = world.gather(values, 2);
  ASSERT_EQ(all.size(), 2u * world.size());
  for (int rank = 0; rank < world.size(); ++rank) EXPECT_EQ(all[2 * rank], 1.0 + rank);
  world.sum(values, 2);
  EXPECT_EQ(values[0], world.size() * (world.size() + 1) / 2.0);
  EXPECT_EQ(values[1], -2.0 * world.size());
  EXPECT_EQ(world.sum(std::uint64_t{1} << 60), static_cast<std::uint64_t>(world.size()) << 60);
  for (int root = 0; root < world.size(); ++root)
    for (const std::string& text : {std::string(), std::string("one\0two\n", 8), std::string(100000, 'x')})
      for (const std::size_t largest_count : {std::size_t{3000}, std::size_t{100000}})
        EXPECT_EQ(world.broadcast(world.rank() == root ? text : "not this", root, largest_count), text);
  EXPECT_EQ(world.local_rank(), world.rank());
  EXPECT_EQ(world.local_size(), world.size());
  EXPECT_EQ(world.hosts(), std::vector<int>(world.size(), 0));
  world.barrier();
  EXPECT_FALSE(mpi_library().empty());
}

/// The error that `collectively` ends with, or an empty message for none.
struct Outcome {
  std::string message;
  ExitStatus status = ExitStatus::success;
};
Outcome outcome(const Communicator& world, const std::function<void()>& work) {
  try {
    world.collectively(work);
  } catch (const AgreedError& error) {
    return {error.what(), error.status()};
  }
  return {};
}

TEST_P(Agreement, agrees_that_nothing_failed) {
  int runs = 0;
  EXPECT_EQ(outcome(world, [&] { ++runs; }).message, "");
  EXPECT_EQ(runs, 1);
}

TEST_P(Agreement, agrees_on_the_error_of_any_rank) {
  for (int failing = 0; failing < world.size(); ++failing) {
    // Rank 0 is whom users expect to speak, so its errors go without its name.
    const std::string name = failing == 0 ? "" : "rank " + std::to_string(failing) + ": ";
    const Outcome input = outcome(world, [&] {
      if (world.rank() == failing) throw InputError("a.yaml:1:2", "wrong", "right it");
    });
    EXPECT_EQ(input.message, name + "a.yaml:1:2: wrong\n  remedy: right it");
    EXPECT_EQ(input.status, ExitStatus::bad_input);

    const Outcome run = outcome(world, [&] {
      if (world.rank() == failing) throw RunError("step 3", "NaN", "lower the learning rate");
    });
    EXPECT_EQ(run.message, name + "step 3: NaN\n  remedy: lower the learning rate");
    EXPECT_EQ(run.status, ExitStatus::failed_run);

    const Outcome foreign = outcome(world, [&] {
      if (world.rank() == failing) throw std::length_error("from a library");
    });
    EXPECT_EQ(foreign.message, name + "from a library");
    EXPECT_EQ(foreign.status, ExitStatus::failed_run);
  }
}

// On the host, its memory stands for a GPU's. A GPU's that the MPI library says it does not take is not tried.
TYPED_TEST(Collectives, memory_that_works_is_found_right) {
  const DeviceSupport said = device_support<TypeParam>();
  if (!said.supported) GTEST_SKIP() << "device memory: " << said.evidence;
  for (const Exchange exchange : {Exchange{}, by_pairs}) {
    const DeviceSupport tried = try_device_memory<TypeParam>(this->world, exchange);
    EXPECT_TRUE(tried.supported);
    EXPECT_EQ(tried.evidence, said.evidence + ", and exchanges came out right");
  }
}

/// A transport that does what the library's does, but for one collective whose result on one rank is wrong in one word,
/// or whose message goes to a rank that does not exist.
class Faulty : public Transport<Kokkos::Serial> {
public:
  using Floats = Vector<Kokkos::Serial, float>;

  Faulty(const Communicator& communicator, int rank_at_fault, const std::string& spoiled)
      : Transport(communicator),
        m_communicator(communicator),
        m_right(make_transport<Kokkos::Serial>(TransportKind::automatic, communicator)),
        m_rank_at_fault(rank_at_fault),
        m_spoiled(spoiled) {}

  void all_to_all(const Kokkos::Serial& exec, const Words& send, const Words& received) override {
    m_right->all_to_all(exec, send, received);
    spoil("all-to-all", [&] { received(received.extent(0) - 1) ^= 1u; });
    spoil("message", [&] { MPI_Send(nullptr, 0, MPI_BYTE, m_ranks, 0, m_communicator.get()); });
  }
  void all_gather(const Kokkos::Serial& exec, const Words& send, const Words& received) override {
    m_right->all_gather(exec, send, received);
    spoil("all-gather", [&] { received(0) ^= 1u; });
  }
  void allreduce(const Kokkos::Serial& exec, const Floats& values) override {
    m_right->allreduce(exec, values);
    spoil("allreduce", [&] { values(5) += 1; });
  }
  void reduce_scatter(const Kokkos::Serial& exec, const Floats& values,
                      const std::vector<std::size_t>& begins) override {
    m_right->reduce_scatter(exec, values, begins);
  }
  void exchange_ranges(const Kokkos::Serial& exec, const Floats& values, const std::vector<Range>& sent,
                       const std::vector<Range>& received, std::uint64_t Traffic::*counter) override {
    m_right->exchange_ranges(exec, values, sent, received, counter);
    if (counter == &Traffic::all_gather)
      spoil("reduce-scatter", [&] { values(7) += 1; });
    else
      spoil("redistribution", [&] { values(9) += 1; });
  }
  bool overlaps() const override { return false; }
  TransportKind kind() const override { return TransportKind::host; }

private:
  template <class Spoil>
  void spoil(const char* what, const Spoil& work) const {
    if (m_rank == m_rank_at_fault && m_spoiled == what) work();
  }

  const Communicator& m_communicator;
  std::unique_ptr<Transport<Kokkos::Serial>> m_right;
  int m_rank_at_fault;
  std::string m_spoiled;
};

/// What the library's message of MPI_ERR_RANK begins with.
#ifdef OPEN_MPI
constexpr char invalid_rank[] = "MPI_ERR_RANK";
#else
constexpr char invalid_rank[] = "Invalid rank";  // MPICH and those that are made of it
#endif

TEST(Probe, says_the_same_of_a_fault_on_every_rank) {
  const Communicator world;
  const auto found = [&](int rank_at_fault, const std::string& spoiled) {
    const MpiErrors errors(world);
    Faulty transport(world, rank_at_fault, spoiled);
    return fault_of(Kokkos::Serial(), world, transport, errors);
  };
  EXPECT_EQ(found(0, "nothing"), "");
  for (const int at_fault : {0, world.size() - 1}) {
    const std::string rank = " on rank " + std::to_string(at_fault);
    EXPECT_EQ(found(at_fault, "all-to-all"), "an all-to-all of 64 elements gave wrong values" + rank);
    EXPECT_EQ(found(at_fault, "all-gather"), "an all-gather of 64 elements gave wrong values" + rank);
    EXPECT_EQ(found(at_fault, "allreduce"), "an allreduce of 64 elements gave wrong values" + rank);
    EXPECT_EQ(found(at_fault, "reduce-scatter"),
              "a reduce-scatter and all-gather of 64 elements gave wrong values" + rank);
    // What the last rank got by it all others get from there.
    EXPECT_EQ(found(world.size() - 1, "redistribution"), "a redistribution of 64 elements gave wrong values on rank 0");
    const std::string refused = found(at_fault, "message");
    EXPECT_EQ(refused.rfind(std::string("an all-to-all of 64 elements failed (") + invalid_rank, 0), 0u) << refused;
    EXPECT_EQ(refused.substr(refused.size() - rank.size()), rank);
  }
  EXPECT_EQ(found(0, "nothing"), "");
}

TEST(DeviceSupport, ends_where_kokkos_allocates_from_a_pool) {
  EXPECT_TRUE(without_pools({true, "the library says yes"}, false).supported);
  EXPECT_EQ(without_pools({false, "the library says no"}, true).evidence, "the library says no");
  const DeviceSupport refused = without_pools({true, "the library says yes"}, true);
  EXPECT_FALSE(refused.supported);
  EXPECT_NE(refused.evidence.find("cudaMallocAsync"), std::string::npos);
  EXPECT_NE(refused.evidence.find("-DKokkos_ENABLE_IMPL_CUDA_MALLOC_ASYNC=OFF"), std::string::npos);
}

TEST(DeviceSupport, is_what_each_library_says) {
  struct Case {
    const char* version;
    const char* query;
    bool answer;
    const char* variable;
    const char* value;
    bool supported;
    const char* evidence;
  };
  const Case cases[] = {
      {"Open MPI v4.1.4", "MPIX_Query_cuda_support", true, "", "", true, "MPIX_Query_cuda_support says yes"},
      {"Open MPI v4.1.4", "MPIX_Query_cuda_support", false, "", "", false, "MPIX_Query_cuda_support says no"},
      {"Open MPI v5.0.1", "MPIX_Query_rocm_support", true, "I_MPI_OFFLOAD", "0", true,
       "MPIX_Query_rocm_support says yes"},
      {"MPICH Version: 4.2.0", "MPIX_GPU_query_support", true, "", "", true, "MPIX_GPU_query_support says yes"},
      {"MPICH Version: 4.2.0", "MPIX_GPU_query_support", true, "MPIR_CVAR_ENABLE_GPU", "0", false,
       "MPIR_CVAR_ENABLE_GPU=0 says no"},
      {"MPICH Version: 4.2.0", "MPIX_GPU_query_support", false, "MPIR_CVAR_ENABLE_GPU", "1", false,
       "MPIX_GPU_query_support says no"},
      {"MPICH Version: 3.4.3", "", false, "", "", false, "this MPI library has none of"},
      {"MPI VERSION : CRAY MPICH version 8.1.28", "MPIX_GPU_query_support", true, "", "", false,
       "MPICH_GPU_SUPPORT_ENABLED is not set"},
      {"MPI VERSION : CRAY MPICH version 8.1.28", "", false, "MPICH_GPU_SUPPORT_ENABLED", "1", true,
       "MPICH_GPU_SUPPORT_ENABLED=1 says yes"},
      {"MPI VERSION : CRAY MPICH version 8.1.28", "", false, "MPICH_GPU_SUPPORT_ENABLED", "0", false,
       "MPICH_GPU_SUPPORT_ENABLED=0 says no"},
      {"MVAPICH2 Version : 2.3.7", "MPIX_Query_cuda_support", true, "", "", false,
       "MV2_USE_CUDA and MV2_USE_ROCM is not"},
      {"MVAPICH2 Version : 2.3.7", "", false, "MV2_USE_CUDA", "1", true, "MV2_USE_CUDA=1 says yes"},
      {"MVAPICH2 Version : 2.3.7", "", false, "MV2_USE_ROCM", "1", true, "MV2_USE_ROCM=1 says yes"},
      {"MVAPICH Version : 4.0", "MPIX_Query_cuda_support", true, "", "", true, "MPIX_Query_cuda_support says yes"},
      {"MVAPICH Version : 4.0", "MPIX_Query_cuda_support", true, "MVP_ENABLE_GPU", "0", false,
       "MVP_ENABLE_GPU=0 says no"},
      {"Intel(R) MPI Library 2021.9", "", false, "", "", false, "I_MPI_OFFLOAD is not set"},
      {"Intel(R) MPI Library 2021.9", "", false, "I_MPI_OFFLOAD", "1", true, "I_MPI_OFFLOAD=1 says yes"},
      {"Intel(R) MPI Library 2021.9", "", false, "I_MPI_OFFLOAD", "0", false, "I_MPI_OFFLOAD=0 says no"},
      {"another library", "", false, "", "", false, "this MPI library has none of"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(std::string(one.version) + " " + one.variable + "=" + one.value);
    const auto environment = [&](const char* name) { return std::string(name) == one.variable ? one.value : nullptr; };
    const DeviceSupport said = said_by({one.version, one.query, one.answer, environment});
    EXPECT_EQ(said.supported, one.supported);
    EXPECT_NE(said.evidence.find(one.evidence), std::string::npos) << said.evidence;
  }
}

TEST(DeviceSupport, is_asked_of_this_library) {
  const MpiLibrary library = this_mpi_library();
  EXPECT_FALSE(library.version.empty());
#ifdef OPEN_MPI
  EXPECT_FALSE(library.query.empty());
#endif
}

TEST(DeviceSupport, is_tried_where_somebody_says_that_it_is_there) {
  const DeviceSupport yes{true, ""}, no{false, ""};
  EXPECT_TRUE(is_tried(TransportKind::automatic, yes, false));
  EXPECT_FALSE(is_tried(TransportKind::automatic, no, false));
  EXPECT_TRUE(is_tried(TransportKind::device, yes, false));
  EXPECT_TRUE(is_tried(TransportKind::device, no, false));
  EXPECT_FALSE(is_tried(TransportKind::device, no, true));
  EXPECT_FALSE(is_tried(TransportKind::host, yes, false));
}

TEST(Gpus, ranks_take_them_in_turn) {
  EXPECT_EQ(gpu_of_rank(3, -1), -1);
  EXPECT_EQ(gpu_of_rank(3, 0), -1);
  EXPECT_EQ(gpu_of_rank(3, 1), 0);
  EXPECT_EQ(gpu_of_rank(3, 4), 3);
  EXPECT_EQ(gpu_of_rank(5, 4), 1);
}

TEST(Gpus, too_few_are_told) {
  EXPECT_EQ(sharing_warning(4, -1), "");
  EXPECT_EQ(sharing_warning(4, 4), "");
  EXPECT_EQ(sharing_warning(4, 1).rfind("4 ranks of a host share 1 GPU\n", 0), 0u);
  EXPECT_EQ(sharing_warning(4, 2).rfind("4 ranks of a host share 2 GPUs\n", 0), 0u);
}

TEST(Gpus, mig_instances_differ_in_their_uuid) {
  char first[16] = {1, 2, 3}, second[16] = {1, 2, 3};
  EXPECT_EQ(number_of(first), number_of(second));
  second[15] = 1;
  EXPECT_NE(number_of(first), number_of(second));
  std::fill(second, second + 16, static_cast<char>(-1));
  EXPECT_LT(number_of(second), std::ldexp(1.0, 53));
}

TEST(Gpus, sharers_have_the_same_host_and_address) {
  using Ranks = std::vector<int>;
  EXPECT_EQ(lowest_sharers({0}, {7}), Ranks{0});
  EXPECT_EQ(lowest_sharers({0, 0, 2, 2}, {7, 8, 7, 8}), (Ranks{0, 1, 2, 3}));
  EXPECT_EQ(lowest_sharers({0, 0, 2, 2}, {7, 8, 8, 8}), (Ranks{0, 1, 2, 2}));
  EXPECT_EQ(lowest_sharers({0, 1, 0}, {7, 7, 7}), (Ranks{0, 1, 0}));
}

TEST(Gpus, ranks_of_a_host_share_its_memory) {
  const Communicator world;
  EXPECT_EQ(lowest_sharers<Kokkos::Serial>(world), world.hosts());
}

TEST(Nccl, takes_one_rank_to_a_gpu) {
  EXPECT_NO_THROW(one_rank_to_a_gpu({0, 1, 2}));
  try {
    one_rank_to_a_gpu({0, 1, 2, 1});
    ADD_FAILURE() << "ranks 1 and 3 share a GPU";
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("ranks 1 and 3 share one"), std::string::npos) << error.what();
  }
}

#ifdef ONEBIT_GPU
TEST(Nccl, exchanges_come_out_right) {
  if (nccl_version().empty()) GTEST_SKIP() << "nccl: this build has none";
  const Communicator world;
  const std::vector<int> sharers = lowest_sharers<GpuExec>(world);
  if (std::set<int>(sharers.begin(), sharers.end()).size() < sharers.size()) {
    EXPECT_THROW(make_transport<GpuExec>(TransportKind::nccl, world), InputError);
    GTEST_SKIP() << "nccl: ranks share a GPU, which the transport refused";
  }
  const auto transport = make_transport<GpuExec>(TransportKind::nccl, world);
  EXPECT_EQ(transport->kind(), TransportKind::nccl);
  const MpiErrors errors(world);
  EXPECT_EQ(fault_of(GpuExec(), world, *transport, errors), "");
}
#endif

TEST(Nccl, is_refused_for_host_memory) {
  const Communicator world;
  EXPECT_THROW(make_transport<Kokkos::Serial>(TransportKind::nccl, world), InputError);
}

TEST(Communicator, agrees_on_the_lowest_rank_that_failed) {
  const Communicator world;
  const auto fail = [&] {
    const std::string me = std::to_string(world.rank());
    if (world.rank() % 2 == 0) throw InputError("rank " + me, "input", "none");
    throw RunError("rank " + me, "run", "none");
  };
  const Outcome all = outcome(world, fail);
  EXPECT_EQ(all.message, "rank 0: input\n  remedy: none");
  EXPECT_EQ(all.status, ExitStatus::bad_input);

  const Outcome but_first = outcome(world, [&] {
    if (world.rank() > 0) fail();
  });
  EXPECT_EQ(but_first.message, world.size() == 1 ? "" : "rank 1: rank 1: run\n  remedy: none");
  EXPECT_EQ(but_first.status, world.size() == 1 ? ExitStatus::success : ExitStatus::failed_run);
}

}  // namespace
}  // namespace onebit::comm
