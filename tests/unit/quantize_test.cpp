/// \file quantize_test.cpp
/// The stochastic quantiser: its kernels equal quantize_reference.hpp bit for bit on every backend of the build; what
/// it computes is unbiased, within a level, and exact where a value is a level.

#include "compress/quantize.hpp"

#include <cmath>

#include "../quantize_reference.hpp"
#include "../support.hpp"

namespace onebit::compress {
namespace {

/// Non-negative, of very different sizes, with zeros.
std::vector<float> magnitudes(std::size_t length, std::uint64_t seed) {
  std::vector<float> values = test::random_values(length, seed);
  for (float& value : values) value = std::fabs(value);
  return values;
}

template <class Exec>
std::vector<std::uint32_t> quantize(const QuantizerRef& cut, const std::vector<float>& v, const RoundingKey& key) {
  const Quantizer<Exec> quantizer(cut.length, cut.chunks, cut.bits);
  // What an earlier call left in the messages may not matter.
  const auto messages =
      test::to_device<Exec>(std::vector<std::uint32_t>(cut.chunks * cut.message_words(), 0xDEADBEEFu));
  quantizer.quantize(Exec(), test::to_device<Exec>(v), key, messages);
  return test::to_host(messages);
}

/// The average of one chunk of the messages of several senders.
template <class Exec>
std::vector<float> average_chunk(const QuantizerRef& cut, int chunk,
                                 const std::vector<std::vector<std::uint32_t>>& messages) {
  const Quantizer<Exec> quantizer(cut.length, cut.chunks, cut.bits);
  std::vector<std::uint32_t> received;
  for (const auto& sent : messages)
    received.insert(received.end(), sent.begin() + chunk * cut.message_words(),
                    sent.begin() + (chunk + 1) * cut.message_words());
  const auto mean = test::to_device<Exec>(std::vector<float>(cut.chunk_length(), -1.0f));
  quantizer.average_chunk(Exec(), static_cast<int>(messages.size()), test::to_device<Exec>(received), mean);
  return test::to_host(mean);
}

template <class Exec>
class Quantize : public ::testing::Test {};
TYPED_TEST_SUITE(Quantize, test::Backends, test::BackendNames);

template <class Exec>
void expect_reference(const QuantizerRef& cut) {
  SCOPED_TRACE(::testing::Message() << "length " << cut.length << " chunks " << cut.chunks << " bits " << cut.bits);
  constexpr int senders = 3;
  constexpr long step = 41;
  std::vector<std::vector<std::uint32_t>> messages;
  for (int rank = 0; rank < senders; ++rank) {
    const std::vector<float> v = magnitudes(cut.length, static_cast<std::uint64_t>(rank));
    messages.push_back(quantize<Exec>(cut, v, {5, step, rank}));
    EXPECT_TRUE(test::same_bits(messages.back(), cut.quantize(v, 5, step, rank)));
  }
  std::vector<float> all;
  for (int chunk = 0; chunk < cut.chunks; ++chunk) {
    const std::vector<float> mean = average_chunk<Exec>(cut, chunk, messages);
    all.insert(all.end(), mean.begin(), mean.end());
  }
  for (std::size_t i = cut.length; i < all.size(); ++i) EXPECT_EQ(all[i], 0.0f) << "padding";
  all.resize(cut.length);
  EXPECT_TRUE(test::same_bits(all, cut.average(messages)));
}

TYPED_TEST(Quantize, kernels_equal_reference) {
  for (const std::size_t length : {0, 1, 31, 32, 33, 511, 512, 513, 1000, 5000})
    for (const int chunks : {1, 2, 3, 8})
      for (const int bits : {1, 3, 8, 16}) expect_reference<TypeParam>({length, chunks, bits});
  for (int bits = 1; bits <= 16; ++bits) expect_reference<TypeParam>({3 * 1024 + 77, 2, bits});
  expect_reference<TypeParam>({(1u << 18) + 7, 3, 5});
}

TYPED_TEST(Quantize, bits_do_not_depend_on_threads) {
  const QuantizerRef cut{100003, 3, 5};
  const auto messages = quantize<TypeParam>(cut, magnitudes(cut.length, 1), {1, 2, 3});
  test::print_bits("messages", messages);
  test::print_bits("mean", average_chunk<TypeParam>(cut, 1, {messages, messages}));
}

TYPED_TEST(Quantize, rounding_is_unbiased_and_within_a_level) {
  constexpr int bits = 3, draws = 4000;
  const QuantizerRef cut{40, 1, bits};
  const std::vector<float> v = magnitudes(cut.length, 9);
  const double level = static_cast<double>(*std::max_element(v.begin(), v.end())) / cut.levels();
  std::vector<double> sum(cut.length);
  for (int draw = 0; draw < draws; ++draw) {
    // As steps or as ranks: both give numbers of their own.
    const RoundingKey key{7, draw % 2 == 0 ? draw : 0, draw % 2 == 0 ? 0 : draw};
    const auto rounded = average_chunk<TypeParam>(cut, 0, {quantize<TypeParam>(cut, v, key)});
    for (std::size_t i = 0; i < cut.length; ++i) {
      ASSERT_LT(std::fabs(rounded[i] - v[i]), level);
      sum[i] += rounded[i];
    }
  }
  // A rounding's standard deviation is at most half a level.
  for (std::size_t i = 0; i < cut.length; ++i)
    EXPECT_NEAR(sum[i] / draws, v[i], 5 * 0.5 * level / std::sqrt(draws)) << "element " << i;
}

TYPED_TEST(Quantize, levels_are_exact) {
  // Values that are levels stay as they are, whatever is drawn: 0, the largest, and those between.
  for (const int bits : {1, 2, 4, 8, 16}) {
    const QuantizerRef cut{700, 1, bits};
    std::vector<float> v;
    for (std::size_t i = 0; i < cut.length; ++i)
      v.push_back(static_cast<float>(i % 512 == 3 ? cut.levels() : std::fmod(static_cast<double>(i), cut.levels())));
    for (long step = 0; step < 20; ++step) {
      std::vector<float> rounded = average_chunk<TypeParam>(cut, 0, {quantize<TypeParam>(cut, v, {1, step, 0})});
      rounded.resize(cut.length);
      EXPECT_TRUE(test::same_bits(rounded, v)) << bits << " bits";
    }
  }
}

TYPED_TEST(Quantize, overflowed_variance_is_not_hidden) {
  const QuantizerRef cut{64, 1, 8};
  std::vector<float> v(cut.length, 1.0f);
  v[5] = INFINITY;
  const auto rounded = average_chunk<TypeParam>(cut, 0, {quantize<TypeParam>(cut, v, {1, 1, 0})});
  EXPECT_FALSE(std::isfinite(rounded[5]));
}

}  // namespace
}  // namespace onebit::compress
