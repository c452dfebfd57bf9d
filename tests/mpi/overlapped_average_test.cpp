/// \file overlapped_average_test.cpp
/// The average in buckets against the average of the whole vector, bit for bit, however ranks come along. The schedule
/// of the buckets alone, with averages that take a while, fail, or do nothing.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
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
std::unique_ptr<BucketAverage<Exec>> on_host(const Communicator& communicator, Exchange exchange) {
  return make_bucket_average<Exec>(make_transport<Kokkos::Serial>(TransportKind::automatic, communicator,
                                                                  std::numeric_limits<int>::max(), exchange));
}

template <class Exec>
std::vector<float> average_of_whole(const Communicator& communicator, const std::vector<float>& values) {
  const auto transport =
      make_transport<Exec>(TransportKind::automatic, communicator, std::numeric_limits<int>::max(), pairwise);
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
      OverlappedAverage<TypeParam> overlapped(on_host<TypeParam>(buckets, pairwise), length, bucket_bytes);
      // How a rank says what is final: not at all, at once, in small and in large steps; ranks differ in it.
      for (int way = 0; way < 4; ++way) {
        SCOPED_TRACE(testing::Message() << "length " << length << " bucket " << bucket_bytes << " way " << way);
        const auto device = test::to_device<TypeParam>(values);
        std::size_t seen_from = length;
        bool as_they_were = true;
        overlapped.start(exec, device, 1, [&](std::size_t begin, std::size_t end) {
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
      EXPECT_LE(overlapped.traffic().total(), all);
      EXPECT_GE(overlapped.traffic().total() + 4 * (length / block_length + 1), all);
    }
  }
}

TYPED_TEST(Overlapped, average_by_collectives_is_that_of_the_bucket) {
  const Communicator world, buckets;
  const std::size_t length = 3000, cut = 2 * block_length;
  const std::vector<float> values = test::random_values(length, 20 + world.rank());
  OverlappedAverage<TypeParam> overlapped(on_host<TypeParam>(buckets, {}), length, 2 * block_bytes);
  const auto device = test::to_device<TypeParam>(values);
  overlapped.start(TypeParam(), device, 1, [](std::size_t, std::size_t) {});
  PhaseTimes times;
  overlapped.wait(times);

  const auto transport = make_transport<TypeParam>(TransportKind::automatic, world);
  const auto parts = test::to_device<TypeParam>(values);
  for (const auto& part : {std::make_pair(cut, length), std::make_pair(std::size_t{0}, cut)}) {
    const Vector<TypeParam, float> bucket = Kokkos::subview(parts, part);
    average(TypeParam(), *transport, bucket, times);
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
  OverlappedAverage<TypeParam> never(on_host<TypeParam>(buckets, pairwise), 5000, 1);
  OverlappedAverage<TypeParam> left(on_host<TypeParam>(buckets, pairwise), 5000, 1);
  left.start(TypeParam(), values, 1, [](std::size_t, std::size_t) {});
}

/// An average that leaves its buckets as they are.
template <class Exec>
struct NoAverage : BucketAverage<Exec> {
  void begin(const Vector<Exec, float>&, long, std::size_t, PhaseTimes&) override {}
  Traffic traffic() const override { return {}; }
  Traffic traffic_within_host() const override { return {}; }
};

/// Fails in its second average.
template <class Exec>
struct Failing final : NoAverage<Exec> {
  void begin(const Vector<Exec, float>&, long, std::size_t, PhaseTimes&) override {
    if (++calls == 2) throw std::runtime_error("the second bucket failed");
  }
  int calls = 0;
};

/// An average whose messages take a while: two messages a bucket, which the thread waits for one after the other.
template <class Exec>
struct Slow final : NoAverage<Exec> {
  void begin(const Vector<Exec, float>&, long, std::size_t, PhaseTimes&) override {
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
  void begin(const Vector<Exec, float>& bucket, long, std::size_t, PhaseTimes& times) override {
    const Stopwatch watch;
    began.push_back({static_cast<std::size_t>(bucket.data() - first), final_begin.load()});
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
    final_begin = length;
  }
  struct Bucket {
    std::size_t begin, final_begin;
  };
  const float* first;
  std::vector<Bucket> began;
  std::vector<std::size_t> served;
  std::size_t most_under_way = 0;
  bool in_order = true;  ///< whether the buckets were served and finished in the order in which they began
  std::atomic<std::size_t> final_begin{0};  ///< what the caller has said to be final
  std::atomic<std::size_t> completed{0};
};

/// Writes down the parts of averages in the order in which they are called.
template <class Exec>
struct Recording final : NoAverage<Exec> {
  void begin(const Vector<Exec, float>&, long, std::size_t first, PhaseTimes&) override { add("begin", first); }
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
  const auto begin = [&](std::size_t first) { return pipeline.begin({}, 1, first, times); };
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
/// first, and `wait` returns when all are complete.
TYPED_TEST(Overlapped, each_bucket_is_averaged_once_after_it_is_final) {
  const std::size_t buckets = 7, length = buckets * block_length - 100;
  const Vector<TypeParam, float> values("OneBit::test::values", length);
  auto noting = std::make_unique<Noting<TypeParam>>(values.data());
  Noting<TypeParam>& notes = *noting;
  OverlappedAverage<TypeParam> overlapped(std::move(noting), length, block_bytes);
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(step);
    notes.restart(length);
    std::size_t before = 0;
    overlapped.start(TypeParam(), values, 1, [&](std::size_t, std::size_t) { ++before; });
    for (std::size_t b = length; b > block_length; b -= std::min<std::size_t>(b, 300 + 500 * step)) {
      notes.final_begin = b;
      overlapped.final_from(b);
      EXPECT_EQ(before, (buckets * block_length - (b + block_length - 1) / block_length * block_length) / block_length);
      std::this_thread::sleep_for(std::chrono::microseconds(b * 31 % 400));
    }
    notes.final_begin = 0;
    PhaseTimes times;
    const double hidden = overlapped.wait(times);
    EXPECT_EQ(notes.completed, buckets);
    EXPECT_TRUE(notes.in_order);
    EXPECT_LE(notes.most_under_way, 3u);
    EXPECT_EQ(before, buckets);
    EXPECT_GE(hidden, 0);
    ASSERT_EQ(notes.began.size(), buckets);
    for (std::size_t k = 0; k < buckets; ++k) {
      EXPECT_EQ(notes.began[k].begin, (buckets - 1 - k) * block_length);
      EXPECT_LE(notes.began[k].final_begin, notes.began[k].begin);
    }
  }
}

/// With early buckets the others wait for the end of the backward pass, and then begin from the beginning of the
/// vector. Each wait ends when its part is averaged.
TYPED_TEST(Overlapped, buckets_that_are_not_early_come_in_the_order_of_the_next_forward_pass) {
  const std::size_t buckets = 7, length = buckets * block_length - 100;
  const Vector<TypeParam, float> values("OneBit::test::values", length);
  auto noting = std::make_unique<Noting<TypeParam>>(values.data());
  Noting<TypeParam>& notes = *noting;
  OverlappedAverage<TypeParam> overlapped(std::move(noting), length, block_bytes);
  for (std::size_t early = 0; early <= buckets; ++early) {
    SCOPED_TRACE(early);
    notes.restart(length);
    overlapped.set_early(early);
    overlapped.start(TypeParam(), values, 1, [](std::size_t, std::size_t) {});
    for (std::size_t b = length - length % block_length; b > 0; b -= block_length) {
      notes.final_begin = b;
      overlapped.final_from(b);
      std::this_thread::sleep_for(std::chrono::microseconds(b * 31 % 400));
    }
    notes.final_begin = 0;
    int calls = 0;
    overlapped.when_final([&] { return ++calls == 3; });
    EXPECT_EQ(calls, 3);
    // Those that were averaged by then, which are early, or one more.
    EXPECT_LE(overlapped.best_early(), std::min(early + 1, buckets));
    PhaseTimes times;
    for (std::size_t k = 0; k < buckets; ++k) {
      overlapped.wait_until(std::min((k + 1) * block_length, length), times);
      const std::size_t least = early + k + 1 <= buckets ? early + k + 1 : buckets;
      EXPECT_GE(notes.completed, least);
    }
    EXPECT_GE(overlapped.wait(times), 0);
    EXPECT_TRUE(notes.in_order);
    ASSERT_EQ(notes.began.size(), buckets);
    for (std::size_t place = 0; place < buckets; ++place) {
      const std::size_t bucket = place < early ? buckets - 1 - place : place - early;
      EXPECT_EQ(notes.began[place].begin, bucket * block_length);
      EXPECT_LE(notes.began[place].final_begin, place < early ? bucket * block_length : 0);
    }
  }
}

/// All early buckets were averaged when the last element became final: one more may be early in the next step.
TYPED_TEST(Overlapped, best_number_of_early_buckets_follows_the_average) {
  const std::size_t buckets = 5;
  const Vector<TypeParam, float> values("OneBit::test::values", buckets * block_length);
  auto noting = std::make_unique<Noting<TypeParam>>(values.data());
  Noting<TypeParam>& notes = *noting;
  OverlappedAverage<TypeParam> overlapped(std::move(noting), values.extent(0), block_bytes);
  overlapped.set_early(2);
  PhaseTimes times;
  overlapped.start(TypeParam(), values, 1, [](std::size_t, std::size_t) {});
  overlapped.final_from(1);
  while (notes.completed < 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the thread then notes that it is averaged
  overlapped.wait(times);
  EXPECT_EQ(overlapped.best_early(), 3u);
  overlapped.start(TypeParam(), values, 2, [](std::size_t, std::size_t) {});
  overlapped.final_from(0);  // before any can be averaged
  overlapped.wait(times);
  EXPECT_EQ(overlapped.best_early(), 0u);
}

/// While a rank waits for its buckets, the watchdog must see that they come in: on slow links a sound average takes
/// longer than run.watchdog_seconds.
TYPED_TEST(Overlapped, each_part_of_a_bucket_counts_as_going_on) {
  const std::size_t buckets = 5;
  const Vector<TypeParam, float> values("OneBit::test::values", buckets * block_length);
  OverlappedAverage<TypeParam> overlapped(std::make_unique<Slow<TypeParam>>(), values.extent(0), block_bytes);
  overlapped.start(TypeParam(), values, 1, [](std::size_t, std::size_t) {});
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

TYPED_TEST(Overlapped, error_of_the_work_comes_out_of_when_final) {
  const Vector<TypeParam, float> values("OneBit::test::values", 5000);
  OverlappedAverage<TypeParam> overlapped(std::make_unique<NoAverage<TypeParam>>(), 5000, 1);
  overlapped.start(TypeParam(), values, 1, [](std::size_t, std::size_t) {});
  EXPECT_THROW(overlapped.when_final([]() -> bool { throw std::runtime_error("the work failed"); }),
               std::runtime_error);
}

TYPED_TEST(Overlapped, error_of_the_thread_comes_out_of_wait) {
  const Vector<TypeParam, float> values("OneBit::test::values", 5000);
  OverlappedAverage<TypeParam> overlapped(std::make_unique<Failing<TypeParam>>(), 5000, 1);
  overlapped.start(TypeParam(), values, 1, [](std::size_t, std::size_t) {});
  overlapped.final_from(0);
  PhaseTimes times;
  try {
    overlapped.wait(times);
    FAIL() << "wait returned";
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
  OverlappedAverage<Kokkos::Serial> overlapped(std::make_unique<NoAverage<Kokkos::Serial>>(), 5000, 1);
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
