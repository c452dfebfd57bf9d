/// \file overlapped_average_test.cpp
/// The average in buckets against the average of the whole vector, bit for bit, however ranks come along. The schedule
/// of the buckets alone, with averages that take a while, fail, or do nothing.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "../support.hpp"
#include "base/mpi.hpp"
#include "base/system/activity.hpp"
#include "comm/compressed_average.hpp"
#include "comm/overlap/bucket_pipeline.hpp"
#include "comm/overlap/overlapped_average.hpp"

namespace onebit::comm {
namespace {

constexpr Exchange pairwise{32768};
constexpr std::size_t block_bytes = block_length * sizeof(float);

template <class Exec>
std::unique_ptr<BucketAverage<Exec>> on_host(const Communicator& communicator, Exchange exchange, std::size_t bytes) {
  return make_bucket_average<Exec>(make_transport<Kokkos::Serial>(TransportKind::automatic, communicator, exchange),
                                   bucket_length(bytes));
}

template <class Exec>
std::vector<float> average_of_whole(const Communicator& communicator, const std::vector<float>& values) {
  const auto transport = make_transport<Exec>(TransportKind::automatic, communicator, pairwise);
  const auto device = test::to_device<Exec>(values);
  PhaseTimes times;
  average(Exec(), *transport, device, times);
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
      const auto average = on_host<TypeParam>(buckets, pairwise, bucket_bytes);
      OverlappedAverage<TypeParam> overlapped;
      // How a rank says what is final: not at all, at once, in small and in large steps; ranks differ in it.
      for (int way = 0; way < 4; ++way) {
        SCOPED_TRACE(testing::Message() << "length " << length << " bucket " << bucket_bytes << " way " << way);
        const auto device = test::to_device<TypeParam>(values);
        std::size_t seen_from = length;
        bool as_they_were = true;
        overlapped.start(exec, *average, device, [&](std::size_t begin, std::size_t end) {
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
          for (std::size_t b = length; b > 0; b -= std::min(b, step)) overlapped.ready_from(b - std::min(b, step));
        PhaseTimes times;
        EXPECT_GE(overlapped.finish(times), 0);
        EXPECT_EQ(seen_from, 0u);
        EXPECT_TRUE(as_they_were);
        EXPECT_TRUE(test::same_bits(test::to_host(device), expected));
      }
      // Each bucket's share is rounded down to whole bytes.
      const std::uint64_t all = 4 * (2 * (world.size() - 1) * length * sizeof(float) / world.size());
      EXPECT_LE(average->traffic().total(), all);
      EXPECT_GE(average->traffic().total() + 4 * (length / block_length + 1), all);
    }
  }
}

TYPED_TEST(Overlapped, average_by_collectives_is_that_of_the_bucket) {
  const Communicator world, buckets;
  const std::size_t length = 3000, cut = 2 * block_length;
  const std::vector<float> values = test::random_values(length, 20 + world.rank());
  const auto by_collectives = on_host<TypeParam>(buckets, {}, 2 * block_bytes);
  OverlappedAverage<TypeParam> overlapped;
  const auto device = test::to_device<TypeParam>(values);
  overlapped.start(TypeParam(), *by_collectives, device, [](std::size_t, std::size_t) {});
  PhaseTimes times;
  overlapped.finish(times);

  const auto transport = make_transport<TypeParam>(TransportKind::automatic, world);
  const auto parts = test::to_device<TypeParam>(values);
  for (const auto& part : {std::make_pair(cut, length), std::make_pair(std::size_t{0}, cut)}) {
    const Vector<TypeParam, float> bucket = Kokkos::subview(parts, part);
    average(TypeParam(), *transport, bucket, times);
  }
  EXPECT_TRUE(test::same_bits(test::to_host(device), test::to_host(parts)));
}

TYPED_TEST(Overlapped, ends_when_it_is_not_used) {
  const Communicator world, buckets;
  const Vector<TypeParam, float> values("OneBit::test::values", 5000);
  const auto average = on_host<TypeParam>(buckets, pairwise, 1);
  OverlappedAverage<TypeParam> never;
  OverlappedAverage<TypeParam> left;
  left.start(TypeParam(), *average, values, [](std::size_t, std::size_t) {});
}

/// An average that leaves its buckets as they are.
template <class Exec>
struct NoAverage : BucketAverage<Exec> {
  std::size_t bucket_length() const override { return block_length; }
  void begin(const Vector<Exec, float>&, std::size_t, PhaseTimes&) override {}
  Traffic traffic() const override { return {}; }
  Traffic traffic_within_host() const override { return {}; }
};

/// Fails in its second average.
template <class Exec>
struct Failing final : NoAverage<Exec> {
  void begin(const Vector<Exec, float>&, std::size_t, PhaseTimes&) override {
    if (++calls == 2) throw std::runtime_error("the second bucket failed");
  }
  int calls = 0;
};

/// An average whose messages take a while: two messages a bucket, which the thread waits for one after the other.
template <class Exec>
struct Slow final : NoAverage<Exec> {
  void begin(const Vector<Exec, float>&, std::size_t, PhaseTimes&) override {
    for (int message = 0; message < 2; ++message) {
      const Activity activity("OneBit::test::message", waits_for_ranks);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
};

/// Notes which buckets it got and when, and takes up to 2 ms for each, in no order.
template <class Exec>
struct Noting final : NoAverage<Exec> {
  explicit Noting(const float* first) : first(first) {}
  void begin(const Vector<Exec, float>& bucket, std::size_t, PhaseTimes& times) override {
    const Stopwatch watch;
    began.push_back({static_cast<std::size_t>(bucket.data() - first), ready_begin.load()});
    most_under_way = std::max(most_under_way, began.size() - completed);
    std::this_thread::sleep_for(std::chrono::microseconds(began.size() * 7919 % 2000));
    times.add(Phase::allreduce, watch.seconds());
  }
  void serve(std::size_t place, PhaseTimes&) override { served.push_back(place); }
  void finish(std::size_t place, PhaseTimes&) override {
    in_order = in_order && place == began[completed].begin && place == served[completed];
    ++completed;
  }
  /// Forgets all. \param length of the vector, none of which is final
  void restart(std::size_t length) {
    began.clear();
    served.clear();
    completed = 0;
    ready_begin = length;
  }
  struct Bucket {
    std::size_t begin, ready_begin;
  };
  const float* first;
  std::vector<Bucket> began;
  std::vector<std::size_t> served;
  std::size_t most_under_way = 0;
  bool in_order = true;  ///< whether the buckets were served and finished in the order in which they began
  std::atomic<std::size_t> ready_begin{0};  ///< what the caller has said to be final
  std::atomic<std::size_t> completed{0};
};

/// Writes down the parts of averages in the order in which they are called.
template <class Exec>
struct Recording final : NoAverage<Exec> {
  void begin(const Vector<Exec, float>&, std::size_t first, PhaseTimes&) override { add("begin", first); }
  void serve(std::size_t first, PhaseTimes&) override { add("serve", first); }
  void finish(std::size_t first, PhaseTimes&) override { add("finish", first); }
  void add(const char* part, std::size_t first) { parts += part + std::to_string(first) + " "; }
  std::string parts;
};

/// A bucket is served in the turn after the one in which it began, behind the beginning of the next bucket, and
/// finishes a turn later, whether or not there is a next one.
TYPED_TEST(Overlapped, three_buckets_are_under_way) {
  Recording<TypeParam> recording;
  BucketPipeline<TypeParam> pipeline(recording);
  PhaseTimes times;
  const auto begin = [&](std::size_t first) { return pipeline.begin({}, first, times); };
  EXPECT_EQ(begin(30), std::nullopt);
  EXPECT_EQ(begin(20), std::nullopt);
  EXPECT_EQ(begin(10), 30u);
  EXPECT_EQ(pipeline.advance(times), 20u);
  EXPECT_EQ(begin(0), 10u);
  EXPECT_EQ(pipeline.advance(times), std::nullopt);
  EXPECT_FALSE(pipeline.empty());
  EXPECT_EQ(pipeline.advance(times), 0u);
  EXPECT_TRUE(pipeline.empty());
  EXPECT_EQ(recording.parts,
            "begin30 begin20 serve30 begin10 serve20 finish30 serve10 finish20 begin0 finish10 serve0 finish0 ");
}

/// However late buckets become final and however long they take, each is averaged once, after it is final, the last
/// first, and `finish` returns when all are complete.
TYPED_TEST(Overlapped, each_bucket_is_averaged_once_after_it_is_complete) {
  const std::size_t buckets = 7, length = buckets * block_length - 100;
  const Vector<TypeParam, float> values("OneBit::test::values", length);
  Noting<TypeParam> notes(values.data());
  OverlappedAverage<TypeParam> overlapped;
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    notes.restart(length);
    std::size_t before = 0;
    overlapped.start(TypeParam(), notes, values, [&](std::size_t, std::size_t) { ++before; });
    for (std::size_t b = length; b > block_length; b -= std::min<std::size_t>(b, 300 + 500 * step)) {
      notes.ready_begin = b;
      overlapped.ready_from(b);
      EXPECT_EQ(before, (buckets * block_length - (b + block_length - 1) / block_length * block_length) / block_length);
      std::this_thread::sleep_for(std::chrono::microseconds(b * 31 % 400));
    }
    notes.ready_begin = 0;
    PhaseTimes times;
    const double hidden = overlapped.finish(times);
    EXPECT_EQ(notes.completed, buckets);
    EXPECT_TRUE(notes.in_order);
    EXPECT_LE(notes.most_under_way, 3u);
    EXPECT_EQ(before, buckets);
    EXPECT_GE(hidden, 0);
    ASSERT_EQ(notes.began.size(), buckets);
    for (std::size_t k = 0; k < buckets; ++k) {
      EXPECT_EQ(notes.began[k].begin, (buckets - 1 - k) * block_length);
      EXPECT_LE(notes.began[k].ready_begin, notes.began[k].begin);
    }
  }
}

/// While a rank waits for its buckets, the watchdog must see that they come in: on slow links a sound average takes
/// longer than run.watchdog_seconds.
TYPED_TEST(Overlapped, each_part_of_a_bucket_counts_as_going_on) {
  const std::size_t buckets = 5;
  const Vector<TypeParam, float> values("OneBit::test::values", buckets * block_length);
  Slow<TypeParam> slow;
  OverlappedAverage<TypeParam> overlapped;
  overlapped.start(TypeParam(), slow, values, [](std::size_t, std::size_t) {});
  PhaseTimes times;
  Activity::watch(true);
  const std::uint64_t before = Activity::seen().changes;
  overlapped.ready_from(0);
  const std::uint64_t handed_over = Activity::seen().changes;
  overlapped.finish(times);
  const std::uint64_t own = 2;  // `finish` is an activity, which begins and ends
  EXPECT_GE(Activity::seen().changes, handed_over + own + 2 * buckets - 1) << "handed over in " << handed_over - before;
  Activity::watch(false);
}

TYPED_TEST(Overlapped, error_of_the_thread_comes_out_of_finish) {
  const Vector<TypeParam, float> values("OneBit::test::values", 5000);
  Failing<TypeParam> failing;
  OverlappedAverage<TypeParam> overlapped;
  overlapped.start(TypeParam(), failing, values, [](std::size_t, std::size_t) {});
  overlapped.ready_from(0);
  PhaseTimes times;
  try {
    overlapped.finish(times);
    FAIL() << "finish returned";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "the second bucket failed");
  }
}

/// The processors on which a thread may run, from its file in /proc.
std::string processors_of(const std::filesystem::path& thread) {
  std::ifstream status(thread / "status");
  const std::string name = "Cpus_allowed_list:";
  for (std::string line; std::getline(status, line);)
    if (line.rfind(name, 0) == 0) return line.substr(name.size() + 1);
  return "";
}
std::set<std::filesystem::path> threads() {
  std::set<std::filesystem::path> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) all.insert(entry.path());
  return all;
}

#ifdef _OPENMP
// With OMP_PROC_BIND=close OMP_PLACES=cores, OpenMP pins the first thread, which starts the averaging thread. The
// parent is not pinned.
TEST(Binding, averaging_thread_runs_on_every_processor_of_the_process) {
  if (omp_get_num_places() == 0) return;  // the test mpi.binding sets them
  const std::string all = processors_of("/proc/" + std::to_string(getppid()));
  const std::set<std::filesystem::path> before = threads();
  OverlappedAverage<Kokkos::Serial> overlapped;
  int started = 0;
  for (const auto& thread : threads()) {
    if (before.count(thread) > 0) continue;
    ++started;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (processors_of(thread) != all && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_EQ(processors_of(thread), all);
  }
  EXPECT_EQ(started, 1);
}
#endif

}  // namespace
}  // namespace onebit::comm
