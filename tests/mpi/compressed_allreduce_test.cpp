/// \file compressed_allreduce_test.cpp
/// What is installed for other codes: each option reaches the compressed allreduce, whose simulation the results equal
/// bit for bit. The other tests of comm_test show the rest.

#include "comm/library/compressed_allreduce.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "../support.hpp"
#include "base/error.hpp"
#include "base/mpi.hpp"
#include "comm/reference.hpp"
#include "comm/transport/combined/grid.hpp"

namespace onebit {
namespace {

template <class Exec>
class Library : public ::testing::Test {};
TYPED_TEST_SUITE(Library, test::Backends, test::BackendNames);

TYPED_TEST(Library, equals_simulation) {
  const Communicator world;
  constexpr std::size_t length = 1000;
  const int n = world.size(), columns = comm::columns_of_grid(n), rows = n / columns;
  for (const bool error_feedback : {true, false})
    for (const auto& [message_bytes, grid] :
         {std::pair<std::size_t, bool>(0, false), std::pair<std::size_t, bool>(256, false),
          std::pair<std::size_t, bool>(0, true)})
      for (const std::size_t group : {0, 64})
        for (const int bits : {1, 4}) {
          SCOPED_TRACE(::testing::Message() << bits << " bits, group " << group << ", error feedback " << error_feedback
                                            << ", messages " << message_bytes << ", grid " << grid);
          CompressedAllreduceOptions options;
          options.bits = bits;
          options.group = group;
          options.error_feedback = error_feedback;
          options.message_bytes = message_bytes;
          options.grid = grid;
          options.backend = BackendName<TypeParam>::value;
          CompressedAllreduce allreduce(MPI_COMM_WORLD, length, options);

          compress::Options compressor;
          compressor.kind = bits == 1 ? CompressorKind::sign : CompressorKind::nbit;
          compressor.bits = bits;
          const auto grouping = group == 0 ? compress::Grouping::vector : compress::Grouping::fixed;
          const compress::LayoutRef layout(length, world.size(), grouping, group);
          comm::CompressedAllreduceRef simulation(layout, compressor, error_feedback);
          for (std::uint64_t call = 0; call < 3; ++call) {
            std::vector<std::vector<float>> all;
            for (int rank = 0; rank < world.size(); ++rank)
              all.push_back(test::random_values(length, 10 * call + static_cast<std::uint64_t>(rank)));
            const auto x = test::to_device<TypeParam>(all[world.rank()]);
            const float residual_factor = call == 2 ? 0.5f : 1.0f;
            allreduce(x.data(), residual_factor);
            EXPECT_TRUE(test::same_bits(test::to_host(x), simulation(all, residual_factor)));
          }
          // In each call a message to every other rank, and then its own message.
          const int to_all = grid ? (columns - 1) * rows + (rows - 1) * columns : n - 1;
          EXPECT_EQ(allreduce.bytes_sent(),
                    3 * 4 * compress::message_words_ref(layout, compressor) * static_cast<std::size_t>(to_all + n - 1));
        }
}

/// (rows, columns) of some matrices that lie one behind the other.
const std::vector<std::pair<std::size_t, std::size_t>> matrices = {{5, 37}, {1, 200}, {40, 7}, {3, 64}, {11, 11}};

/// Groups that are rows, and chunks that begin at matrices. \param length of all, counted
CompressedAllreduceOptions of_matrices(std::size_t& length) {
  CompressedAllreduceOptions options;
  length = 0;
  for (const auto& [rows, columns] : matrices) {
    options.chunk_borders.push_back(length);
    for (std::size_t row = 0; row < rows; ++row, length += columns) options.group_begins.push_back(length);
  }
  return options;
}

TYPED_TEST(Library, serves) {
  const Communicator world;
  std::size_t length = 0;
  CompressedAllreduceOptions options = of_matrices(length);
  options.backend = BackendName<TypeParam>::value;
  for (const std::size_t message_bytes : {0, 256})
    for (const float factor : {1.0f, -3.0f}) {
      SCOPED_TRACE(::testing::Message() << "messages " << message_bytes << ", factor " << factor);
      options.message_bytes = message_bytes;
      CompressedAllreduce served(MPI_COMM_WORLD, length, options), plain(MPI_COMM_WORLD, length, options);
      comm::CompressedAllreduceRef simulation(
          {length, world.size(), compress::Grouping::tensor, 0, options.group_begins, options.chunk_borders}, {});
      // By its place, so that a chunk which is taken for another one shows.
      const auto server = [&](float value, std::size_t i) { return factor == 1 ? value : factor * value + i % 5; };
      for (std::uint64_t call = 0; call < 3; ++call) {
        std::vector<std::vector<float>> all;
        for (int rank = 0; rank < world.size(); ++rank)
          all.push_back(test::random_values(length, 10 * call + static_cast<std::uint64_t>(rank)));
        const auto x = test::to_device<TypeParam>(all[world.rank()]), y = test::to_device<TypeParam>(all[world.rank()]);
        served.run_served(x.data(), [&](float* chunk, std::size_t first, std::size_t count) {
          EXPECT_EQ(chunk, x.data() + first);
          EXPECT_EQ(first, served.chunk().first);
          EXPECT_EQ(count, served.chunk().length);
          const Vector<TypeParam, float> values(chunk, count);
          std::vector<float> made = test::to_host(values);
          for (std::size_t i = 0; i < count; ++i) made[i] = server(made[i], first + i);
          Kokkos::deep_copy(values, test::to_device<TypeParam>(made));
        });
        EXPECT_TRUE(test::same_bits(test::to_host(x), simulation(all, 1, [&](auto& chunk, std::size_t first) {
                                      for (std::size_t i = 0; i < chunk.size(); ++i)
                                        chunk[i] = server(chunk[i], first + i);
                                    })));
        plain(y.data());
        EXPECT_EQ(test::same_bits(test::to_host(x), test::to_host(y)), factor == 1);
      }
    }
}

TEST(Library, chunks_begin_at_borders) {
  const Communicator world;
  std::size_t length = 0;
  const CompressedAllreduceOptions options = of_matrices(length);
  const CompressedAllreduce::Chunk chunk = CompressedAllreduce(MPI_COMM_WORLD, length, options).chunk();
  std::vector<std::size_t> borders = options.chunk_borders;
  borders.push_back(length);
  for (const std::size_t end : {chunk.first, chunk.first + chunk.length})
    EXPECT_TRUE(std::count(borders.begin(), borders.end(), end)) << end;
  std::size_t sum = chunk.length;
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_UNSIGNED_LONG, MPI_SUM, world.get());
  EXPECT_EQ(sum, length);
}

TEST(Library, what_a_server_throws_leaves_the_call) {
  const Communicator world;
  CompressedAllreduce allreduce(MPI_COMM_WORLD, 1000);
  std::vector<float> x(1000, 1.0f);
  const auto serve = [&](float*, std::size_t, std::size_t) {
    if (world.rank() == 0) throw RunError("server", "it is out of order", "repair it");
  };
  if (world.rank() == 0)
    EXPECT_THROW(allreduce.run_served(x.data(), serve), RunError);
  else
    EXPECT_THROW(allreduce.run_served(x.data(), serve), InputError);
  EXPECT_THROW(allreduce.run_served(x.data(), nullptr), InputError);
}

/// A transport of the caller that exchanges by MPI.
CallersTransport by_mpi(const Communicator& world) {
  const auto count = [](std::size_t bytes) { return static_cast<int>(bytes); };
  return {world.rank(), world.size(),
          [=, &world](const void* send, void* received, std::size_t bytes) {
            MPI_Alltoall(send, count(bytes), MPI_BYTE, received, count(bytes), MPI_BYTE, world.get());
          },
          [=, &world](const void* send, void* received, std::size_t bytes) {
            MPI_Allgather(send, count(bytes), MPI_BYTE, received, count(bytes), MPI_BYTE, world.get());
          }};
}

TEST(Library, takes_a_transport_of_the_caller) {
  const Communicator world;
  std::vector<float> x = test::random_values(1000, world.rank()), y = x;
  CompressedAllreduce(MPI_COMM_WORLD, x.size())(x.data());
  CompressedAllreduce allreduce(by_mpi(world), y.size());
  allreduce(y.data());
  EXPECT_TRUE(test::same_bits(x, y));
  EXPECT_EQ(allreduce.bytes_sent() > 0, world.size() > 1);

  CallersTransport failing = by_mpi(world);
  failing.all_to_all = [](const void*, void*, std::size_t) {
    throw RunError("carrier", "it is gone", "bring it back");
  };
  if (world.size() > 1) {
    EXPECT_THROW(CompressedAllreduce(failing, 8)(y.data()), RunError);
  }
}

TEST(Library, refuses_the_average_that_is_not_finite) {
  const Communicator world;
  CompressedAllreduce allreduce(MPI_COMM_WORLD, 100);
  std::vector<float> x(100, 1.0f);
  if (world.rank() == world.size() - 1) x[70] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(allreduce(x.data()), InputError);  // on every rank
  x.assign(100, 1.0f);
  EXPECT_THROW(allreduce(x.data()), InputError) << "it stays in the residuals";
  const auto lengths = allreduce.residual_lengths();
  const std::vector<float> worker(lengths.worker), server(lengths.server);
  allreduce.set_residuals(worker.data(), server.data());
  x.assign(100, 1.0f);
  allreduce(x.data());
  EXPECT_EQ(x[70], 1);
}

TEST(Library, runs_on_the_host_by_itself) {
  float x[] = {3, -3};  // of the same size, so one scale for both loses nothing
  CompressedAllreduce allreduce(MPI_COMM_WORLD, 2);
  allreduce(x);
  EXPECT_EQ(x[0], 3);
  EXPECT_EQ(x[1], -3);
}

std::string message_of(const CompressedAllreduceOptions& options, std::size_t length = 8) {
  try {
    CompressedAllreduce(MPI_COMM_WORLD, length, options);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(Library, refuses_ranks_that_differ) {
  const Communicator world;
  const bool last = world.rank() == world.size() - 1;
  const auto expect = [&](const std::string& message, const std::string& name) {  // on every rank
    if (world.size() == 1) return;
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find("on rank " + std::to_string(world.size() - 1)), std::string::npos) << message;
  };
  expect(message_of({}, last ? 9 : 8), "length is 8 on rank 0 and 9");
  CompressedAllreduceOptions options;
  options.bits = last ? 17 : 1;
  expect(message_of(options), "bits is 1 on rank 0 and 17");
  options.bits = 1;
  options.group_begins = {0, last ? std::size_t{5} : std::size_t{4}};
  expect(message_of(options), "the checksum of group_begins is ");
  options.group_begins.clear();
  options.chunk_borders.assign(last ? 1 : 0, 0);
  expect(message_of(options), "the checksum of chunk_borders is 0 on rank 0 and ");
  options.chunk_borders.clear();
  options.backend = last ? "gpu" : "serial";
  expect(message_of(options), "the number of the backend (0 for one that this build lacks) is 1 on rank 0 and 0");
}

TEST(Library, refuses_options) {
  EXPECT_NE(message_of({}, 0).find("length is 0"), std::string::npos);
  CompressedAllreduceOptions options;
  options.bits = 17;
  EXPECT_NE(message_of(options).find("17 bits"), std::string::npos);
  options.bits = 1;
  options.group = 33;
  EXPECT_NE(message_of(options).find("multiple of 32"), std::string::npos);
  options.group = static_cast<std::size_t>(-32);
  EXPECT_NE(message_of(options).find("a group of"), std::string::npos);
  options.group = 0;
  EXPECT_NE(message_of({}, static_cast<std::size_t>(-1)).find("a length of"), std::string::npos);
  options.message_bytes = std::size_t{1} << 31;
  EXPECT_NE(message_of(options).find("less than 2 GiB"), std::string::npos);
  options.message_bytes = 256;
  options.grid = true;
  EXPECT_NE(message_of(options).find("message_bytes and grid"), std::string::npos);
  options.grid = false;
  options.message_bytes = 0;
  options.backend = "gpu";
  EXPECT_NE(message_of(options).find("no backend 'gpu'"), std::string::npos);
}

}  // namespace
}  // namespace onebit
