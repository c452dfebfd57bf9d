/// \file base_test.cpp
/// Fixed-order loops and sums, counter-based random numbers, the tensor table, errors, last words and phase times.

#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <future>
#include <limits>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "../support.hpp"
#include "base/device/memory.hpp"
#include "base/device/parallel.hpp"
#include "base/device/reference.hpp"
#include "base/device/self_check.hpp"
#include "base/error.hpp"
#include "base/random.hpp"
#include "base/system/activity.hpp"
#include "base/system/crash_message.hpp"
#include "base/system/huge_pages.hpp"
#include "base/system/launcher.hpp"
#include "base/system/stream.hpp"
#include "base/tensor_table.hpp"
#include "base/timer.hpp"

namespace onebit {

// Kernels stand in named free functions, because nvcc takes no device lambda from a test's body.

/// How often for_each calls each element of [0, length); `margin` more elements that it must leave alone.
template <class Exec>
std::vector<int> calls_of_for_each(std::size_t length, std::size_t margin) {
  const Exec exec;
  const Vector<Exec, int> calls("OneBit::test::calls", length + margin);
  for_each(
      exec, "OneBit::test::for_each", length, KOKKOS_LAMBDA(std::size_t i) { calls(i) += 1; });
  fence(exec, "OneBit::test::for_each");
  return test::to_host(calls);
}

/// A function with several roundings, which a compiler may fuse or vectorise.
template <class Exec>
std::vector<float> rounded(const std::vector<float>& values) {
  const Exec exec;
  const Vector<Exec, float> x = test::to_device<Exec>(values);
  for_each(
      exec, "OneBit::test::rounded", values.size(),
      KOKKOS_LAMBDA(std::size_t i) { x(i) = x(i) * 0.3f + math::sqrt(x(i) * x(i) + 0.7f) / 1.1f; });
  fence(exec, "OneBit::test::rounded");
  return test::to_host(x);
}

/// Sums of the blocks, and how often each element was asked for.
template <class Exec, class Term>
std::pair<std::vector<double>, std::vector<int>> sums_of_blocks(const std::vector<std::size_t>& begins,
                                                                const std::vector<Term>& terms) {
  const Exec exec;
  const auto begins_device = test::to_device<Exec>(begins);
  const auto terms_device = test::to_device<Exec>(terms);
  const Vector<Exec, int> calls("OneBit::test::calls", terms.size());
  const Vector<Exec, double> sums("OneBit::test::sums", begins.size() - 1);
  reduce_blocks<Sum>(
      exec, "OneBit::test::block_sums", KOKKOS_LAMBDA(std::size_t block) { return begins_device(block); }, sums,
      KOKKOS_LAMBDA(std::size_t i) {
        calls(i) += 1;
        return terms_device(i);
      });
  fence(exec, "OneBit::test::block_sums");
  return {test::to_host(sums), test::to_host(calls)};
}

/// How the two modes of subnormals.hpp show: a product of normal numbers that is subnormal, and one of a subnormal
/// number that is normal. Both are 0. The caller hides the factors from the compiler.
struct SubnormalProducts {
  float result, operand;
};
constexpr float small_factor = 1e-20f, subnormal_factor = 1e-40f, large_factor = 1e30f;

/// Of the calling thread.
SubnormalProducts subnormal_products() {
  volatile float small = small_factor, subnormal = subnormal_factor, large = large_factor;
  return {small * small, subnormal * large};
}

/// Of a backend: element i ← factors(0) factors(0), element `length` + i ← factors(1) factors(2).
template <class Exec>
std::vector<float> subnormal_products(std::size_t length) {
  const Exec exec;
  const Vector<Exec, float> factors = test::to_device<Exec>(std::vector{small_factor, subnormal_factor, large_factor});
  const auto products = make_uninitialized<Exec, float>("OneBit::test::products", 2 * length);
  for_each(
      exec, "OneBit::test::subnormal_products", length, KOKKOS_LAMBDA(std::size_t i) {
        products(i) = factors(0) * factors(0);
        products(length + i) = factors(1) * factors(2);
      });
  fence(exec, "OneBit::test::subnormal_products");
  return test::to_host(products);
}

template <class Exec, class Term>
double ordered_sum(const std::vector<Term>& terms) {
  const auto terms_device = test::to_device<Exec>(terms);
  const OrderedSum<Exec> sum(terms.size());
  return sum(
      Exec(), "OneBit::test::ordered_sum", KOKKOS_LAMBDA(std::size_t i) { return terms_device(i); });
}

/// The sum in parts of `blocks` blocks, the odd ones first.
template <class Exec>
double sum_in_parts(const std::vector<float>& terms, std::size_t blocks) {
  const auto terms_device = test::to_device<Exec>(terms);
  const OrderedSum<Exec> sum(terms.size());
  const std::size_t part = blocks * block_length;
  for (const std::size_t first : {part, std::size_t{0}})
    for (std::size_t begin = first; begin < terms.size(); begin += 2 * part)
      sum.part(
          Exec(), "OneBit::test::part", begin, std::min(begin + part, terms.size()),
          KOKKOS_LAMBDA(std::size_t i) { return terms_device(i); });
  return sum.total(Exec(), "OneBit::test::total");
}

/// Words of philox with key `key` and counters (i, ~i), four for each i.
template <class Exec>
std::vector<std::uint32_t> philox_words(std::uint64_t key, std::size_t count) {
  const Exec exec;
  const Vector<Exec, std::uint32_t> words("OneBit::test::words", 4 * count);
  for_each(
      exec, "OneBit::test::philox", count, KOKKOS_LAMBDA(std::size_t i) {
        const Philox4 drawn = philox(key, i, ~static_cast<std::uint64_t>(i));
        for (int word = 0; word < 4; ++word) words(4 * i + word) = drawn.word[word];
      });
  fence(exec, "OneBit::test::philox");
  return test::to_host(words);
}

namespace {

constexpr std::size_t lengths[] = {
    0, 1, 2, 31, 32, 33, 63, 1000, 1023, 1024, 1025, 2048, 31 * 1024u, 32 * 1024u, 33 * 1024u + 5, (1u << 20) + 7};

template <class Exec>
class Parallel : public ::testing::Test {};
TYPED_TEST_SUITE(Parallel, test::Backends, test::BackendNames);

TYPED_TEST(Parallel, for_each_calls_each_element_once) {
  for (const std::size_t length : lengths) {
    std::vector<int> expected(length, 1);
    expected.resize(length + 2000, 0);
    EXPECT_EQ(calls_of_for_each<TypeParam>(length, 2000), expected) << "length " << length;
  }
}

/// Every begin in a cache line and every size up to a few lines; bytes around the result stay.
TEST(Streams, copy_and_clear_the_bytes_that_they_are_given) {
  constexpr std::size_t longest = 5 * stream::line, room = longest + 3 * stream::line;
  std::vector<unsigned char> from(longest), memory(room + stream::line);
  for (std::size_t i = 0; i < longest; ++i) from[i] = static_cast<unsigned char>(i % 250 + 1);
  unsigned char* const line =
      memory.data() + (stream::line - reinterpret_cast<std::uintptr_t>(memory.data()) % stream::line) % stream::line;
  for (const std::size_t begin : {0, 1, 4, 16, 63, 64})
    for (std::size_t size = 0; size <= longest; ++size)
      for (const bool copies : {true, false}) {
        std::fill(memory.begin(), memory.end(), 0xAA);
        if (copies)
          stream::copy(line + begin, from.data(), size);
        else
          stream::clear(line + begin, size);
        stream::finish();
        for (std::size_t i = 0; i < room; ++i) {
          const bool inside = i >= begin && i < begin + size;
          ASSERT_EQ(line[i], !inside ? 0xAA : copies ? from[i - begin] : 0) << begin << ' ' << size << ' ' << i;
        }
      }
}

TYPED_TEST(Parallel, block_sums_equal_reference) {
  // Empty blocks, lane borders, a block that begins anywhere, and one far longer than block_length.
  std::vector<std::size_t> begins = {0};
  for (const std::size_t length : {0, 1, 31, 32, 33, 0, 0, 1000, 64, 1024, 7, 1023, 100000, 5, 0})
    begins.push_back(begins.back() + length);
  const std::vector<float> floats = test::random_values(begins.back(), 1);
  const std::vector<double> doubles(floats.begin(), floats.end());

  std::vector<double> float_sums, double_sums;
  for (std::size_t block = 0; block + 1 < begins.size(); ++block) {
    const auto begin = begins[block], end = begins[block + 1];
    float_sums.push_back(block_sum_ref(std::vector<float>(floats.begin() + begin, floats.begin() + end)));
    double_sums.push_back(block_sum_ref(std::vector<double>(doubles.begin() + begin, doubles.begin() + end)));
  }
  const auto [from_floats, calls] = sums_of_blocks<TypeParam>(begins, floats);
  EXPECT_TRUE(test::same_bits(from_floats, float_sums));
  EXPECT_EQ(calls, std::vector<int>(floats.size(), 1));
  EXPECT_TRUE(test::same_bits(sums_of_blocks<TypeParam>(begins, doubles).first, double_sums));
}

TYPED_TEST(Parallel, ordered_sum_in_parts_is_the_sum) {
  for (const std::size_t length : lengths) {
    const std::vector<float> terms = test::random_values(length, 3);
    for (const std::size_t blocks : {1, 3, 100})
      EXPECT_EQ(sum_in_parts<TypeParam>(terms, blocks), ordered_sum<TypeParam>(terms))
          << "length " << length << " blocks " << blocks;
  }
}

/// max f(i) of each block by reduce_blocks.
template <class Exec, class Term>
std::vector<double> maxima_of_blocks(const std::vector<std::size_t>& begins, const std::vector<Term>& terms) {
  const Exec exec;
  const auto begins_device = test::to_device<Exec>(begins);
  const auto terms_device = test::to_device<Exec>(terms);
  const Vector<Exec, double> maxima("OneBit::test::maxima", begins.size() - 1);
  reduce_blocks<Maximum>(
      exec, "OneBit::test::maxima", KOKKOS_LAMBDA(std::size_t block) { return begins_device(block); }, maxima,
      KOKKOS_LAMBDA(std::size_t i) { return terms_device(i); });
  fence(exec, "OneBit::test::maxima");
  return test::to_host(maxima);
}

TYPED_TEST(Parallel, kernels_compute_what_is_known) { EXPECT_NO_THROW(check_kernels(TypeParam())); }

TEST(SelfCheck, kernels_that_compute_nothing_are_refused) {
  EXPECT_NO_THROW(compare_kernel("cuda", {1, 2, 3}, {1, 2, 3}));
  try {
    compare_kernel("cuda", {0, 0, 0}, {1, 0, 3});
    ADD_FAILURE() << "kernels that compute nothing count as right";
  } catch (const RunError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("backend cuda: kernels of this build compute nothing or wrong numbers: 2 of 3 words"),
              std::string::npos)
        << message;
    EXPECT_EQ(error.status(), ExitStatus::failed_run);
  }
}

TYPED_TEST(Parallel, maxima_of_blocks) {
  std::vector<std::size_t> begins = {0};
  for (const std::size_t length : {0, 1, 31, 32, 33, 0, 1000, 64, 1024, 7, 100000, 5})
    begins.push_back(begins.back() + length);
  std::vector<float> floats = test::random_values(begins.back(), 3);
  for (std::size_t i = 0; i < floats.size(); ++i)
    if (i % 100 < 50) floats[i] = -1.0f - std::fabs(floats[i]);  // blocks of negative numbers alone, too
  const std::vector<double> doubles(floats.begin(), floats.end());
  const auto from_floats = maxima_of_blocks<TypeParam>(begins, floats);
  const auto from_doubles = maxima_of_blocks<TypeParam>(begins, doubles);
  for (std::size_t block = 0; block + 1 < begins.size(); ++block) {
    const auto begin = floats.begin() + begins[block], end = floats.begin() + begins[block + 1];
    EXPECT_EQ(from_floats[block], begin == end ? std::numeric_limits<float>::lowest() : *std::max_element(begin, end));
    EXPECT_EQ(from_doubles[block],
              begin == end ? std::numeric_limits<double>::lowest() : *std::max_element(begin, end));
  }
}

/// The results of BlockTree over segments of `blocks`.
template <class Join, class Exec>
std::vector<double> joined(const std::vector<std::size_t>& begins, const std::vector<double>& blocks) {
  const Exec exec;
  std::size_t longest = 0;
  for (std::size_t s = 0; s + 1 < begins.size(); ++s) longest = std::max(longest, begins[s + 1] - begins[s]);
  const auto begins_device = test::to_device<Exec>(begins);
  const Vector<Exec, double> results("OneBit::test::results", begins.size() - 1);
  BlockTree<Exec>(results.extent(0), longest)
      .template join<Join>(exec, "OneBit::test::joined", begins_device, test::to_device<Exec>(blocks), results);
  fence(exec, "OneBit::test::joined");
  return test::to_host(results);
}

TYPED_TEST(Parallel, block_tree_equals_reference) {
  // Segments without blocks, of one block, of one block of results and of several; and all of them short.
  for (const std::vector<std::size_t>& lengths_of_segments :
       {std::vector<std::size_t>{0, 1, 1024, 1025, 0, 5000, 2048, 0}, std::vector<std::size_t>{0, 1000, 1, 1024}}) {
    std::vector<std::size_t> begins = {0};
    for (const std::size_t length : lengths_of_segments) begins.push_back(begins.back() + length);
    const std::vector<float> values = test::random_values(begins.back(), 4);
    const std::vector<double> blocks(values.begin(), values.end());
    std::vector<double> sums, maxima;
    for (std::size_t s = 0; s + 1 < begins.size(); ++s) {
      const std::vector<double> own(blocks.begin() + begins[s], blocks.begin() + begins[s + 1]);
      sums.push_back(block_sum_ref(block_sums_ref(own)));
      maxima.push_back(own.empty() ? std::numeric_limits<double>::lowest() : *std::max_element(own.begin(), own.end()));
    }
    EXPECT_TRUE(test::same_bits((joined<Sum, TypeParam>(begins, blocks)), sums));
    EXPECT_EQ((joined<Maximum, TypeParam>(begins, blocks)), maxima);
  }
}

TYPED_TEST(Parallel, ordered_sum_equals_reference) {
  for (const std::size_t length : lengths) {
    const std::vector<float> floats = test::random_values(length, 2);
    const std::vector<double> doubles(floats.begin(), floats.end());
    EXPECT_EQ((ordered_sum<TypeParam>(floats)), ordered_sum_ref(floats)) << "length " << length;
    EXPECT_EQ((ordered_sum<TypeParam>(doubles)), ordered_sum_ref(doubles)) << "length " << length;
  }
}

TYPED_TEST(Parallel, ordered_sum_is_accurate) {
  // Added one after the other in float, these terms would come out 4 % too low.
  const std::vector<float> terms(1u << 22, 1.1f);
  const double exact = static_cast<double>(1.1f) * terms.size();
  EXPECT_NEAR(ordered_sum<TypeParam>(terms), exact, exact * 1e-6);
}

TYPED_TEST(Parallel, bits_do_not_depend_on_threads) {
  const std::string backend = BackendName<TypeParam>::value;
  for (const std::size_t length : {33, 5000, 1000003}) {
    const std::vector<float> values = test::random_values(length, 3);
    const std::string name = backend + "_" + std::to_string(length);
    test::print_bits("for_each_" + name, rounded<TypeParam>(values));
    test::print_bits("ordered_sum_" + name, std::vector<double>{ordered_sum<TypeParam>(values)});
  }
}

// A static schedule gives each thread some of the blocks.
TYPED_TEST(Parallel, subnormal_numbers_count_as_zero) {
  const std::size_t length = 8 * block_length * (is_host<TypeParam> ? concurrency(TypeParam()) : 1);
  EXPECT_EQ(subnormal_products<TypeParam>(length), std::vector<float>(2 * length));
}

TYPED_TEST(Parallel, philox_gives_the_same_words_on_every_backend) {
  constexpr std::uint64_t key = 0x123456789abcdef0u;
  std::vector<std::uint32_t> expected;
  for (std::uint64_t i = 0; i < 5000; ++i)
    for (const std::uint32_t word : philox(key, i, ~i).word) expected.push_back(word);
  EXPECT_TRUE(test::same_bits(philox_words<TypeParam>(key, 5000), expected));
}

// Known answers of Random123 1.14 (kat_vectors, philox4x32 10).
TEST(Subnormals, count_as_zero_in_every_thread) {
  const auto expect_zero = [](const SubnormalProducts& products, const std::string& thread) {
    EXPECT_EQ(products.result, 0) << thread;
    EXPECT_EQ(products.operand, 0) << thread;
  };
  expect_zero(subnormal_products(), "the main thread");
  SubnormalProducts products{1, 1};
  std::thread([&] { products = subnormal_products(); }).join();
  expect_zero(products, "a std::thread");
  expect_zero(std::async(std::launch::async, [] { return subnormal_products(); }).get(), "a task of std::async");
#ifdef KOKKOS_ENABLE_OPENMP
  std::vector<SubnormalProducts> of_threads(omp_get_max_threads(), {1, 1});
#pragma omp parallel
  of_threads[omp_get_thread_num()] = subnormal_products();
  for (std::size_t i = 0; i < of_threads.size(); ++i) expect_zero(of_threads[i], "OpenMP thread " + std::to_string(i));
#endif
}

TEST(Random, philox_known_answers) {
  const auto words = [](std::uint64_t key, std::uint64_t low, std::uint64_t high) {
    const Philox4 drawn = philox(key, low, high);
    return std::vector<std::uint32_t>(drawn.word, drawn.word + 4);
  };
  using Words = std::vector<std::uint32_t>;
  EXPECT_EQ(words(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(words(~0ull, ~0ull, ~0ull), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, streams_and_seeds_have_their_own_keys) {
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 1000; ++seed)
    for (const Stream stream :
         {Stream::initial_parameters, Stream::data, Stream::dropout, Stream::noise, Stream::validation})
      keys.insert(stream_key(seed, stream));
  EXPECT_EQ(keys.size(), 5000u);
}

TEST(Random, uniform_moments) {
  EXPECT_EQ(uniform(0), 0.0f);
  EXPECT_EQ(uniform(0xffffffffu), 1.0f - 0x1p-24f);
  constexpr int count = 1 << 20, bins = 16;
  double sum = 0, squares = 0, products = 0, previous = 0.5;
  int histogram[bins] = {};
  for (int i = 0; i < count; ++i) {
    const double u = uniform(philox(stream_key(7, Stream::data), i, 0).word[i % 4]);
    sum += u;
    squares += (u - 0.5) * (u - 0.5);
    products += (u - 0.5) * (previous - 0.5);
    previous = u;
    ++histogram[static_cast<int>(u * bins)];
  }
  // Five standard deviations of each estimate.
  EXPECT_NEAR(sum / count, 0.5, 5 * std::sqrt(1.0 / 12 / count));
  EXPECT_NEAR(squares / count, 1.0 / 12, 5 * std::sqrt(1.0 / 180 / count));
  EXPECT_NEAR(products / count, 0, 5 * (1.0 / 12) / std::sqrt(count));
  const double expected = static_cast<double>(count) / bins;
  for (const int found : histogram) EXPECT_NEAR(found, expected, 5 * std::sqrt(expected));
}

TEST(Random, normal_moments) {
  // The ends of the first word: the largest radius, √(48 ln 2), and none.
  EXPECT_NEAR(normal(0, 0), 5.768f, 1e-3f);
  EXPECT_EQ(normal(0xffffffffu, 0), 0.0f);
  constexpr int count = 1 << 20;
  double moments[5] = {};
  for (int i = 0; i < count; ++i) {
    const Philox4 words = philox(stream_key(7, Stream::noise), i, 0);
    double power = 1;
    const double z = normal(words.word[0], words.word[1]);
    for (double& moment : moments) {
      moment += power / count;
      power *= z;
    }
  }
  EXPECT_NEAR(moments[1], 0, 5 * std::sqrt(1.0 / count));
  EXPECT_NEAR(moments[2], 1, 5 * std::sqrt(2.0 / count));
  EXPECT_NEAR(moments[3], 0, 5 * std::sqrt(15.0 / count));
  EXPECT_NEAR(moments[4], 3, 5 * std::sqrt(96.0 / count));
}

TEST(TensorTable, places_tensors_one_after_the_other) {
  TensorTable table;
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.add("weight", {3, 5}, true), 0u);
  EXPECT_EQ(table.add("empty", {4, 0}, true), 15u);
  EXPECT_EQ(table.add("scalar", {}, false), 15u);
  EXPECT_EQ(table.add("bias", {7}, false), 16u);
  EXPECT_EQ(table.add("end", {0}, false), 23u);
  EXPECT_EQ(table.size(), 23u);
  ASSERT_EQ(table.tensors().size(), 5u);
  EXPECT_EQ(table.tensors()[0].name, "weight");
  EXPECT_EQ(table.tensors()[0].shape, (std::vector<std::size_t>{3, 5}));
  EXPECT_TRUE(table.tensors()[0].decays);
  EXPECT_FALSE(table.tensors()[3].decays);
  for (std::size_t i = 0; i < table.size(); ++i)
    EXPECT_EQ(table.at_element(i).name, i < 15 ? "weight" : i < 16 ? "scalar" : "bias") << "element " << i;
}

TEST(Error, says_where_what_and_remedy) {
  const InputError input("a.yaml:3:4", "no such thing", "write another");
  EXPECT_STREQ(input.what(), "a.yaml:3:4: no such thing\n  remedy: write another");
  EXPECT_EQ(input.status(), ExitStatus::bad_input);
  EXPECT_EQ(RunError("MPI", "broken", "mend it").status(), ExitStatus::failed_run);
  const AgreedError agreed(ExitStatus::bad_input, "as sent");
  EXPECT_STREQ(agreed.what(), "as sent");
  EXPECT_EQ(agreed.status(), ExitStatus::bad_input);
}

TEST(Memory, a_vector_is_as_long_as_a_kernel_at_most) {
  constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max(), short_ones = (1ull << 32) - 1024;
  EXPECT_EQ(longest_vector(true, 30401), unlimited);
  EXPECT_EQ(longest_vector(false, 30401), short_ones);
  EXPECT_EQ(longest_vector(false, 40502), short_ones);
  EXPECT_EQ(longest_vector(false, 40600), unlimited);
  EXPECT_NO_THROW(check_length(short_ones, short_ones));
  EXPECT_NO_THROW(check_length<Kokkos::Serial>(unlimited));
  try {
    check_length(short_ones + 1, short_ones);
    ADD_FAILURE() << "the vector is too long";
  } catch (const InputError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("4294966273 elements"), std::string::npos) << text;
    EXPECT_NE(text.find("Kokkos 4.6 or newer"), std::string::npos) << text;
  }
}

TEST(CrashMessage, is_said_before_the_end_that_would_have_come) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGALRM})
    EXPECT_EXIT(
        {
          const CrashMessage message("the library is at fault\n", std::chrono::seconds(60));
          std::raise(signal);
        },
        ::testing::KilledBySignal(signal), "^the library is at fault\n$");
}

