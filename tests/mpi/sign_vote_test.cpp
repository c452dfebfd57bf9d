/// \file sign_vote_test.cpp
/// The vote at this number of ranks: what every rank gets is a plain count of signs, ties included, and the bytes that
/// it counts are those of its messages. An average of n signs is one of n + 1 values.

#include "comm/sign_vote.hpp"

#include <cmath>
#include <limits>

#include "../support.hpp"
#include "base/mpi.hpp"

namespace onebit::comm {
namespace {

/// Half of the elements have one sign on all ranks, and all of it is 0 at every eleventh.
std::vector<float> vector_of(int rank, long step, std::size_t length) {
  std::vector<float> own = test::random_values(length, static_cast<std::uint64_t>(100 * step + rank));
  const std::vector<float> shared = test::random_values(length, static_cast<std::uint64_t>(7000 + step));
  for (std::size_t i = 0; i < length; ++i) {
    if (i % 2 == 0) own[i] = shared[i];
    if (i % 11 == 0) own[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  return own;
}

std::vector<float> expected(int ranks, long step, std::size_t length, Vote vote) {
  std::vector<int> positive(length, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> v = vector_of(rank, step, length);
    for (std::size_t i = 0; i < length; ++i) positive[i] += v[i] < 0 ? 0 : 1;
  }
  std::vector<float> result;
  for (const int count : positive) {
    const int sum = count - (ranks - count);
    result.push_back(vote == Vote::average ? static_cast<float>(sum) / static_cast<float>(ranks)
                     : sum < 0             ? -1.0f
                                           : 1.0f);
  }
  return result;
}

template <class Exec>
class SignVotes : public ::testing::Test {};
TYPED_TEST_SUITE(SignVotes, test::Backends, test::BackendNames);

TYPED_TEST(SignVotes, are_plain_counts_and_count_their_bytes) {
  const Communicator world;
  const std::uint64_t ranks = world.size();
  for (const std::size_t length : {0, 1, 33, 1000, 5003})
    for (const Vote vote : {Vote::majority, Vote::average})
      for (const std::size_t message_bytes : {0, 64}) {  // collectives, pairwise messages
        SCOPED_TRACE(::testing::Message()
                     << "length " << length << " " << to_string(vote) << " messages " << message_bytes);
        const auto transport = make_transport<TypeParam>(TransportKind::automatic, world,
                                                         std::numeric_limits<int>::max(), {message_bytes});
        SignVote<TypeParam> sign_vote(*transport, length, vote);
        PhaseTimes times;
        for (long step = 1; step <= 3; ++step) {
          const auto v = test::to_device<TypeParam>(vector_of(world.rank(), step, length));
          const Traffic before = transport->traffic();
          sign_vote(TypeParam(), v, times);
          EXPECT_TRUE(test::same_bits(test::to_host(v), expected(world.size(), step, length, vote)));

          const std::uint64_t words = ((length + 31) / 32 + ranks - 1) / ranks;
          const std::uint64_t planes = vote == Vote::majority ? 1 : std::ceil(std::log2(ranks + 1));
          EXPECT_EQ(transport->traffic().all_to_all - before.all_to_all, (ranks - 1) * 4 * words);
          EXPECT_EQ(transport->traffic().all_gather - before.all_gather, (ranks - 1) * 4 * words * planes);
          EXPECT_EQ(transport->traffic().allreduce, 0u);
        }
      }
}

}  // namespace
}  // namespace onebit::comm
