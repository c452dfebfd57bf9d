/// \file sixteen_bits_test.cpp
/// Numbers of 16 bits: all 65536 patterns of both types, and roundings in the kernels of every backend against plain
/// ones in double.

#include "base/sixteen_bits.hpp"

#include <cmath>

#include "../support.hpp"
#include "base/device/parallel.hpp"
#include "base/device/reference.hpp"

namespace onebit {
namespace {

constexpr std::uint32_t patterns = 65536;

template <class Type>
constexpr FloatTypeRef ref = bfloat16_ref;
template <>
constexpr FloatTypeRef ref<Float16> = float16_ref;

/// Whether these bits of a 16-bit type are the number `value`, with its sign.
template <class Type>
bool is(std::uint16_t bits, double value) {
  const double read = ref<Type>.value(bits);
  return std::isnan(value) ? std::isnan(read) : read == value && std::signbit(read) == std::signbit(value);
}

/// The bits of floats of both signs: each number of the type, the middle of it and the next one, and the floats next to
/// these; and many random words, among them NaN, infinities and subnormal numbers.
template <class Type>
std::vector<std::uint32_t> words_to_round() {
  std::vector<std::uint32_t> words;
  for (std::uint32_t magnitude = 0; magnitude < Type::infinity; ++magnitude) {
    const double number = ref<Type>.value(magnitude), middle = number + ref<Type>.unit(number) / 2;
    for (const double at : {number, middle}) {
      // Subnormal floats are made of their bits, because the processor takes them for 0.
      const std::uint32_t bits = std::is_same_v<Type, Bfloat16> ? magnitude << 16 | (at == middle ? 0x8000u : 0u)
                                                                : as_bits(static_cast<float>(at));
      for (const std::uint32_t word : {bits - (bits > 0), bits, bits + 1})
        for (const std::uint32_t sign : {0u, 0x80000000u}) words.push_back(sign | word);
    }
  }
  for (std::uint64_t four = 0; four < 50000; ++four)
    for (const std::uint32_t word : philox(7, four, 0).word) words.push_back(word);
  for (const std::uint32_t word : {0x7F800000u, 0xFF800000u, 0x7F800001u, 0xFFFFFFFFu, 0x7F7FFFFFu, 1u})
    words.push_back(word);
  return words;
}

template <class Exec>
class SixteenBits : public ::testing::Test {
public:
  /// (words) What a kernel makes of them.
  template <class Type>
  static std::vector<std::uint16_t> rounded(const std::vector<std::uint32_t>& words) {
    const std::size_t count = words.size();
    const auto from = test::to_device<Exec>(words);
    const Vector<Exec, std::uint16_t> to("OneBit::test::rounded", count);
    for_each(
        Exec(), "OneBit::test::round", count,
        KOKKOS_LAMBDA(std::size_t i) { to(i) = Type::nearest(as_float(from(i))); });
    Exec().fence();
    return test::to_host(to);
  }
  /// The bits of all numbers as floats.
  template <class Type>
  static std::vector<std::uint32_t> widened() {
    const Vector<Exec, std::uint32_t> to("OneBit::test::widened", patterns);
    for_each(
        Exec(), "OneBit::test::widen", patterns,
        KOKKOS_LAMBDA(std::size_t i) { to(i) = as_bits(Type::widened(static_cast<std::uint16_t>(i))); });
    Exec().fence();
    return test::to_host(to);
  }

  template <class Type>
  static void expect_exact_numbers() {
    const std::vector<std::uint32_t> words = widened<Type>();
    const std::vector<std::uint16_t> back = rounded<Type>(words);
    int wrong = 0;
    for (std::uint32_t bits = 0; bits < patterns; ++bits) {
      const double number = ref<Type>.value(bits), wide = float_ref.value(words[bits]);
      wrong += std::isnan(number) ? !std::isnan(wide) : wide != number || words[bits] >> 31 != bits >> 15;
      wrong += std::isnan(number) ? !is<Type>(back[bits], number) : back[bits] != bits;
    }
    EXPECT_EQ(wrong, 0);
  }

  template <class Type>
  static void expect_plain_rounding() {
    const std::vector<std::uint32_t> words = words_to_round<Type>();
    const std::vector<std::uint16_t> results = rounded<Type>(words);
    int wrong = 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      const double value = float_ref.value(words[i]);
      wrong += !is<Type>(results[i], ref<Type>.nearest(value));
    }
    EXPECT_EQ(wrong, 0) << "of " << words.size();
  }
};
TYPED_TEST_SUITE(SixteenBits, test::Backends, test::BackendNames);

TYPED_TEST(SixteenBits, all_numbers_are_floats_and_come_back) {
  this->template expect_exact_numbers<Bfloat16>();
  this->template expect_exact_numbers<Float16>();
}

TYPED_TEST(SixteenBits, round_as_plain_arithmetic_does) {
  this->template expect_plain_rounding<Bfloat16>();
  this->template expect_plain_rounding<Float16>();
}

TEST(SixteenBitsOnHost, round_by_hand) {
  // 1 + 1/256 lies between 1 and 1 + 1/128, 1 + 3/256 between 1 + 1/128 and 1 + 1/64.
  EXPECT_EQ(Bfloat16::nearest(1 + 1 / 256.0f), 0x3F80);
  EXPECT_EQ(Bfloat16::nearest(1 + 3 / 256.0f), 0x3F82);
  EXPECT_EQ(Bfloat16::nearest(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(Float16::nearest(-1.0f), 0xBC00);
  EXPECT_EQ(Float16::nearest(65504.0f), 0x7BFF);
  EXPECT_EQ(Float16::nearest(65519.99f), 0x7BFF);
  EXPECT_EQ(Float16::nearest(65520.0f), 0x7C00);
  EXPECT_EQ(Float16::nearest(0x1p-24f), 1);
  EXPECT_EQ(Float16::nearest(0x1p-25f), 0);
  EXPECT_EQ(Float16::nearest(0x1.8p-24f), 2);
  EXPECT_EQ(Float16::nearest(-0x1p-26f), 0x8000);
  EXPECT_EQ(Float16::widened(0x8001), -0x1p-24f);
}

}  // namespace
}  // namespace onebit