TEST(CrashMessage, goes_to_whom_the_signal_went_before) {
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, [](int) { _exit(7); });
        const CrashMessage message("the library is at fault\n", std::chrono::seconds(60));
        std::raise(SIGSEGV);
      },
      ::testing::ExitedWithCode(7), "the library is at fault");
}

TEST(CrashMessage, ends_with_its_scope) {
  { const CrashMessage message("the library is at fault\n", std::chrono::seconds(60)); }
  EXPECT_EQ(alarm(0), 0u);
  EXPECT_EXIT(std::raise(SIGBUS), ::testing::KilledBySignal(SIGBUS), "^$");
}

TEST(PhaseTimes, are_kept_by_phase) {
  PhaseTimes times;
  times.add(Phase::compress, 1.5);
  times.add(Phase::compress, 0.25);
  times.add(Phase::update, 2.0);
  EXPECT_EQ(times[Phase::compress], 1.75);
  EXPECT_EQ(times[Phase::update], 2.0);
  EXPECT_EQ(times[Phase::forward], 0.0);
  times.clear();
  EXPECT_EQ(times[Phase::compress], 0.0);
  EXPECT_EQ(std::set<std::string>(phase_names.begin(), phase_names.end()).size(), phase_names.size());
}

TEST(Stopwatch, restarts_from_now) {
  Stopwatch watch;
  while (watch.seconds() < 1e-3) {
  }
  EXPECT_GE(watch.restart(), 1e-3);
  EXPECT_LT(watch.seconds(), 1.0);
}

}  // namespace
TEST(Activity, names_the_innermost_scope_of_the_watched_thread) {
  const Activity unwatched("OneBit::test::unwatched");
  const auto before = Activity::seen();
  EXPECT_STRNE(before.name, "OneBit::test::unwatched");
  Activity::watch(true);
  Activity::set_step(7);
  {
    const Activity outer("OneBit::test::outer");
    EXPECT_STREQ(Activity::seen().name, "OneBit::test::outer");
    EXPECT_EQ(Activity::seen().step, 7);
    EXPECT_FALSE(Activity::seen().waits);
    {
      const Activity waiting("OneBit::test::waiting", waits_for_ranks);
      const Region within("OneBit::test::within");
      EXPECT_STREQ(Activity::seen().name, "OneBit::test::within");
      EXPECT_TRUE(Activity::seen().waits) << "what happens within a wait is that wait";
      std::thread([] { const Activity other("OneBit::test::other_thread"); }).join();
      EXPECT_STREQ(Activity::seen().name, "OneBit::test::within");
    }
    EXPECT_STREQ(Activity::seen().name, "OneBit::test::outer");
    EXPECT_FALSE(Activity::seen().waits);
    const std::uint64_t changes = Activity::seen().changes;
    Activity::goes_on();
    EXPECT_EQ(Activity::seen().changes, changes + 1);
  }
  EXPECT_STREQ(Activity::seen().name, before.name);
  Activity::watch(false);
  const std::uint64_t changes = Activity::seen().changes;
  Activity::goes_on();
  EXPECT_EQ(Activity::seen().changes, changes) << "nobody watches";
}

