/// \file overlapped_average_test.cpp
/// The average in buckets against the average of the whole vector, bit for bit, however ranks come along.

#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "../support.hpp"
#include "base/activity.hpp"
#include "base/mpi.hpp"
#include "comm/allreduce.hpp"
#include "comm/overlapped_average.hpp"

namespace onebit::comm {
namespace {

constexpr Exchange pairwise{32768};
constexpr std::size_t block_bytes = block_length * sizeof(float);

std::unique_ptr<Transport<Kokkos::Serial>> host_transport(const Communicator& communicator, Exchange exchange) {
  return make_transport<Kokkos::Serial>(TransportKind::automatic, communicator, std::numeric_limits<int>::max(),
                                        exchange);
}

template <class Exec>
std::vector<float> average_of_whole(const Communicator& communicator, const std::vector<float>& values) {
  const auto transport =
      make_transport<Exec>(TransportKind::automatic, communicator, std::numeric_limits<int>::max(), pairwise);
  const auto device = test::to_device<Exec>(values);
  PhaseTimes times;
  average(Exec(), *transport, communicator.size(), device, times);
  return test::to_host(device);
}

template <class Exec>
class Overlapped : public ::testing::Test {};
TYPED_TEST_SUITE(Overlapped, test::Backends, test::BackendNames);

TYPED_TEST(Overlapped, average_is_that_of_the_whole_vector) {
  const Communicator world, buckets;
  const TypeParam exec;
  for (const std::size_t length : {std::size_t{1}, std::size_t{1024}, std::size_t{5000}, std::size_t{70007}}) {
    const std::vector<float> values = test::random_values(length, 10 + world.rank());
    const std::vector<float> expected = average_of_whole<TypeParam>(world, values);
    for (const std::size_t bucket_bytes :
         {std::size_t{1}, block_bytes, 3 * block_bytes + 1, std::size_t{100000}, std::size_t{1} << 30}) {
      OverlappedAverage<TypeParam> overlapped(host_transport(buckets, pairwise), world.size(), length, bucket_bytes);
      // How a rank says what is final: not at all, at once, in small and in large steps; ranks differ in it.
      for (int way = 0; way < 4; ++way) {
        SCOPED_TRACE(testing::Message() << "length " << length << " bucket " << bucket_bytes << " way " << way);
        const auto device = test::to_device<TypeParam>(values);
        std::size_t seen_from = length;
        bool as_they_were = true;
        overlapped.start(exec, device, [&](std::size_t begin, std::size_t end) {
          EXPECT_EQ(end, seen_from);
          EXPECT_EQ(begin % block_length, 0u);
          EXPECT_LT(begin, end);
          seen_from = begin;
          const auto bucket = Kokkos::subview(device, std::make_pair(begin, end));
          as_they_were =
              as_they_were && test::to_host(bucket) == std::vector<float>(values.begin() + begin, values.begin() + end);
        });
        const std::size_t steps[] = {0, length, 700, 9001};
        if (const std::size_t step = steps[(way + world.rank()) % 4]; step > 0)
          for (std::size_t b = length; b > 0; b -= std::min(b, step)) overlapped.final_from(b - std::min(b, step));
        PhaseTimes times;
        EXPECT_GE(overlapped.wait(times), 0);
        EXPECT_EQ(seen_from, 0u);
        EXPECT_TRUE(as_they_were);
        EXPECT_TRUE(test::same_bits(test::to_host(device), expected));
      }
      // Each bucket's share is rounded down to whole bytes.
      const std::uint64_t all = 4 * (2 * (world.size() - 1) * length * sizeof(float) / world.size());
      EXPECT_LE(overlapped.transport().traffic().total(), all);
      EXPECT_GE(overlapped.transport().traffic().total() + 4 * (length / block_length + 1), all);
    }
  }
}

TYPED_TEST(Overlapped, average_by_collectives_is_that_of_the_bucket) {
  const Communicator world, buckets;
  const std::size_t length = 3000, cut = 2 * block_length;
  const std::vector<float> values = test::random_values(length, 20 + world.rank());
  OverlappedAverage<TypeParam> overlapped(host_transport(buckets, {}), world.size(), length, 2 * block_bytes);
  const auto device = test::to_device<TypeParam>(values);
  overlapped.start(TypeParam(), device, [](std::size_t, std::size_t) {});
  PhaseTimes times;
  overlapped.wait(times);

  const auto transport = make_transport<TypeParam>(TransportKind::automatic, world);
  const auto parts = test::to_device<TypeParam>(values);
  for (const auto& part : {std::make_pair(cut, length), std::make_pair(std::size_t{0}, cut)}) {
    const Vector<TypeParam, float> bucket = Kokkos::subview(parts, part);
    average(TypeParam(), *transport, world.size(), bucket, times);
  }
  EXPECT_TRUE(test::same_bits(test::to_host(device), test::to_host(parts)));
}

TYPED_TEST(Overlapped, is_worthwhile_with_more_than_one_bucket) {
  using Average = OverlappedAverage<TypeParam>;
  EXPECT_FALSE(Average::worthwhile(block_length, 1));
  EXPECT_TRUE(Average::worthwhile(block_length + 1, 1));
  EXPECT_FALSE(Average::worthwhile(3 * block_length, 2 * block_bytes + 4));
  EXPECT_TRUE(Average::worthwhile(3 * block_length, 2 * block_bytes));
}

TYPED_TEST(Overlapped, ends_when_it_is_not_used) {
  const Communicator world, buckets;
  const Vector<TypeParam, float> values("OneBit::test::values", 5000);
  OverlappedAverage<TypeParam> never(host_transport(buckets, pairwise), world.size(), 5000, 1);
  OverlappedAverage<TypeParam> left(host_transport(buckets, pairwise), world.size(), 5000, 1);
  left.start(TypeParam(), values, [](std::size_t, std::size_t) {});
}

/// A transport that fails in its second average.
class Failing : public Transport<Kokkos::Serial> {
public:
  explicit Failing(const Communicator& communicator) : Transport(communicator) {}
  void all_to_all(const Kokkos::Serial&, const Words&, const Words&) override {}
  void all_gather(const Kokkos::Serial&, const Words&, const Words&) override {}
  void reduce_scatter(const Kokkos::Serial&, const Vector<Kokkos::Serial, float>&,
                      const std::vector<std::size_t>&) override {}
  void all_gather(const Kokkos::Serial&, const Vector<Kokkos::Serial, float>&,
                  const std::vector<std::size_t>&) override {}
  bool overlaps() const override { return false; }
  void allreduce(const Kokkos::Serial&, const Vector<Kokkos::Serial, float>&) override {
    if (++m_calls == 2) throw std::runtime_error("the second bucket failed");
  }
  std::string name() const override { return "failing"; }

private:
  int m_calls = 0;
};

/// A transport whose messages take a while: two messages a bucket, which the thread waits for one after the other.
class Slow : public Failing {
public:
  explicit Slow(const Communicator& communicator) : Failing(communicator) {}
  void allreduce(const Kokkos::Serial&, const Vector<Kokkos::Serial, float>&) override {
    for (int message = 0; message < 2; ++message) {
      const Activity activity("OneBit::test::message", waits_for_ranks);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
};

/// While a rank waits for its buckets, the watchdog must see that they come in: on slow links a sound average takes
/// longer than run.watchdog_seconds.
TYPED_TEST(Overlapped, each_part_of_a_bucket_counts_as_going_on) {
  const std::size_t buckets = 5;
  const Vector<TypeParam, float> values("OneBit::test::values", buckets * block_length);
  const Communicator world;
  OverlappedAverage<TypeParam> overlapped(std::make_unique<Slow>(world), 2, values.extent(0), block_bytes);
  overlapped.start(TypeParam(), values, [](std::size_t, std::size_t) {});
  PhaseTimes times;
  Activity::watch(true);
  const std::uint64_t before = Activity::seen().changes;
  overlapped.final_from(0);
  const std::uint64_t handed_over = Activity::seen().changes;
  overlapped.wait(times);
  const std::uint64_t own = 2;  // `wait` is an activity, which begins and ends
  EXPECT_GE(Activity::seen().changes, handed_over + own + 2 * buckets - 1) << "handed over in " << handed_over - before;
  Activity::watch(false);
}

TYPED_TEST(Overlapped, error_of_the_thread_comes_out_of_wait) {
  const Vector<TypeParam, float> values("OneBit::test::values", 5000);
  const Communicator world;
  OverlappedAverage<TypeParam> overlapped(std::make_unique<Failing>(world), 2, 5000, 1);
  overlapped.start(TypeParam(), values, [](std::size_t, std::size_t) {});
  overlapped.final_from(0);
  PhaseTimes times;
  try {
    overlapped.wait(times);
    FAIL() << "wait returned";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the second bucket failed");
  }
}

}  // namespace
}  // namespace onebit::comm
