/// \file compress_test.cpp
/// The cut of a vector, and the compressors: their kernels equal compress/reference.hpp bit for bit on every backend of
/// the build, and so each other; with other thread counts they are run again by CTest, and so they are with their words
/// shared by lanes as on a device.

#include <cmath>
#include <limits>

#include "../cuts.hpp"
#include "../support.hpp"
#include "base/device/parallel.hpp"
#include "compress/compressor.hpp"
#include "compress/reference.hpp"

namespace onebit::compress {
namespace {

using test::Cut;
using test::large_length;

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

std::vector<Cut> large_cuts() {
  return {{large_length, 3, Grouping::vector},
          {large_length, 3, Grouping::tensor, 0, test::ragged_offsets(large_length)},
          {large_length, 7, Grouping::chunk},
          {large_length, 8, Grouping::fixed, 96},
          {large_length, 5, Grouping::column, 0, test::ragged_offsets(large_length)}};
}

/// All cuts.
template <class F>
void for_each_cut(const F& f) {
  for (const std::size_t length : test::small_lengths)
    for (int chunks = 1; chunks <= 8; ++chunks)
      for (const Cut& cut : test::cuts(length, chunks)) f(cut);
  for (const Cut& cut : large_cuts()) f(cut);
}

/// Each compressor on cuts: `sign` with its default scale on all of them, the others on fewer lengths and chunks, as
/// they cut in the same way.
template <class F>
void for_each_case(const F& f) {
  for (const Options& options : test::compressors()) {
    const auto run = [&](const Cut& cut) {
      SCOPED_TRACE(::testing::Message() << test::name_of(options) << " " << cut);
      f(options, cut);
    };
    if (options.kind == CompressorKind::sign && options.scale == Scale::l1) {
      for_each_cut(run);
      continue;
    }
    for (const std::size_t length : {0, 33, 5000})
      for (const int chunks : {1, 4})
        for (const Cut& cut : test::cuts(length, chunks)) run(cut);
    const Grouping grouping = options.kind == CompressorKind::column ? Grouping::column : Grouping::vector;
    run({large_length, 2, grouping, 0, test::ragged_offsets(large_length)});
  }
}

TEST(Layout, tables_cover_the_vector) {
  for_each_cut([](const Cut& cut) {
    SCOPED_TRACE(::testing::Message() << cut);
    const Layout layout = cut.layout();
    const LayoutRef reference = cut.reference();
    ASSERT_EQ(layout.words, reference.words);
    ASSERT_EQ(layout.groups, reference.groups);
    EXPECT_GE(layout.chunk_length() * cut.chunks, cut.length);
    ASSERT_EQ(layout.chunk_begins, reference.begins);
    EXPECT_EQ(layout.chunk_begins.front(), 0u);
    EXPECT_EQ(layout.chunk_begins.back(), cut.length);

    ASSERT_EQ(layout.group_begins.size(), cut.chunks * layout.groups + 1);
    ASSERT_EQ(layout.group_blocks.size(), layout.group_begins.size());
    ASSERT_EQ(layout.word_groups.size(), cut.chunks * layout.words);
    EXPECT_EQ(layout.group_begins.back(), cut.length);
    EXPECT_EQ(layout.block_begins.back(), cut.length);
    EXPECT_EQ(layout.group_blocks.front(), 0u);
    EXPECT_EQ(layout.group_blocks.back(), layout.block_begins.size() - 1);

    std::size_t covered = 0, wrong_groups = 0, wrong_words = 0;
    for (int chunk = 0; chunk < cut.chunks; ++chunk) {
      for (std::size_t group = 0; group < layout.groups; ++group) {
        const std::size_t index = chunk * layout.groups + group;
        const std::size_t begin = layout.group_begins[index], end = layout.group_begins[index + 1];
        // Consecutive, inside the chunk, and each element in the group of the definition.
        ASSERT_EQ(begin, covered);
        ASSERT_LE(end, layout.chunk_begins[chunk + 1]);
        for (std::size_t j = begin; j < end; ++j) wrong_groups += reference.group[j] != group;
        covered = end;

        std::size_t block_begin = begin;
        for (std::size_t block = layout.group_blocks[index]; block < layout.group_blocks[index + 1]; ++block) {
          ASSERT_EQ(layout.block_begins[block], block_begin);
          block_begin = std::min(block_begin + block_length, end);
          ASSERT_EQ(layout.block_begins[block + 1], block_begin);
        }
        ASSERT_EQ(block_begin, end);
      }
      ASSERT_EQ(covered, layout.chunk_begins[chunk + 1]);
      for (std::size_t word = 0; word < layout.words; ++word) {
        const std::size_t first = layout.chunk_begins[chunk] + word * bits_per_word;
        const std::uint32_t group = layout.word_groups[chunk * layout.words + word];
        wrong_words +=
            first < layout.chunk_begins[chunk + 1] ? group != reference.group[first] : group >= layout.groups;
      }
    }
    EXPECT_EQ(covered, cut.length);
    EXPECT_EQ(wrong_groups, 0u);
    EXPECT_EQ(wrong_words, 0u);
  });
}

TEST(Layout, groups_by_grouping) {
  // 100 elements are 4 words, 2 for each of 2 ranks: chunks [0, 64) and [64, 100).
  const std::vector<std::size_t> tensors = {0, 10, 10, 70, 71};
  using Table = std::vector<std::size_t>;
  EXPECT_EQ(Layout(100, 2, Grouping::vector).group_begins, (Table{0, 64, 100}));
  EXPECT_EQ(Layout(100, 2, Grouping::chunk).group_begins, (Table{0, 64, 100}));
  EXPECT_EQ(Layout(100, 2, Grouping::tensor, 0, tensors).group_begins, (Table{0, 10, 64, 64, 70, 71, 100}));
  EXPECT_EQ(Layout(100, 2, Grouping::fixed, 32).group_begins, (Table{0, 32, 64, 96, 100}));
  // 3 ranks: 2 words each, the last chunk is all padding.
  EXPECT_EQ(Layout(100, 2, Grouping::fixed, static_cast<std::size_t>(-32)).group_begins, (Table{0, 64, 100}));
  EXPECT_EQ(Layout(100, 3, Grouping::fixed, 32).group_begins, (Table{0, 32, 64, 96, 100, 100, 100}));
}

TEST(Layout, chunks_of_columns) {
  using Table = std::vector<std::size_t>;
  const auto begins = [](std::size_t length, int chunks, const Table& columns) {
    const Layout layout(length, chunks, Grouping::column, 0, columns);
    EXPECT_EQ(layout.chunk_begins, LayoutRef(length, chunks, Grouping::column, 0, columns).begins);
    return layout.chunk_begins;
  };
  // The shares end at 50: a border nearby, and of two at the same distance the lower.
  EXPECT_EQ(begins(100, 2, {0, 10, 48, 70}), (Table{0, 48, 100}));
  EXPECT_EQ(begins(100, 2, {0, 45, 55}), (Table{0, 45, 100}));
  EXPECT_EQ(begins(8 * 40, 4, {0, 40, 80, 120, 160, 200, 240, 280}), (Table{0, 80, 160, 240, 320}));
  // A column is never split, so others may stay without elements.
  EXPECT_EQ(begins(100, 4, {0}), (Table{0, 0, 0, 100, 100}));
  EXPECT_EQ(begins(100, 3, {0, 1, 99}), (Table{0, 1, 99, 100}));
  // W is that of the longest chunk.
  EXPECT_EQ(Layout(100, 3, Grouping::column, 0, {0, 1, 99}).words, 4u);
  EXPECT_EQ(Layout(100, 2, Grouping::column, 0, {0, 10, 48, 70}).groups, 2u);
}

// The reference itself, on numbers that can be checked by hand.
TEST(Reference, scales_by_grouping) {
  const std::vector<float> x = {1, -2, 3, -4, 0, -0.0f};
  const auto scales = [&](const LayoutRef& layout, Scale scale) {
    std::vector<float> residual(x.size(), 0.0f), result(layout.groups);
    const auto messages = compress_ref(layout, {CompressorKind::sign, scale}, 0, 1, x, residual);
    std::memcpy(result.data(), messages.data(), layout.groups * sizeof(float));
    EXPECT_EQ(messages.back(), 0b110101u);
    return result;
  };
  using Scales = std::vector<float>;
  EXPECT_EQ(scales(LayoutRef(6, 1, Grouping::vector), Scale::l1), (Scales{10.0f / 6}));
  EXPECT_EQ(scales(LayoutRef(6, 1, Grouping::vector), Scale::l2), (Scales{std::sqrt(5.0f)}));
  EXPECT_EQ(scales(LayoutRef(6, 1, Grouping::tensor, 0, {0, 1, 4}), Scale::l1), (Scales{1, 3, 0}));

  std::vector<float> residual = {0.5f, 0, 0, 0, 0, 0};
  const LayoutRef layout(6, 1, Grouping::tensor, 0, {0, 2});
  compress_ref(layout, {CompressorKind::sign}, 0, 1, x, residual);
  EXPECT_EQ(residual, (Scales{-0.25f, -0.25f, 1.25f, -2.25f, -1.75f, -1.75f}));
}

/// `values`, and then `garbage` up to `length`: where a kernel reads or writes padding, it shows.
std::vector<float> padded(std::vector<float> values, std::size_t length, float garbage) {
  values.resize(length, garbage);
  return values;
}

/// Compresses with the kernels, in buffers that are followed by NaN, and brings messages and residual back.
template <class Exec>
std::vector<std::uint32_t> compress_on(const Compressor<Exec>& compressor, int first_chunk, int chunks,
                                       const std::vector<float>& x, std::vector<float>& residual) {
  const Exec exec;
  const std::size_t length = residual.size(), room = length + 64;
  const auto x_device = test::to_device<Exec>(padded(x, room, not_a_number));
  const auto residual_device = test::to_device<Exec>(padded(residual, room, not_a_number));
  const Vector<Exec, std::uint32_t> messages("OneBit::test::messages", chunks * compressor.message_words());
  Kokkos::deep_copy(messages, 0xdeadbeefu);
  // With scales of 0, C(c) = 0, and the feedback's c is the residual.
  const Feedback<Exec> feedback{residual_device, compressor.no_feedback(first_chunk, chunks).scales};
  compressor.compress(exec, {first_chunk, chunks, x_device, feedback, messages});
  const std::vector<float> c = test::to_host(feedback.c);
  for (std::size_t j = length; j < room; ++j) EXPECT_TRUE(std::isnan(c[j])) << "padding " << j - length;

  const auto rest = test::to_device<Exec>(std::vector<float>(room, not_a_number));
  compressor.residual(exec, first_chunk, chunks, feedback, rest);
  fence(exec, "OneBit::test::compress");
  residual = test::to_host(rest);
  for (std::size_t j = length; j < room; ++j) EXPECT_TRUE(std::isnan(residual[j])) << "padding " << j - length;
  residual.resize(length);
  double square = 0;
  for (const float element : residual) square += static_cast<double>(element) * element;
  const double norm = compressor.residual_l2(exec, first_chunk, chunks, feedback);
  if (std::isfinite(square)) {
    EXPECT_NEAR(norm, std::sqrt(square), 1e-12 * std::sqrt(square));
  }
  return test::to_host(messages);
}

template <class Exec>
std::vector<float> average_on(const Compressor<Exec>& compressor, int chunk, int senders,
                              const std::vector<std::uint32_t>& messages) {
  const Exec exec;
  const Layout& layout = compressor.layout();
  const auto feedback = compressor.no_feedback(chunk, 1);
  const auto recompressed = Vector<Exec, std::uint32_t>("OneBit::test::recompressed", compressor.message_words());
  compressor.encode(exec, {chunk, 1, {}, feedback, recompressed, {}, {senders, test::to_device<Exec>(messages)}}, chunk,
                    {0, layout.words});
  fence(exec, "OneBit::test::average");
  return test::to_host(feedback.c);
}

template <class Exec>
std::vector<float> decompress_on(const Compressor<Exec>& compressor, const std::vector<std::uint32_t>& messages) {
  const Exec exec;
  const std::size_t length = compressor.layout().length;
  const auto x = test::to_device<Exec>(std::vector<float>(length + 64, not_a_number));
  compressor.decompress(exec, 0, compressor.layout().chunks, test::to_device<Exec>(messages), x);
  fence(exec, "OneBit::test::decompress");
  std::vector<float> result = test::to_host(x);
  for (std::size_t j = length; j < result.size(); ++j) EXPECT_TRUE(std::isnan(result[j])) << "padding " << j - length;
  result.resize(length);
  return result;
}

/// Sets the bits of padding, which nobody may read.
void set_padding_bits(const Layout& layout, const Options& options, int chunk, std::uint32_t* message) {
  const std::size_t length = layout.chunk_begins[chunk + 1] - layout.chunk_begins[chunk];
  const std::size_t planes = codec_ref(options).planes, scales = layout.groups * codec_ref(options).scale_count;
  for (std::size_t j = length; j < layout.chunk_length(); ++j)
    for (std::size_t plane = 0; plane < planes; ++plane)
      message[scales + j / bits_per_word * planes + plane] |= 1u << j % bits_per_word;
}

template <class Exec>
class Codecs : public ::testing::Test {};
TYPED_TEST_SUITE(Codecs, test::Backends, test::BackendNames);

TYPED_TEST(Codecs, worker_equals_reference) {
  for_each_case([](const Options& options, const Cut& cut) {
    const LayoutRef reference = cut.reference();
    const auto compressor = make_compressor<TypeParam>(cut.layout(), options);
    ASSERT_EQ(compressor->message_words(), message_words_ref(reference, options));
    std::vector<float> residual(cut.length, 0.0f), residual_ref = residual;
    // The second round compresses what the first one left over.
    for (int round = 0; round < 2; ++round) {
      const std::vector<float> x = test::random_values(cut.length, round);
      const auto messages = compress_on(*compressor, 0, cut.chunks, x, residual);
      ASSERT_TRUE(test::same_bits(messages, compress_ref(reference, options, 0, cut.chunks, x, residual_ref)));
      ASSERT_TRUE(test::same_bits(residual, residual_ref));
      ASSERT_TRUE(test::same_bits(decompress_on(*compressor, messages), decompress_ref(reference, options, messages)));
    }
  });
}

// The sums of more than 2^20 elements have a third level.
TYPED_TEST(Codecs, long_group_equals_reference) {
  const Cut cut{(3u << 20) + 77, 1, Grouping::tensor, 0, {0, 1000}};
  const std::vector<float> x = test::random_values(cut.length, 1);
  for (const Scale scale : {Scale::l1, Scale::l2}) {
    const Options options{CompressorKind::sign, scale};
    std::vector<float> residual(cut.length, 0.0f), residual_ref = residual;
    const auto messages = compress_on(*make_compressor<TypeParam>(cut.layout(), options), 0, cut.chunks, x, residual);
    EXPECT_TRUE(test::same_bits(messages, compress_ref(cut.reference(), options, 0, cut.chunks, x, residual_ref)));
    EXPECT_TRUE(test::same_bits(residual, residual_ref));
  }
}

// The feedback of one round is what the next one reads; chunks come in any order.
TYPED_TEST(Codecs, parts_equal_reference) {
  for_each_case([](const Options& options, const Cut& cut) {
    const TypeParam exec;
    const LayoutRef reference = cut.reference();
    const auto compressor = make_compressor<TypeParam>(cut.layout(), options);
    const Vector<TypeParam, std::uint32_t> messages("OneBit::test::messages", cut.chunks * compressor->message_words());
    const Feedback<TypeParam> feedback = compressor->no_feedback(0, cut.chunks);
    std::vector<float> residual_ref(cut.length, 0.0f);
    const std::size_t words = cut.layout().words, parts = (words + range_alignment - 1) / range_alignment;
    for (int round = 0; round < 3; ++round) {
      const std::vector<float> x = test::random_values(cut.length, round);
      Compression<TypeParam> compression{0, cut.chunks, test::to_device<TypeParam>(x), feedback, messages};
      // Of the first round's residual, then of the second's: powers of two, as a fused multiply and add may round them.
      if (round > 0) compression.residual_factor = round == 1 ? 2.0f : 0.25f;
      for (int chunk = cut.chunks - 1; chunk >= 0; --chunk)
        for (std::size_t part = 0; part < parts; ++part) {
          const std::size_t begin = part * range_alignment;
          compressor->encode(exec, compression, chunk, {begin, std::min(words, begin + range_alignment)});
        }
      compressor->finish(exec, compression);
      ASSERT_TRUE(test::same_bits(test::to_host(messages), compress_ref(reference, options, 0, cut.chunks, x,
                                                                        residual_ref, compression.residual_factor)));
    }
  });
}

TYPED_TEST(Codecs, server_equals_reference) {
  for_each_case([](const Options& options, const Cut& cut) {
    const LayoutRef reference = cut.reference();
    const auto compressor = make_compressor<TypeParam>(cut.layout(), options);
    const std::size_t block = compressor->message_words();
    for (int server = 0; server < cut.chunks; ++server) {
      // Any words are codes; the scales are those of the senders.
      std::vector<std::uint32_t> received(cut.chunks * block);
      for (std::size_t word = 0; word < received.size(); ++word)
        received[word] = philox(stream_key(server, Stream::noise), word, 0).word[0];
      for (int sender = 0; sender < cut.chunks; ++sender) {
        const auto scales = test::random_values(reference.groups * codec_ref(options).scale_count, 20 + sender);
        std::memcpy(received.data() + sender * block, scales.data(), scales.size() * sizeof(float));
      }
      const std::vector<float> mean_ref = average_ref(reference, options, server, cut.chunks, received);
      for (int sender = 0; sender < cut.chunks; ++sender)
        set_padding_bits(compressor->layout(), options, server, received.data() + sender * block);
      const std::vector<float> mean = average_on(*compressor, server, cut.chunks, received);
      ASSERT_TRUE(test::same_bits(mean, mean_ref));

      std::vector<float> residual = test::random_values(mean.size(), 30 + server), residual_ref = residual;
      const auto message = compress_on(*compressor, server, 1, mean, residual);
      ASSERT_TRUE(test::same_bits(message, compress_ref(reference, options, server, 1, mean, residual_ref)));
      ASSERT_TRUE(test::same_bits(residual, residual_ref));
    }
  });
}

/// The messages of all chunks: any words are codes, and the scales are random values.
template <class Exec>
std::vector<std::uint32_t> random_messages(const Compressor<Exec>& compressor, int seed) {
  std::vector<std::uint32_t> messages(compressor.layout().chunks * compressor.message_words());
  for (std::size_t word = 0; word < messages.size(); ++word)
    messages[word] = philox(stream_key(seed, Stream::noise), word, 0).word[0];
  for (int chunk = 0; chunk < compressor.layout().chunks; ++chunk) {
    const auto scales = test::random_values(compressor.scale_words(), seed + chunk);
    std::memcpy(messages.data() + chunk * compressor.message_words(), scales.data(), scales.size() * sizeof(float));
  }
  return messages;
}

template <class Exec>
struct Collect {
  Vector<Exec, float> values;
  Vector<Exec, int> calls;
  KOKKOS_FUNCTION void operator()(std::size_t begin, std::size_t count, const float* decoded) const {
    for (std::size_t j = 0; j < count; ++j) {
      const std::size_t i = begin + j * WordTable<Exec>::stride;
      values(i) = decoded[j];
      ++calls(i);
    }
  }
};

TYPED_TEST(Codecs, decoder_gives_each_element_once) {
  for_each_case([](const Options& options, const Cut& cut) {
    if (cut.length > 5000) return;
    const TypeParam exec;
    const auto compressor = make_compressor<TypeParam>(cut.layout(), options);
    const auto messages = random_messages(*compressor, 40);
    const Vector<TypeParam, float> values("OneBit::test::values", cut.length);
    const Vector<TypeParam, int> calls("OneBit::test::calls", cut.length);
    std::visit(
        [&](const auto& decoder) {
          for_each_decoded(exec, "OneBit::test::decoded", decoder, Collect<TypeParam>{values, calls});
        },
        compressor->decoder(test::to_device<TypeParam>(messages)));
    fence(exec, "OneBit::test::decoded");
    ASSERT_TRUE(test::same_bits(test::to_host(values), decompress_ref(cut.reference(), options, messages)));
    ASSERT_EQ(test::to_host(calls), std::vector<int>(cut.length, 1));
  });
}

// Every operation rounds: the bits are those of a momentum that optim/adam_update.hpp wrote out, as after a restart.
TYPED_TEST(Codecs, moving_average_equals_reference) {
  std::size_t shown = 0;
  for_each_case([&](const Options& options, const Cut& cut) {
    if (cut.length > 5000) return;
    const LayoutRef reference = cut.reference();
    const auto compressor = make_compressor<TypeParam>(cut.layout(), options);
    const auto old = random_messages(*compressor, 50);
    const std::vector<float> old_values = decompress_ref(reference, options, old);
    const std::vector<float> x = test::random_values(cut.length, 51);
    constexpr float old_share = 0.9f, new_share = 0.1f, factor = 0.7f;
    std::vector<float> averaged(cut.length), residual_ref(cut.length, 0.0f);
    for (std::size_t j = 0; j < cut.length; ++j) {
      const volatile float scaled = factor * x[j];
      averaged[j] = test::rounded_sum_of_products(old_share, old_values[j], new_share, scaled) + 0.0f;  // δ = 0
      shown += test::fusing_shows(old_share, old_values[j], new_share, scaled);
    }
    const Vector<TypeParam, std::uint32_t> messages("OneBit::test::messages", old.size());
    const Feedback<TypeParam> feedback = compressor->no_feedback(0, cut.chunks);
    compressor->compress(TypeParam(), {0,
                                       cut.chunks,
                                       test::to_device<TypeParam>(x),
                                       feedback,
                                       messages,
                                       {old_share, new_share, factor, test::to_device<TypeParam>(old)}});
    ASSERT_TRUE(test::same_bits(test::to_host(feedback.c), averaged));
    ASSERT_TRUE(test::same_bits(test::to_host(messages),
                                compress_ref(reference, options, 0, cut.chunks, averaged, residual_ref)));
  });
  EXPECT_GT(shown, 1000u);  // where a fused product would have other bits
}

TYPED_TEST(Codecs, padding_bits_are_sent_as_zero_and_not_read) {
  for_each_case([](const Options& options, const Cut& cut) {
    if (cut.length > 5000) return;
    const auto compressor = make_compressor<TypeParam>(cut.layout(), options);
    const Layout& layout = compressor->layout();
    std::vector<float> residual(cut.length, 0.0f);
    const auto messages = compress_on(*compressor, 0, cut.chunks, test::random_values(cut.length, 4), residual);
    auto dirty = messages;
    std::size_t padding = 0, dirtied = 0;
    for (int chunk = 0; chunk < cut.chunks; ++chunk) {
      padding += layout.chunk_length() - (layout.chunk_begins[chunk + 1] - layout.chunk_begins[chunk]);
      set_padding_bits(layout, options, chunk, dirty.data() + chunk * compressor->message_words());
    }
    for (std::size_t word = 0; word < messages.size(); ++word)
      for (std::uint32_t bits = messages[word] ^ dirty[word]; bits != 0; bits &= bits - 1) ++dirtied;
    EXPECT_EQ(dirtied, padding * static_cast<std::size_t>(codec_ref(options).planes));
    EXPECT_TRUE(test::same_bits(decompress_on(*compressor, dirty), decompress_on(*compressor, messages)));
  });
}

TYPED_TEST(Codecs, loses_nothing) {
  for_each_case([](const Options& options, const Cut& cut) {
    const auto compressor = make_compressor<TypeParam>(cut.layout(), options);
    const std::vector<float> x = test::random_values(cut.length, 5), old = test::random_values(cut.length, 6);
    std::vector<float> residual = old;
    const auto sent = decompress_on(*compressor, compress_on(*compressor, 0, cut.chunks, x, residual));
    // Two roundings, of c = x + old and of c − C(c), half a unit in the last place each.
    std::size_t wrong = 0;
    for (std::size_t j = 0; j < cut.length; ++j) {
      const double c = static_cast<double>(x[j]) + old[j], kept = static_cast<double>(sent[j]) + residual[j];
      wrong += !(std::fabs(kept - c) <= 0x1p-24 * (std::fabs(c) + std::fabs(residual[j])) * 1.001);
    }
    EXPECT_EQ(wrong, 0u);
  });
}

TYPED_TEST(Codecs, nan_stays_in_its_group) {
  for (const Options& options : test::compressors()) {
    const auto compressor = make_compressor<TypeParam>(Layout(96, 1, Grouping::fixed, 32), options);
    std::vector<float> x(96, 2.0f), residual(96, 0.0f);
    x[40] = not_a_number;
    const auto sent = decompress_on(*compressor, compress_on(*compressor, 0, 1, x, residual));
    for (std::size_t j = 0; j < 96; ++j)
      EXPECT_EQ(std::isnan(sent[j]), j / 32 == 1) << test::name_of(options) << " element " << j;
  }
}

TYPED_TEST(Codecs, infinity_is_seen_in_its_group) {
  for (const Options& options : test::compressors()) {
    const auto compressor = make_compressor<TypeParam>(Layout(96, 1, Grouping::fixed, 32), options);
    std::vector<float> x(96, 2.0f), residual(96, 0.0f);
    x[40] = std::numeric_limits<float>::infinity();
    const auto sent = decompress_on(*compressor, compress_on(*compressor, 0, 1, x, residual));
    for (std::size_t j = 0; j < 96; ++j)
      EXPECT_EQ(std::isfinite(sent[j]), j / 32 != 1) << test::name_of(options) << " element " << j;
  }
}

TYPED_TEST(Codecs, bits_do_not_depend_on_threads) {
  const std::string backend = BackendName<TypeParam>::value;
  for (const Options& options : test::compressors()) {
    int number = 0;
    for (const Cut& cut : large_cuts()) {
      if (options.kind != CompressorKind::sign && number == 2) break;
      const std::string name = test::name_of(options) + "_cut_" + std::to_string(number++) + "_" + backend;
      const auto compressor = make_compressor<TypeParam>(cut.layout(), options);
      std::vector<float> residual = test::random_values(cut.length, 7);
      const auto messages = compress_on(*compressor, 0, cut.chunks, test::random_values(cut.length, 8), residual);
      test::print_bits("messages_" + name, messages);
      test::print_bits("residual_" + name, residual);
      test::print_bits("decompressed_" + name, decompress_on(*compressor, messages));
      const auto block = compressor->message_words();
      test::print_bits("mean_" + name, average_on(*compressor, 1, 1, {messages.begin() + block, messages.end()}));
    }
  }
}

/// The first floats of a message.
std::vector<float> scales_of(const std::vector<std::uint32_t>& message, std::size_t count) {
  std::vector<float> scales(count);
  std::memcpy(scales.data(), message.data(), count * sizeof(float));
  return scales;
}

template <class Exec>
class Sign : public ::testing::Test {};
TYPED_TEST_SUITE(Sign, test::Backends, test::BackendNames);

TYPED_TEST(Sign, message_is_scales_and_then_sign_words) {
  // 70 elements in blocks of 32, one rank: 3 scales and 3 words.
  const auto compressor = make_compressor<TypeParam>(Layout(70, 1, Grouping::fixed, 32), {CompressorKind::sign});
  for (std::size_t positive = 0; positive < 70; ++positive) {
    std::vector<float> x(70), residual(70, 0.0f);
    for (std::size_t j = 0; j < 70; ++j) x[j] = (j == positive ? 1.0f : -1.0f) * static_cast<float>(1 + j / 32);
    const auto message = compress_on(*compressor, 0, 1, x, residual);
    ASSERT_EQ(message.size(), 6u);
    EXPECT_EQ(scales_of(message, 3), (std::vector<float>{1, 2, 3}));
    for (std::size_t word = 0; word < 3; ++word)
      EXPECT_EQ(message[3 + word], positive / 32 == word ? 1u << positive % 32 : 0u) << "positive " << positive;
  }
}

TYPED_TEST(Sign, zeros_of_both_signs_become_positive) {
  const auto compressor = make_compressor<TypeParam>(Layout(64, 1, Grouping::vector), {CompressorKind::sign});
  std::vector<float> x(64, 0.0f), residual(64, 0.0f);
  for (std::size_t j = 0; j < 64; j += 2) x[j] = -0.0f;
  for (std::size_t j = 0; j < 64; j += 3) residual[j] = -0.0f;
  x[63] = -64.0f;
  const auto sent = decompress_on(*compressor, compress_on(*compressor, 0, 1, x, residual));
  for (std::size_t j = 0; j < 63; ++j) EXPECT_EQ(sent[j], 1.0f) << "element " << j;
  EXPECT_EQ(sent[63], -1.0f);

  // A group of zeros has scale +0, and so does one without elements.
  std::vector<float> zeros(64, -0.0f), nothing(64, -0.0f);
  const auto message = compress_on(*compressor, 0, 1, zeros, nothing);
  EXPECT_EQ(message, (std::vector<std::uint32_t>{0u, ~0u, ~0u}));
}

template <class Exec>
class OtherCodecs : public ::testing::Test {};
TYPED_TEST_SUITE(OtherCodecs, test::Backends, test::BackendNames);

TYPED_TEST(OtherCodecs, ternary_by_hand) {
  std::vector<float> x(32, 0.0f), residual(32, 0.0f);
  x[1] = 1;
  x[2] = -2;
  x[3] = -0.0f;
  x[31] = 6;
  for (const Scale scale : {Scale::l1, Scale::l2}) {
    const auto compressor =
        make_compressor<TypeParam>(Layout(32, 1, Grouping::vector), {CompressorKind::sign_ternary, scale});
    // (1 + 2 + 6) / 3, √((1 + 4 + 36) / 3); the non-zero ones; the positive ones.
    const float s = scale == Scale::l1 ? 3.0f : static_cast<float>(std::sqrt(41.0 / 3.0));
    std::vector<float> rest = residual;
    const auto message = compress_on(*compressor, 0, 1, x, rest);
    EXPECT_EQ(message[1], 0x80000006u);
    EXPECT_EQ(message[2], 0x80000002u);
    std::vector<float> expected(32, 0.0f);
    expected[1] = expected[31] = s;
    expected[2] = -s;
    EXPECT_EQ(decompress_on(*compressor, message), expected);
  }
}

TYPED_TEST(OtherCodecs, column_by_hand) {
  // Columns of 4, 3 and 1 elements, of mixed sign, all negative, and zero.
  const Layout layout(8, 1, Grouping::column, 0, {0, 4, 7});
  const std::vector<float> x = {-1, 3, -5, 7, -1, -3, -2, 0};
  std::vector<float> residual(8, 0.0f);
  Options options{CompressorKind::column};
  const auto mean = make_compressor<TypeParam>(layout, options);
  auto message = compress_on(*mean, 0, 1, x, residual);
  EXPECT_EQ(scales_of(message, 6), (std::vector<float>{-3, 5, -2, 0, 0, 0}));
  EXPECT_EQ(message.back(), 0b10001010u);
  EXPECT_EQ(decompress_on(*mean, message), (std::vector<float>{-3, 5, -3, 5, -2, -2, -2, 0}));
  EXPECT_EQ(residual, (std::vector<float>{2, -2, -2, 2, 1, -1, 0, 0}));

  // −5 + 12/4, −5 + 3·12/4; −3 + 2/4, −3 + 3·2/4.
  options.reconstruction = Reconstruction::range;
  const auto range = make_compressor<TypeParam>(layout, options);
  residual.assign(8, 0.0f);
  message = compress_on(*range, 0, 1, x, residual);
  EXPECT_EQ(scales_of(message, 6), (std::vector<float>{-2, 4, -2.5f, -1.5f, 0, 0}));
  EXPECT_EQ(message.back(), 0b10001010u);
  EXPECT_EQ(decompress_on(*range, message), (std::vector<float>{-2, 4, -2, 4, -2.5f, -2.5f, -2.5f, 0}));
}

TYPED_TEST(OtherCodecs, nbit_by_hand) {
  // 3 bits: s = 3, a step is 1 for M = 3; halves go to the even step.
  const std::vector<float> x = {-3, -2, -1, -0.5f, -0.0f, 0, 0.5f, 1.5f, 2.5f, 2.51f, 3};
  const std::vector<float> expected = {-3, -2, -1, 0, 0, 0, 0, 2, 2, 3, 3};
  Options options{CompressorKind::nbit};
  options.bits = 3;
  const auto compressor = make_compressor<TypeParam>(Layout(x.size(), 1, Grouping::vector), options);
  std::vector<float> residual(x.size(), 0.0f);
  const auto message = compress_on(*compressor, 0, 1, x, residual);
  ASSERT_EQ(message.size(), 4u);
  EXPECT_EQ(scales_of(message, 1), std::vector<float>{3});
  for (std::size_t j = 0; j < x.size(); ++j) {
    const std::uint32_t code = (message[1] >> j & 1u) | (message[2] >> j & 1u) << 1 | (message[3] >> j & 1u) << 2;
    EXPECT_EQ(static_cast<float>(code) - 3, expected[j]) << "element " << j;
  }
  EXPECT_EQ(decompress_on(*compressor, message), expected);
}

TYPED_TEST(OtherCodecs, nbit_is_within_half_a_step) {
  for (const int bits : {2, 4, 8, 16}) {
    Options options{CompressorKind::nbit};
    options.bits = bits;
    const std::size_t length = 5000;
    const auto compressor = make_compressor<TypeParam>(Layout(length, 3, Grouping::vector), options);
    const std::vector<float> x = test::random_values(length, 9);
    float greatest = 0;
    for (const float value : x) greatest = std::max(greatest, std::fabs(value));
    std::vector<float> residual(length, 0.0f);
    const auto sent = decompress_on(*compressor, compress_on(*compressor, 0, 3, x, residual));
    // Half a step and the rounding of a value to float.
    const double most = greatest * (0.5 / ((1 << (bits - 1)) - 1) + 0x1p-24) * 1.001;
    for (std::size_t j = 0; j < length; ++j)
      EXPECT_LE(std::fabs(static_cast<double>(sent[j]) - x[j]), most) << bits << " bits, element " << j;
    // The greatest element is on the grid.
    const auto at = std::find_if(x.begin(), x.end(), [&](float value) { return std::fabs(value) == greatest; });
    EXPECT_EQ(sent[at - x.begin()], *at);
  }
}

TYPED_TEST(OtherCodecs, fp8_by_hand) {
  // M = 448, so that a code stands for its number. Neighbours: 0 and 2^-9, 1 and 1.125, 416 and 448.
  const std::vector<float> x = {448,      431,      433,     -1,   1.0625f, 1.1875f, 0x1p-9f,
                                0x3p-10f, 0x1p-10f, 0x1p-6f, 0.0f, -0.0f,   15.6f,   -0x0.ffp-6f};
  const std::vector<float> expected = {448,     416,  448,     -1,   1,    1.25f, 0x1p-9f,
                                       0x1p-8f, 0.0f, 0x1p-6f, 0.0f, 0.0f, 16,    -0x1p-6f};
  const std::vector<std::uint32_t> codes = {0x7e, 0x7d, 0x7e, 0xb8, 0x38, 0x3a, 1, 2, 0, 8, 0, 0, 0x58, 0x88};
  const auto compressor =
      make_compressor<TypeParam>(Layout(x.size(), 1, Grouping::vector), Options{CompressorKind::fp8});
  std::vector<float> residual(x.size(), 0.0f);
  const auto message = compress_on(*compressor, 0, 1, x, residual);
  ASSERT_EQ(message.size(), 9u);
  EXPECT_EQ(scales_of(message, 1), std::vector<float>{448});
  for (std::size_t j = 0; j < x.size(); ++j) {
    std::uint32_t code = 0;
    for (std::size_t plane = 0; plane < 8; ++plane) code |= (message[1 + plane] >> j & 1u) << plane;
    EXPECT_EQ(code, codes[j]) << "element " << j;
  }
  EXPECT_EQ(decompress_on(*compressor, message), expected);
}

TYPED_TEST(OtherCodecs, zeros_stay_zero) {
  for (const Options& options : test::compressors()) {
    if (options.kind == CompressorKind::sign || options.kind == CompressorKind::column) continue;
    SCOPED_TRACE(test::name_of(options));
    for (const Cut& cut : test::cuts(5000, 3)) {
      SCOPED_TRACE(::testing::Message() << cut);
      const auto compressor = make_compressor<TypeParam>(cut.layout(), options);
      std::vector<float> residual(cut.length, 0.0f);
      for (int round = 0; round < 3; ++round) {
        std::vector<float> x = test::random_values(cut.length, round);
        for (std::size_t j = 0; j < cut.length; ++j)
          if (j % 7 == 0 || j / 500 == 3) x[j] = j % 2 == 0 ? 0.0f : -0.0f;
        const auto sent = decompress_on(*compressor, compress_on(*compressor, 0, cut.chunks, x, residual));
        std::size_t wrong = 0;
        for (std::size_t j = 0; j < cut.length; ++j)
          if (j % 7 == 0 || j / 500 == 3) wrong += sent[j] != 0 || residual[j] != 0;
        EXPECT_EQ(wrong, 0u);
      }
    }
  }
}

}  // namespace
}  // namespace onebit::compress