TEST(Activity, of_a_helping_thread_shows_that_the_watched_one_goes_on) {
  Activity::watch(true);
  {
    const Activity waiting("OneBit::test::waiting", waits_for_ranks);
    const std::uint64_t changes = Activity::seen().changes;
    std::thread([] {
      Activity::help();
      const Activity part("OneBit::test::part");
    }).join();
    EXPECT_GT(Activity::seen().changes, changes);
    EXPECT_STREQ(Activity::seen().name, "OneBit::test::waiting");
    EXPECT_TRUE(Activity::seen().waits);
  }
  Activity::watch(false);
}

/// Whether the kernel was asked for huge pages at an address: flag "hg" of its mapping in /proc/self/smaps.
bool asks_for_huge_pages(const void* address) {
  std::ifstream file("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2) inside = begin <= wanted && wanted < end;
    if (inside && line.rfind("VmFlags:", 0) == 0) return line.find(" hg") != std::string::npos;
  }
  return false;
}

TEST(HugePages, are_asked_for_under_large_views) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"))
    GTEST_SKIP() << "this system has no transparent huge pages";
  constexpr std::size_t length = std::size_t{64} << 20;
  use_huge_pages();
  const HostVector<char> view(Kokkos::view_alloc("OneBit::test::view", Kokkos::WithoutInitializing), length);
  EXPECT_TRUE(asks_for_huge_pages(view.data() + length / 2));
}

