/// \file compress_test.cpp
/// The cut of a vector, and the 1-bit compressor: its kernels equal compress/reference.hpp bit for bit on every backend
/// of the build, and so each other; with other thread counts they are run again by CTest.

#include <cmath>
#include <limits>

#include "../cuts.hpp"
#include "../support.hpp"
#include "base/parallel.hpp"
#include "compress/reference.hpp"
#include "compress/sign.hpp"

namespace onebit::compress {
namespace {

using test::Cut;
using test::large_length;

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

std::vector<Cut> large_cuts() {
  return {{large_length, 3, Grouping::vector},
          {large_length, 3, Grouping::tensor, 0, test::ragged_offsets(large_length)},
          {large_length, 7, Grouping::chunk},
          {large_length, 8, Grouping::block, 96}};
}

template <class F>
void for_each_cut(const F& f) {
  for (const std::size_t length : test::small_lengths)
    for (int chunks = 1; chunks <= 8; ++chunks)
      for (const Cut& cut : test::cuts(length, chunks)) f(cut);
  for (const Cut& cut : large_cuts()) f(cut);
}

TEST(Layout, tables_cover_the_vector) {
  for_each_cut([](const Cut& cut) {
    SCOPED_TRACE(::testing::Message() << cut);
    const Layout layout = cut.layout();
    const LayoutRef reference = cut.reference();
    ASSERT_EQ(layout.words, reference.words);
    ASSERT_EQ(layout.slots, reference.slots);
    EXPECT_EQ(layout.message_words(), reference.message_words());
    EXPECT_GE(layout.chunk_length() * cut.chunks, cut.length);
    EXPECT_EQ(layout.chunk_begin(0), 0u);
    EXPECT_EQ(layout.chunk_begin(cut.chunks), cut.length);

    ASSERT_EQ(layout.slot_begins.size(), cut.chunks * layout.slots + 1);
    ASSERT_EQ(layout.slot_pieces.size(), layout.slot_begins.size());
    ASSERT_EQ(layout.word_slots.size(), cut.chunks * layout.words);
    EXPECT_EQ(layout.slot_begins.back(), cut.length);
    EXPECT_EQ(layout.piece_begins.back(), cut.length);
    EXPECT_EQ(layout.slot_pieces.front(), 0u);
    EXPECT_EQ(layout.slot_pieces.back(), layout.piece_begins.size() - 1);

    std::size_t covered = 0, wrong_slots = 0, wrong_words = 0;
    for (int chunk = 0; chunk < cut.chunks; ++chunk) {
      ASSERT_EQ(layout.chunk_begin(chunk), reference.begin(chunk));
      for (std::size_t slot = 0; slot < layout.slots; ++slot) {
        const std::size_t index = chunk * layout.slots + slot;
        const std::size_t begin = layout.slot_begins[index], end = layout.slot_begins[index + 1];
        // Consecutive, inside the chunk, and each element in the slot of the definition.
        ASSERT_EQ(begin, covered);
        ASSERT_LE(end, layout.chunk_begin(chunk + 1));
        for (std::size_t j = begin; j < end; ++j) wrong_slots += reference.slot[j] != slot;
        covered = end;

        std::size_t piece_begin = begin;
        for (std::size_t piece = layout.slot_pieces[index]; piece < layout.slot_pieces[index + 1]; ++piece) {
          ASSERT_EQ(layout.piece_begins[piece], piece_begin);
          piece_begin = std::min(piece_begin + piece_length, end);
          ASSERT_EQ(layout.piece_begins[piece + 1], piece_begin);
        }
        ASSERT_EQ(piece_begin, end);
      }
      ASSERT_EQ(covered, layout.chunk_begin(chunk + 1));
      for (std::size_t word = 0; word < layout.words; ++word) {
        const std::size_t first = layout.chunk_begin(chunk) + word * bits_per_word;
        const std::uint32_t slot = layout.word_slots[chunk * layout.words + word];
        wrong_words += first < layout.chunk_begin(chunk + 1) ? slot != reference.slot[first] : slot >= layout.slots;
      }
    }
    EXPECT_EQ(covered, cut.length);
    EXPECT_EQ(wrong_slots, 0u);
    EXPECT_EQ(wrong_words, 0u);
  });
}

TEST(Layout, slots_by_grouping) {
  // 100 elements are 4 words, 2 for each of 2 ranks: chunks [0, 64) and [64, 100).
  const std::vector<std::size_t> tensors = {0, 10, 10, 70, 71};
  using Table = std::vector<std::size_t>;
  EXPECT_EQ(Layout(100, 2, Grouping::vector).slot_begins, (Table{0, 64, 100}));
  EXPECT_EQ(Layout(100, 2, Grouping::chunk).slot_begins, (Table{0, 64, 100}));
  EXPECT_EQ(Layout(100, 2, Grouping::tensor, 0, tensors).slot_begins, (Table{0, 10, 64, 64, 70, 71, 100}));
  EXPECT_EQ(Layout(100, 2, Grouping::block, 32).slot_begins, (Table{0, 32, 64, 96, 100}));
  // 3 ranks: 2 words each, the last chunk is all padding.
  EXPECT_EQ(Layout(100, 3, Grouping::block, 32).slot_begins, (Table{0, 32, 64, 96, 100, 100, 100}));
}

// The reference itself, on numbers that can be checked by hand.
TEST(Reference, scales_by_grouping) {
  const std::vector<float> x = {1, -2, 3, -4, 0, -0.0f};
  const auto scales = [&](const LayoutRef& layout, Scale scale) {
    std::vector<float> residual(x.size(), 0.0f), result(layout.slots);
    const auto messages = compress_ref(layout, scale, 0, 1, x, residual);
    std::memcpy(result.data(), messages.data(), layout.slots * sizeof(float));
    EXPECT_EQ(messages.back(), 0b110101u);
    return result;
  };
  using Scales = std::vector<float>;
  EXPECT_EQ(scales(LayoutRef(6, 1, Grouping::vector), Scale::l1), (Scales{10.0f / 6}));
  EXPECT_EQ(scales(LayoutRef(6, 1, Grouping::vector), Scale::l2), (Scales{std::sqrt(5.0f)}));
  EXPECT_EQ(scales(LayoutRef(6, 1, Grouping::tensor, 0, {0, 1, 4}), Scale::l1), (Scales{1, 3, 0}));

  std::vector<float> residual = {0.5f, 0, 0, 0, 0, 0};
  const LayoutRef layout(6, 1, Grouping::tensor, 0, {0, 2});
  compress_ref(layout, Scale::l1, 0, 1, x, residual);
  EXPECT_EQ(residual, (Scales{-0.25f, -0.25f, 1.25f, -2.25f, -1.75f, -1.75f}));
}

/// `values`, and then `garbage` up to `length`: where a kernel reads or writes padding, it shows.
std::vector<float> padded(std::vector<float> values, std::size_t length, float garbage) {
  values.resize(length, garbage);
  return values;
}

/// Compresses with the kernels, in buffers that are followed by NaN, and brings messages and residual back.
template <class Exec>
std::vector<std::uint32_t> compress_on(const SignCompressor<Exec>& compressor, int first_chunk, int chunks,
                                       const std::vector<float>& x, std::vector<float>& residual) {
  const Exec exec;
  const std::size_t length = residual.size(), room = length + 64;
  const auto x_device = test::to_device<Exec>(padded(x, room, not_a_number));
  const auto residual_device = test::to_device<Exec>(padded(residual, room, not_a_number));
  const Vector<Exec, std::uint32_t> messages("OneBit::test::messages", chunks * compressor.layout().message_words());
  Kokkos::deep_copy(messages, 0xdeadbeefu);
  compressor.compress(exec, first_chunk, chunks, x_device, residual_device, messages);
  fence(exec, "OneBit::test::compress");
  residual = test::to_host(residual_device);
  for (std::size_t j = length; j < room; ++j) EXPECT_TRUE(std::isnan(residual[j])) << "padding " << j - length;
  residual.resize(length);
  return test::to_host(messages);
}

template <class Exec>
std::vector<float> average_on(const SignCompressor<Exec>& compressor, int chunk, int senders,
                              const std::vector<std::uint32_t>& messages) {
  const Exec exec;
  const Layout& layout = compressor.layout();
  const std::size_t length = layout.chunk_begin(chunk + 1) - layout.chunk_begin(chunk);
  const auto mean = test::to_device<Exec>(std::vector<float>(layout.chunk_length() + 64, not_a_number));
  compressor.average_chunk(exec, chunk, senders, test::to_device<Exec>(messages), mean);
  fence(exec, "OneBit::test::average");
  std::vector<float> result = test::to_host(mean);
  for (std::size_t j = length; j < result.size(); ++j) EXPECT_TRUE(std::isnan(result[j])) << "padding " << j - length;
  result.resize(length);
  return result;
}

template <class Exec>
std::vector<float> decompress_on(const SignCompressor<Exec>& compressor, const std::vector<std::uint32_t>& messages) {
  const Exec exec;
  const std::size_t length = compressor.layout().length;
  const auto x = test::to_device<Exec>(std::vector<float>(length + 64, not_a_number));
  compressor.decompress_all(exec, test::to_device<Exec>(messages), x);
  fence(exec, "OneBit::test::decompress");
  std::vector<float> result = test::to_host(x);
  for (std::size_t j = length; j < result.size(); ++j) EXPECT_TRUE(std::isnan(result[j])) << "padding " << j - length;
  result.resize(length);
  return result;
}

/// Sets the sign bits of padding, which nobody may read.
void set_padding_bits(const Layout& layout, int chunk, std::uint32_t* message) {
  const std::size_t length = layout.chunk_begin(chunk + 1) - layout.chunk_begin(chunk);
  for (std::size_t j = length; j < layout.chunk_length(); ++j)
    message[layout.slots + j / bits_per_word] |= 1u << j % bits_per_word;
}

template <class Exec>
class Sign : public ::testing::Test {};
TYPED_TEST_SUITE(Sign, test::Backends, test::BackendNames);

TYPED_TEST(Sign, worker_equals_reference) {
  for (const Scale scale : {Scale::l1, Scale::l2})
    for_each_cut([&](const Cut& cut) {
      SCOPED_TRACE(::testing::Message() << cut << " l2 " << (scale == Scale::l2));
      const LayoutRef reference = cut.reference();
      const SignCompressor<TypeParam> compressor(cut.layout(), scale);
      std::vector<float> residual(cut.length, 0.0f), residual_ref = residual;
      // The second round compresses what the first one left over.
      for (int round = 0; round < 2; ++round) {
        const std::vector<float> x = test::random_values(cut.length, round);
        const auto messages = compress_on(compressor, 0, cut.chunks, x, residual);
        ASSERT_TRUE(test::same_bits(messages, compress_ref(reference, scale, 0, cut.chunks, x, residual_ref)));
        ASSERT_TRUE(test::same_bits(residual, residual_ref));
        ASSERT_TRUE(test::same_bits(decompress_on(compressor, messages), decompress_ref(reference, messages)));
      }
    });
}

TYPED_TEST(Sign, server_equals_reference) {
  for (const Scale scale : {Scale::l1, Scale::l2})
    for_each_cut([&](const Cut& cut) {
      SCOPED_TRACE(::testing::Message() << cut << " l2 " << (scale == Scale::l2));
      const LayoutRef reference = cut.reference();
      const SignCompressor<TypeParam> compressor(cut.layout(), scale);
      const std::size_t block = reference.message_words();

      for (int server = 0; server < cut.chunks; ++server) {
        // Any words are signs; the scales are those of the senders.
        std::vector<std::uint32_t> received(cut.chunks * block);
        for (std::size_t word = 0; word < received.size(); ++word)
          received[word] = philox(stream_key(server, Stream::noise), word, 0).word[0];
        for (int sender = 0; sender < cut.chunks; ++sender) {
          const std::vector<float> scales = test::random_values(reference.slots, 20 + sender);
          std::memcpy(received.data() + sender * block, scales.data(), scales.size() * sizeof(float));
        }
        const std::vector<float> mean_ref = average_ref(reference, server, cut.chunks, received);
        for (int sender = 0; sender < cut.chunks; ++sender)
          set_padding_bits(compressor.layout(), server, received.data() + sender * block);
        const std::vector<float> mean = average_on(compressor, server, cut.chunks, received);
        ASSERT_TRUE(test::same_bits(mean, mean_ref));

        std::vector<float> residual = test::random_values(mean.size(), 30 + server), residual_ref = residual;
        const auto message = compress_on(compressor, server, 1, mean, residual);
        ASSERT_TRUE(test::same_bits(message, compress_ref(reference, scale, server, 1, mean, residual_ref)));
        ASSERT_TRUE(test::same_bits(residual, residual_ref));
      }
    });
}

TYPED_TEST(Sign, padding_bits_are_sent_as_zero_and_not_read) {
  for_each_cut([](const Cut& cut) {
    if (cut.length > 1000) return;
    SCOPED_TRACE(::testing::Message() << cut);
    const SignCompressor<TypeParam> compressor(cut.layout(), Scale::l1);
    const Layout& layout = compressor.layout();
    std::vector<float> residual(cut.length, 0.0f);
    const auto messages = compress_on(compressor, 0, cut.chunks, test::random_values(cut.length, 4), residual);
    auto dirty = messages;
    std::size_t padding = 0, dirtied = 0;
    for (int chunk = 0; chunk < cut.chunks; ++chunk) {
      padding += layout.chunk_length() - (layout.chunk_begin(chunk + 1) - layout.chunk_begin(chunk));
      set_padding_bits(layout, chunk, dirty.data() + chunk * layout.message_words());
    }
    for (std::size_t word = 0; word < messages.size(); ++word)
      for (std::uint32_t bits = messages[word] ^ dirty[word]; bits != 0; bits &= bits - 1) ++dirtied;
    EXPECT_EQ(dirtied, padding);
    EXPECT_TRUE(test::same_bits(decompress_on(compressor, dirty), decompress_on(compressor, messages)));
  });
}

TYPED_TEST(Sign, loses_nothing) {
  for (const Scale scale : {Scale::l1, Scale::l2})
    for_each_cut([&](const Cut& cut) {
      SCOPED_TRACE(::testing::Message() << cut << " l2 " << (scale == Scale::l2));
      const SignCompressor<TypeParam> compressor(cut.layout(), scale);
      const std::vector<float> x = test::random_values(cut.length, 5), old = test::random_values(cut.length, 6);
      std::vector<float> residual = old;
      const auto sent = decompress_on(compressor, compress_on(compressor, 0, cut.chunks, x, residual));
      // Two roundings, of c = x + old and of c − C(c), half a unit in the last place each.
      std::size_t wrong = 0;
      for (std::size_t j = 0; j < cut.length; ++j) {
        const double c = static_cast<double>(x[j]) + old[j], kept = static_cast<double>(sent[j]) + residual[j];
        wrong += !(std::fabs(kept - c) <= 0x1p-24 * (std::fabs(c) + std::fabs(residual[j])) * 1.001);
      }
      EXPECT_EQ(wrong, 0u);
    });
}

TYPED_TEST(Sign, message_is_scales_and_then_sign_words) {
  // 70 elements in blocks of 32, one rank: 3 scales and 3 words.
  const SignCompressor<TypeParam> compressor(Layout(70, 1, Grouping::block, 32), Scale::l1);
  for (std::size_t positive = 0; positive < 70; ++positive) {
    std::vector<float> x(70), residual(70, 0.0f);
    for (std::size_t j = 0; j < 70; ++j) x[j] = (j == positive ? 1.0f : -1.0f) * static_cast<float>(1 + j / 32);
    const auto message = compress_on(compressor, 0, 1, x, residual);
    ASSERT_EQ(message.size(), 6u);
    std::vector<float> scales(3);
    std::memcpy(scales.data(), message.data(), 3 * sizeof(float));
    EXPECT_EQ(scales, (std::vector<float>{1, 2, 3}));
    for (std::size_t word = 0; word < 3; ++word)
      EXPECT_EQ(message[3 + word], positive / 32 == word ? 1u << positive % 32 : 0u) << "positive " << positive;
  }
}

TYPED_TEST(Sign, zeros_of_both_signs_become_positive) {
  const SignCompressor<TypeParam> compressor(Layout(64, 1, Grouping::vector), Scale::l1);
  std::vector<float> x(64, 0.0f), residual(64, 0.0f);
  for (std::size_t j = 0; j < 64; j += 2) x[j] = -0.0f;
  for (std::size_t j = 0; j < 64; j += 3) residual[j] = -0.0f;
  x[63] = -64.0f;
  const auto sent = decompress_on(compressor, compress_on(compressor, 0, 1, x, residual));
  for (std::size_t j = 0; j < 63; ++j) EXPECT_EQ(sent[j], 1.0f) << "element " << j;
  EXPECT_EQ(sent[63], -1.0f);

  // A group of zeros has scale +0, and so does one without elements.
  std::vector<float> zeros(64, -0.0f), nothing(64, -0.0f);
  const auto message = compress_on(compressor, 0, 1, zeros, nothing);
  EXPECT_EQ(message, (std::vector<std::uint32_t>{0u, ~0u, ~0u}));
}

TYPED_TEST(Sign, nan_stays_in_its_group) {
  const SignCompressor<TypeParam> compressor(Layout(96, 1, Grouping::block, 32), Scale::l1);
  std::vector<float> x(96, 2.0f), residual(96, 0.0f);
  x[40] = not_a_number;
  const auto sent = decompress_on(compressor, compress_on(compressor, 0, 1, x, residual));
  for (std::size_t j = 0; j < 96; ++j) EXPECT_EQ(std::isnan(sent[j]), j / 32 == 1) << "element " << j;
}

TYPED_TEST(Sign, bits_do_not_depend_on_threads) {
  const std::string backend = BackendName<TypeParam>::value;
  int number = 0;
  for (const Scale scale : {Scale::l1, Scale::l2})
    for (const Cut& cut : large_cuts()) {
      const std::string name = "cut_" + std::to_string(number++) + "_" + backend;
      const SignCompressor<TypeParam> compressor(cut.layout(), scale);
      std::vector<float> residual = test::random_values(cut.length, 7);
      const auto messages = compress_on(compressor, 0, cut.chunks, test::random_values(cut.length, 8), residual);
      test::print_bits("messages_" + name, messages);
      test::print_bits("residual_" + name, residual);
      test::print_bits("decompressed_" + name, decompress_on(compressor, messages));
      const auto block = compressor.layout().message_words();
      test::print_bits("mean_" + name, average_on(compressor, 1, 1, {messages.begin() + block, messages.end()}));
    }
}

}  // namespace
}  // namespace onebit::compress
