/// \file data_sampler.cpp
/// Sampler: samples do not depend on who draws them, masks have the paper's rates, windows stay in their part.

#include "data/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "data_fixture.hpp"

namespace onebit::data {
namespace {

class DataSampler : public DataTest {
protected:
  /// A corpus of bytes: `train` and then `validation`.
  Corpus corpus(const std::string& train, const std::string& validation) const {
    const double size = static_cast<double>(train.size() + validation.size());
    return Corpus({{write("text", train + validation)},
                   TokenizerKind::bytes,
                   true,
                   0,
                   "",
                   static_cast<double>(validation.size()) / size});
  }
};

bool operator==(const Batch& a, const Batch& b) {
  return a.input == b.input && a.predicted == b.predicted && a.target == b.target;
}

/// Batches one after the other, as ranks hold them, as one batch.
Batch joined(const std::vector<Batch>& parts) {
  Batch whole;
  for (const Batch& part : parts) {
    for (const int row : part.predicted) whole.predicted.push_back(static_cast<int>(whole.input.size()) + row);
    whole.input.insert(whole.input.end(), part.input.begin(), part.input.end());
    whole.target.insert(whole.target.end(), part.target.begin(), part.target.end());
  }
  return whole;
}

/// The input with the targets put back: what the text says there.
std::vector<int> original(const Batch& batch) {
  std::vector<int> tokens = batch.input;
  for (std::size_t p = 0; p < batch.predicted.size(); ++p) {
    tokens[static_cast<std::size_t>(batch.predicted[p])] = batch.target[p];
  }
  return tokens;
}

TEST_F(DataSampler, samples_do_not_depend_on_how_they_are_divided) {
  const Corpus text = corpus(generated_text(200), generated_text(50, 2));
  for (const Objective objective : {Objective::masked, Objective::causal}) {
    const Sampler sampler(text, objective, 48, 7), other_rank(text, objective, 48, 7);
    for (const std::uint64_t step : {0, 1, 1000000007}) {
      Batch whole;
      sampler.draw(step, 0, 12, whole);
      for (const int share : {1, 3, 4, 6}) {
        std::vector<Batch> parts(static_cast<std::size_t>(12 / share));
        for (std::size_t rank = 0; rank < parts.size(); ++rank) {
          other_rank.draw(step, rank * static_cast<std::size_t>(share), share, parts[rank]);
        }
        EXPECT_TRUE(joined(parts) == whole) << share;
      }
    }
    Batch whole, head, tail;
    sampler.draw_validation(0, 12, whole);
    other_rank.draw_validation(0, 5, head);
    other_rank.draw_validation(5, 7, tail);
    EXPECT_TRUE(joined({head, tail}) == whole);
  }
}

TEST_F(DataSampler, step_sample_and_seed_each_change_the_sample) {
  const Corpus text = corpus(generated_text(2000), "");
  const Sampler sampler(text, Objective::masked, 64, 1), other_seed(text, Objective::masked, 64, 2);
  Batch batch;
  std::set<std::vector<int>> seen;
  for (const std::uint64_t step : {0, 1, 2}) {
    for (const std::uint64_t sample : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32}) {
      sampler.draw(step, sample, 1, batch);
      seen.insert(batch.input);
      other_seed.draw(step, sample, 1, batch);
      seen.insert(batch.input);
    }
  }
  EXPECT_EQ(seen.size(), 18u);
}

TEST_F(DataSampler, a_batch_may_be_used_again_for_another_count) {
  const Corpus text = corpus(generated_text(100), "");
  const Sampler sampler(text, Objective::masked, 32, 1);
  Batch fresh, used;
  sampler.draw(1, 0, 9, used);
  sampler.draw(0, 0, 4, used);
  sampler.draw(0, 0, 4, fresh);
  EXPECT_TRUE(fresh == used);
}

TEST_F(DataSampler, causal_targets_are_the_next_tokens) {
  std::string counting;
  for (int i = 0; i < 256; ++i) counting += static_cast<char>(i);
  const Corpus text = corpus(counting, "");
  const Sampler sampler(text, Objective::causal, 20, 3);
  Batch batch;
  sampler.draw(5, 0, 16, batch);
  ASSERT_EQ(batch.input.size(), 320u);
  ASSERT_EQ(batch.target.size(), 320u);
  for (std::size_t row = 0; row < 320; ++row) {
    EXPECT_EQ(batch.predicted[row], static_cast<int>(row));
    EXPECT_EQ(batch.target[row], batch.input[row] + 1);
    if (row % 20 > 0) {
      EXPECT_EQ(batch.input[row], batch.input[row - 1] + 1);
    }
  }
}

TEST_F(DataSampler, masks_a_fixed_number_of_distinct_rows_of_each_sequence) {
  const Corpus text = corpus(generated_text(100), "");
  for (const int sequence : {1, 2, 3, 4, 10, 64, 128, 333}) {
    const int masked = std::max(1, static_cast<int>(std::lround(0.15 * sequence)));
    EXPECT_EQ(predictions(Objective::masked, 1, sequence), masked);
    EXPECT_EQ(predictions(Objective::masked, 6, sequence), 6 * masked);
    EXPECT_EQ(predictions(Objective::causal, 6, sequence), 6 * sequence);
    const Sampler sampler(text, Objective::masked, sequence, 5);
    Batch batch;
    sampler.draw(2, 0, 6, batch);
    ASSERT_EQ(batch.input.size(), static_cast<std::size_t>(6 * sequence));
    ASSERT_EQ(batch.predicted.size(), static_cast<std::size_t>(6 * masked));
    ASSERT_EQ(batch.target.size(), batch.predicted.size());
    for (std::size_t p = 0; p < batch.predicted.size(); ++p) {
      if (p > 0) {
        EXPECT_LT(batch.predicted[p - 1], batch.predicted[p]);
      }
      EXPECT_EQ(batch.predicted[p] / sequence, static_cast<int>(p) / masked);
    }
  }
}

TEST_F(DataSampler, only_predicted_rows_differ_from_the_text) {
  const std::string train = generated_text(100);
  const Corpus text = corpus(train, "");
  const Sampler sampler(text, Objective::masked, 40, 5);
  Batch batch;
  sampler.draw(0, 0, 50, batch);
  const std::string windows = text.decode(original(batch));
  for (std::size_t sample = 0; sample < 50; ++sample) {
    EXPECT_NE(train.find(windows.substr(sample * 40, 40)), std::string::npos);
  }
}

/// Each bound is six standard deviations of its binomial: a correct sampler fails once in 10^8 choices of the seed.
void expect_rate(double hits, double trials, double rate) {
  EXPECT_NEAR(hits / trials, rate, 6 * std::sqrt(rate * (1 - rate) / trials));
}

TEST_F(DataSampler, masked_rows_are_15_percent_divided_into_80_to_10_to_10) {
  // One letter, so that a random token is told from a kept one, but for 1 in 256.
  const Corpus text = corpus(std::string(1000, 'a'), "");
  constexpr int sequence = 100, count = 100;
  const Sampler sampler(text, Objective::masked, sequence, 11);
  double rows = 0, masked = 0, kept = 0, replaced = 0;
  std::vector<double> at(sequence), random(256);
  Batch batch;
  for (std::uint64_t step = 0; step < 200; ++step) {
    sampler.draw(step, 0, count, batch);
    rows += static_cast<double>(batch.input.size());
    for (const int row : batch.predicted) {
      const int token = batch.input[static_cast<std::size_t>(row)];
      ++at[static_cast<std::size_t>(row % sequence)];
      if (token == text.mask_token()) {
        ++masked;
      } else if (token == 'a') {
        ++kept;
      } else {
        ++replaced;
        ++random[static_cast<std::size_t>(token)];
      }
    }
  }
  const double predicted = masked + kept + replaced;
  EXPECT_EQ(predicted / rows, 0.15);
  expect_rate(masked, predicted, 0.8);
  expect_rate(replaced, predicted, 0.1 * 255 / 256);
  expect_rate(kept, predicted, 0.1 + 0.1 / 256);
  for (const double hits : at) expect_rate(hits, predicted, 1.0 / sequence);
  for (int token = 0; token < 256; ++token) {
    if (token != 'a') expect_rate(random[static_cast<std::size_t>(token)], replaced, 1.0 / 255);
  }
}

TEST_F(DataSampler, random_tokens_pass_over_a_mask_inside_the_vocabulary) {
  // SentencePiece's [MASK] is token 0: every other token, the last included, must come.
  const Corpus text({{write("text", generated_text(600))}, TokenizerKind::sentencepiece, true, 300, path("cache"), 0});
  ASSERT_EQ(text.mask_token(), 0);
  const std::set<int> ordinary(text.train().begin(), text.train().end());
  ASSERT_EQ(ordinary.count(0), 0u);
  const Sampler sampler(text, Objective::masked, 100, 1);
  std::set<int> seen;
  Batch batch;
  for (std::uint64_t step = 0; step < 40; ++step) {
    sampler.draw(step, 0, 100, batch);
    for (const int row : batch.predicted) seen.insert(batch.input[static_cast<std::size_t>(row)]);
    for (const int target : batch.target) ASSERT_NE(target, 0);
  }
  EXPECT_EQ(seen.size(), 300u);
  EXPECT_EQ(*seen.rbegin(), 299);
}

TEST_F(DataSampler, windows_are_uniform_and_reach_both_ends) {
  std::string counting;
  for (int i = 0; i < 40; ++i) counting += static_cast<char>(i);
  const Corpus text = corpus(counting, "");
  for (const Objective objective : {Objective::masked, Objective::causal}) {
    const Sampler sampler(text, objective, 9, 1);
    const std::size_t begins = objective == Objective::masked ? 32 : 31;
    std::vector<double> hits(begins);
    Batch batch;
    sampler.draw(0, 0, 20000, batch);
    const std::vector<int> tokens = objective == Objective::masked ? original(batch) : batch.input;
    for (std::size_t sample = 0; sample < 20000; ++sample) {
      const auto begin = static_cast<std::size_t>(tokens[sample * 9]);
      ASSERT_LT(begin, begins);
      ++hits[begin];
    }
    for (const double count : hits) expect_rate(count, 20000, 1.0 / static_cast<double>(begins));
  }
}

TEST_F(DataSampler, training_and_validation_never_overlap) {
  // A window over the border would show both letters.
  const Corpus text = corpus(std::string(300, 'T'), std::string(60, 'v'));
  for (const Objective objective : {Objective::masked, Objective::causal}) {
    const Sampler sampler(text, objective, 50, 1);
    Batch batch;
    sampler.draw(0, 0, 3000, batch);
    EXPECT_EQ(std::count(batch.target.begin(), batch.target.end(), 'T'), static_cast<int>(batch.target.size()));
    for (const int token : original(batch)) ASSERT_EQ(token, 'T');
    sampler.draw_validation(0, 3000, batch);
    EXPECT_EQ(std::count(batch.target.begin(), batch.target.end(), 'v'), static_cast<int>(batch.target.size()));
    for (const int token : original(batch)) ASSERT_EQ(token, 'v');
  }
}

TEST_F(DataSampler, validation_windows_spread_evenly_for_any_number_of_them) {
  constexpr std::size_t length = 60000, sequence = 8;
  std::string noise;  // eight bytes tell their place
  for (std::size_t i = 0; i < length; ++i) noise += static_cast<char>(philox(1, i, 0).word[0] & 0xFF);
  const Corpus text = corpus("some text to train on", noise);
  const Sampler sampler(text, Objective::causal, sequence, 1);
  for (const std::size_t count : {2, 7, 64, 1000}) {
    Batch batch;
    sampler.draw_validation(0, static_cast<int>(count), batch);
    const std::string windows = text.decode(batch.input);
    std::vector<double> begins;
    for (std::size_t sample = 0; sample < count; ++sample) {
      begins.push_back(static_cast<double>(noise.find(windows.substr(sample * sequence, sequence))));
    }
    std::sort(begins.begin(), begins.end());
    EXPECT_LT(begins.back(), static_cast<double>(length - sequence));
    // Neighbouring multiples of the golden ratio φ modulo 1 are, times n, between 1 / φ^2 and φ^2 apart.
    const double mean = static_cast<double>(length) / static_cast<double>(count);
    for (std::size_t i = 1; i < count; ++i) {
      EXPECT_GT(begins[i] - begins[i - 1], 0.38 * mean - 1) << count;
      EXPECT_LT(begins[i] - begins[i - 1], 2.62 * mean + 1) << count;
    }
  }
}

TEST_F(DataSampler, refuses_what_is_too_short) {
  const std::string file = path("text");
  const Corpus text = corpus("0123456789", "");
  EXPECT_NO_THROW(Sampler(text, Objective::masked, 10, 1));
  EXPECT_NO_THROW(Sampler(text, Objective::causal, 9, 1));
  expect_input_error([&] { Sampler(text, Objective::masked, 11, 1); }, file, {"training part has 10", "needs 11"});
  expect_input_error([&] { Sampler(text, Objective::causal, 10, 1); }, file, {"training part has 10", "needs 11"});
  expect_input_error([&] { Sampler(text, Objective::masked, 0, 1); }, "sequence", {"at least 1"});
  Batch batch;
  const Sampler sampler(text, Objective::masked, 10, 1);
  expect_input_error([&] { sampler.draw_validation(0, 1, batch); }, file, {"validation part has 0"});
  const Corpus divided = corpus("0123456789", "abc");
  expect_input_error([&] { Sampler(divided, Objective::masked, 4, 1); }, file, {"validation part has 3"});
}

TEST_F(DataSampler, refuses_batches_beyond_the_row_indices) {
  const int most = std::numeric_limits<int>::max();
  EXPECT_EQ(predictions(Objective::causal, most, 1), most);
  expect_input_error([&] { predictions(Objective::causal, 1 << 16, 1 << 15); }, "batch", {"2^31"});
  const Corpus text = corpus(generated_text(100), "");
  Batch batch;
  const Sampler sampler(text, Objective::masked, 512, 1);
  expect_input_error([&] { sampler.draw(0, 0, 1 << 22, batch); }, "batch", {"2^31"});
}

}  // namespace
}  // namespace onebit::data
