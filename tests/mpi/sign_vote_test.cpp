/// \file sign_vote_test.cpp
/// The vote at this number of ranks: what every rank gets is a plain count of signs, with the coins of zeros and ties,
/// and the bytes that it counts are those of its messages. An average of n signs is one of n + 1 values. Votes on noise
/// favour no sign.

#include "comm/sign_vote.hpp"

#include <cmath>

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

constexpr std::uint64_t seed = 5;

/// Bit e % 32 of word e / 32 % 4 of Philox at (⌊e/128⌋; step, tosser).
bool coin(long step, int tosser, std::size_t element) {
  const Philox4 random = philox(stream_key(seed, Stream::votes), element / 128,
                                static_cast<std::uint64_t>(step) * 4294967296u + static_cast<std::uint64_t>(tosser));
  return (random.word[element / 32 % 4] >> element % 32) % 2 == 1;
}

std::vector<float> expected(int ranks, long step, std::size_t length, Vote vote) {
  std::vector<int> sum(length, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<float> v = vector_of(rank, step, length);
    for (std::size_t i = 0; i < length; ++i) {
      const bool positive = v[i] == 0 ? coin(step, rank + 1, i) : v[i] > 0;
      sum[i] += positive ? 1 : -1;
    }
  }
  std::vector<float> result;
  for (std::size_t i = 0; i < length; ++i) {
    const bool positive = sum[i] == 0 ? coin(step, 0, i) : sum[i] > 0;
    result.push_back(vote == Vote::average ? static_cast<float>(sum[i]) / static_cast<float>(ranks)
                     : positive            ? 1.0f
                                           : -1.0f);
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
        const auto transport = make_transport<TypeParam>(TransportKind::automatic, world, {message_bytes});
        SignVote<TypeParam> sign_vote(*transport, length, vote, seed);
        PhaseTimes times;
        for (long step = 1; step <= 3; ++step) {
          const auto v = test::to_device<TypeParam>(vector_of(world.rank(), step, length));
          const Traffic before = transport->traffic();
          sign_vote(TypeParam(), v, step, times);
          EXPECT_TRUE(test::same_bits(test::to_host(v), expected(world.size(), step, length, vote)));

          const std::uint64_t words = ((length + 31) / 32 + ranks - 1) / ranks;
          const std::uint64_t planes = vote == Vote::majority ? 1 : std::ceil(std::log2(ranks + 1));
          EXPECT_EQ(transport->traffic().all_to_all - before.all_to_all, (ranks - 1) * 4 * words);
          EXPECT_EQ(transport->traffic().all_gather - before.all_gather, (ranks - 1) * 4 * words * planes);
          EXPECT_EQ(transport->traffic().allreduce, 0u);
        }
      }
}

// A fixed sign for ties moves an element of 2 ranks by half a step in each step, and one for zeros by a whole one.
TYPED_TEST(SignVotes, favour_no_sign) {
  const Communicator world;
  constexpr std::size_t length = 5003;
  constexpr long steps = 20;
  const auto transport = make_transport<TypeParam>(TransportKind::automatic, world);
  for (const Vote vote : {Vote::majority, Vote::average})
    for (const bool zeros : {false, true}) {
      SCOPED_TRACE(::testing::Message() << to_string(vote) << (zeros ? " of zeros" : " of noise"));
      SignVote<TypeParam> sign_vote(*transport, length, vote, seed);
      PhaseTimes times;
      double sum = 0;
      std::vector<double> of_element(length, 0.0);
      for (long step = 1; step <= steps; ++step) {
        const auto noise = test::random_values(length, static_cast<std::uint64_t>(100 * step + world.rank()));
        const auto v = test::to_device<TypeParam>(zeros ? std::vector<float>(length, 0.0f) : noise);
        sign_vote(TypeParam(), v, step, times);
        const std::vector<float> votes = test::to_host(v);
        for (std::size_t i = 0; i < length; ++i) {
          sum += votes[i];
          of_element[i] += votes[i];
        }
      }
      // Votes have variance 1 at most, so the mean of N has a standard deviation of 1/√N at most.
      const double count = static_cast<double>(length) * steps;
      EXPECT_LT(std::fabs(sum) / count, 5 / std::sqrt(count));
      // The coins of different steps and elements are different ones.
      double squares = 0;
      for (const double one : of_element) squares += one * one;
      EXPECT_LT(squares / length, 1.2 * steps);
    }
}

}  // namespace
}  // namespace onebit::comm