/// The variable that shows a fault of a process whose MPI has `world_size` ranks; empty without a fault.
std::string shown_by(int world_size, const std::map<std::string, std::string>& variables, bool has_terminal = false) {
  const auto environment = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  const LaunchFault fault = launch_fault(world_size, environment, has_terminal);
  EXPECT_EQ(static_cast<bool>(fault), !fault.remedy.empty());
  return fault.variable;
}

TEST(Launcher, that_started_several_processes_shows_in_a_world_of_one) {
  using Variables = std::map<std::string, std::string>;
  const std::vector<std::pair<std::string, Variables>> faults = {
      {"PMI_SIZE", {{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}}},
      {"PMI_SIZE", {{"PMI_SIZE", "2"}}},
      {"PMI_RANK", {{"PMI_RANK", "1"}}},
      {"OMPI_COMM_WORLD_SIZE", {{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}}},
      {"MV2_COMM_WORLD_SIZE", {{"MV2_COMM_WORLD_SIZE", "64"}, {"MV2_COMM_WORLD_RANK", "0"}}},
      {"PMIX_RANK", {{"PMIX_RANK", "1"}}},
      {"PALS_RANKID", {{"PALS_RANKID", "7"}}},
      {"ALPS_APP_PE", {{"ALPS_APP_PE", "7"}}},
      {"SLURM_STEP_NUM_TASKS", {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}},
      {"WORLD_SIZE", {{"WORLD_SIZE", "2"}, {"RANK", "0"}, {"LOCAL_RANK", "0"}}},
  };
  for (const auto& [variable, variables] : faults) {
    EXPECT_EQ(shown_by(1, variables), variable);
    EXPECT_EQ(shown_by(2, variables), "");  // MPI has connected them
  }
}

TEST(Launcher, is_not_at_fault_for_what_others_leave_in_the_environment) {
  using Variables = std::map<std::string, std::string>;
#ifdef OPEN_MPI
  const std::string own = "OMPI_COMM_WORLD_SIZE";
#else
  const std::string own = "PMI_SIZE";
#endif
  const std::vector<Variables> sound = {
      {},
      {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}},
      {{"PMIX_RANK", "0"}},
      // A batch script, and the shell of salloc.
      {{"SLURM_NTASKS", "8"}, {"SLURM_NPROCS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "5"}},
      {{"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_ID", "0"}},
      // One rank of this library's launcher, whose daemons srun started.
      {{own, "1"}, {"SLURM_STEP_NUM_TASKS", "4"}},
      // Words that are also other programs'.
      {{"WORLD_SIZE", "4"}},
      {{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"}},
      {{"WORLD_SIZE", "1"}, {"RANK", "0"}},
      {{"WORLD_SIZE", "4"}, {"RANK", "7"}},
      // No numbers.
      {{"PMI_SIZE", ""}},
      {{"PMI_SIZE", "many"}},
      {{"PMI_SIZE", "-3"}},
      {{"PMI_SIZE", "3x"}},
      {{"PMI_SIZE", "99999999999999999999"}},
  };
  for (std::size_t i = 0; i < sound.size(); ++i) EXPECT_EQ(shown_by(1, sound[i]), "") << i;

  // The shell of `srun --ntasks=8 --pty bash`, and a step that is started there.
  const Variables pty = {{"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_PTY_PORT", "35001"}};
  EXPECT_EQ(shown_by(1, pty, true), "");
  EXPECT_EQ(shown_by(1, pty, false), "SLURM_STEP_NUM_TASKS");
}

TEST(Error, of_an_allocation_says_what_was_wanted_and_what_to_do) {
  try {
    // More than any address space has.
    const Kokkos::View<char*, Kokkos::HostSpace> view(
        Kokkos::view_alloc("OneBit::test::huge", Kokkos::WithoutInitializing), std::size_t{1} << 60);
    FAIL() << "there was memory for it";
  } catch (const std::exception& error) {
    const Error described = describe(error);
    EXPECT_EQ(described.status(), ExitStatus::failed_run);
    const std::string message = described.what();
    EXPECT_EQ(message.rfind("memory: ", 0), 0u) << message;
    for (const char* part : {"OneBit::test::huge", "\n  remedy: use a smaller model"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
  }
}

}  // namespace onebit
