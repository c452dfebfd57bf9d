/// \file data_labelled.cpp
/// Labelled texts: what samples hold, which are drawn, and every way in which a file can be unusable.

#include "data/labelled.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "data_fixture.hpp"

namespace onebit::data {
namespace {

class DataLabelled : public DataTest {
protected:
  LabelledSamples samples(const std::string& training, const std::string& validation, Summary summary = Summary::first,
                          int sequence = 6, int second_text = 0) const {
    return {write("train.tsv", training), write("validation.tsv", validation), *m_bytes,
            SampleForm{summary, sequence, second_text}, 1};
  }
  /// Expects that the training file is refused.
  void refused(const std::string& training, const std::string& line, const std::vector<std::string>& parts,
               int second_text = 0) const {
    expect_input_error([&] { samples(training, "a\tx\n", Summary::first, 6, second_text); }, path("train.tsv") + line,
                       parts);
  }

  std::unique_ptr<Tokenizer> m_bytes = make_byte_tokenizer();
};

TEST_F(DataLabelled, samples_begin_with_a_mark_or_are_read_at_their_last_token) {
  const std::string training = "b\txyz\na\tlonger text\n";
  const std::string validation = "a\tq\nb\tu\tv\n";  // a second tab is text
  const int mask = m_bytes->mask_token();
  const LabelledSamples first = samples(training, validation), last = samples(training, validation, Summary::last);
  EXPECT_EQ(first.classes(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(first.training_size(), 2u);
  EXPECT_EQ(first.validation_size(), 2u);

  std::set<std::vector<int>> seen;
  for (std::uint64_t step = 1; step <= 20; ++step) {
    Batch with_mark, without;
    first.draw(step, 0, 1, with_mark);
    last.draw(step, 0, 1, without);
    seen.insert(with_mark.input);
    EXPECT_EQ(with_mark.target, without.target);
    EXPECT_EQ(with_mark.predicted, std::vector<int>{0});
    if (with_mark.target[0] == 1) {
      EXPECT_EQ(with_mark.input, (std::vector<int>{mask, 'x', 'y', 'z', 'x', 'y'}));
      EXPECT_EQ(without.input, (std::vector<int>{'x', 'y', 'z', 'x', 'y', 'z'}));
      EXPECT_EQ(without.predicted, std::vector<int>{2});
    } else {
      EXPECT_EQ(with_mark.input, (std::vector<int>{mask, 'l', 'o', 'n', 'g', 'e'}));
      EXPECT_EQ(without.input, (std::vector<int>{'l', 'o', 'n', 'g', 'e', 'r'}));
      EXPECT_EQ(without.predicted, std::vector<int>{5});
    }
  }
  EXPECT_EQ(seen.size(), 2u);

  Batch both;
  first.draw_validation(0, 2, both);
  EXPECT_EQ(both.predicted, (std::vector<int>{0, 6}));
  EXPECT_EQ(both.target, (std::vector<int>{0, 1}));
  EXPECT_EQ(both.input, (std::vector<int>{mask, 'q', 'q', 'q', 'q', 'q', mask, 'u', '\t', 'v', 'u', '\t'}));
}

TEST_F(DataLabelled, second_text_has_its_own_place) {
  const std::string pairs = "a\tpq\tlonger\nb\tfirst\tu\tv\n";  // a third tab is text
  const int mask = m_bytes->mask_token();
  Batch batch;
  samples(pairs, pairs, Summary::first, 8, 4).draw_validation(0, 2, batch);
  EXPECT_EQ(batch.input, (std::vector<int>{mask, 'p', 'q', 'p', 'l', 'o', 'n', 'g',  //
                                           mask, 'f', 'i', 'r', 'u', '\t', 'v', 'u'}));
  EXPECT_EQ(batch.predicted, (std::vector<int>{0, 8}));
  EXPECT_EQ(batch.target, (std::vector<int>{0, 1}));
  samples(pairs, pairs, Summary::last, 8, 4).draw_validation(0, 2, batch);
  EXPECT_EQ(batch.input, (std::vector<int>{'p', 'q', 'p', 'q', 'l', 'o', 'n', 'g',  //
                                           'f', 'i', 'r', 's', 'u', '\t', 'v', 'u'}));
  EXPECT_EQ(batch.predicted, (std::vector<int>{7, 8 + 6}));

  refused("a\tx\ty\nb\tx\n", ":2", {"no second text", "b?x", "a second text on each line"}, 3);
  refused("a\tx\ty\nb x\n", ":2", {"no tab", "a second text on each line"}, 3);
  refused("a\tx\ty\nb\t\ty\n", ":2", {"the text is empty"}, 3);
  refused("a\tx\ty\nb\tx\t \n", ":2", {"the second text is empty"}, 3);
  refused("a\tx\ty\n\tx\ty\n", ":2", {"label is empty"}, 3);
  for (const int second_text : {1, 6})
    expect_input_error([&] { samples(pairs, pairs, Summary::first, 6, second_text); }, "sequence",
                       {"6 tokens hold no text", "position " + std::to_string(second_text)});
}

TEST_F(DataLabelled, answers_are_spans_of_the_second_text) {
  const auto answers = [&](const std::string& training, const std::string& validation, const Tokenizer& tokenizer,
                           int sequence = 12) {
    return LabelledSamples(write("train.tsv", training), write("validation.tsv", validation), tokenizer,
                           SampleForm{Summary::first, sequence, 4, Label::answer}, 1);
  };
  // Whole words: the first "a" is a part of "an", and the second one of "ba". Of two answers the first one is meant.
  const std::string lines = " b \tq\ta b c\na\tq\tan ba a a\nb c\tquestion\ta b c\n";
  Batch batch;
  const LabelledSamples all = answers("x\tq\tx\n", lines, *m_bytes);
  all.draw_validation(0, 3, batch);
  EXPECT_TRUE(all.classes().empty());
  EXPECT_EQ(all.summary(), "1 texts to train on, 3 to validate with; left out because their answer is cut: 0 and 0");
  const int mask = m_bytes->mask_token();
  EXPECT_EQ(std::vector<int>(batch.input.begin(), batch.input.begin() + 12),
            (std::vector<int>{mask, 'q', 'q', 'q', 'a', ' ', 'b', ' ', 'c', 'a', ' ', 'b'}));
  EXPECT_EQ(batch.predicted, (std::vector<int>{4, 8, 12 + 4, 12 + 11, 24 + 4, 24 + 8}));
  EXPECT_EQ(batch.target, (std::vector<int>{6, 6, 10, 10, 6, 8}));

  // Cut answers are left out; where none is left, the file is refused.
  const LabelledSamples cut = answers("b\tq\ta b c\nb\tq\t0123456 b\n", "a\tq\ta\n", *m_bytes);
  EXPECT_EQ(cut.training_size(), 1u);
  EXPECT_NE(cut.summary().find("cut: 1 and 0"), std::string::npos);
  expect_input_error([&] { answers("b\tq\t0123456 b\n", "a\tq\ta\n", *m_bytes); }, path("train.tsv"),
                     {"no answer is among the tokens", "model.sequence"});
  for (const char* bad : {"b\tq\tabc\n", "a b\tq\tba ba\n"})
    expect_input_error([&] { answers(bad, "a\tq\ta\n", *m_bytes); }, path("train.tsv") + ":1",
                       {"lacks the answer", "as its words stand there"});
}

TEST_F(DataLabelled, samples_are_the_same_whoever_draws_them) {
  std::string training, validation;
  for (int i = 0; i < 50; ++i) training += std::to_string(i % 7) + "\ttext " + std::to_string(i) + "\n";
  for (int i = 0; i < 35; ++i) validation += std::to_string(i % 7) + "\tother " + std::to_string(100 + i) + "\n";
  const LabelledSamples drawn = samples(training, validation, Summary::last, 9);
  Batch all, part, again;
  drawn.draw(3, 0, 8, all);
  drawn.draw(3, 5, 2, part);
  EXPECT_TRUE(std::equal(part.input.begin(), part.input.end(), all.input.begin() + 5 * 9));
  EXPECT_TRUE(std::equal(part.target.begin(), part.target.end(), all.target.begin() + 5));
  drawn.draw(4, 0, 8, again);
  EXPECT_NE(again.input, all.input);

  // Every training sample is drawn at some time; a validation draws each of its samples once, and few of them spread.
  std::set<std::vector<int>> trained, validated;
  for (std::uint64_t step = 1; step <= 100; ++step)
    for (int sample = 0; sample < 8; ++sample) {
      drawn.draw(step, sample, 1, part);
      trained.insert(part.input);
    }
  EXPECT_EQ(trained.size(), 50u);
  std::set<int> classes;
  for (int sample = 0; sample < 35; ++sample) {
    drawn.draw_validation(sample, 1, part);
    validated.insert(part.input);
    if (sample < 12) classes.insert(part.target[0]);
  }
  EXPECT_EQ(validated.size(), 35u);
  EXPECT_GE(classes.size(), 5u);
  expect_input_error([&] { drawn.draw_validation(30, 6, part); }, path("validation.tsv"),
                     {"35 samples", "36", "train.validation_batch"});
}

TEST_F(DataLabelled, lines_that_are_no_samples_are_refused_with_their_place) {
  refused("a\tx\nb no tab\n", ":2", {"no tab", "b no tab"});
  refused("a\tx\n\nb\ty\n", ":2", {"no tab"});
  refused("a\tx\n\ty\n", ":2", {"label is empty"});
  refused("a\tx\nb\t\n", ":2", {"text is empty"});
  refused("a\tx\nb\t", ":2", {"text is empty"});
  refused("a\tx\na\ty\n", "", {"all its lines have the label 'a'"});
  refused("", "", {"is empty"});
  refused(std::string("a\tx\n") + std::string(1, '\0') + "\x01\n", ":2",
          {"no tab",
           "'?"
           "?'"});
}

/// The same samples, as editors, spreadsheets and other systems write them.
TEST_F(DataLabelled, files_as_people_have_them_are_the_same_samples) {
  const auto drawn = [&](const std::string& training) {
    const LabelledSamples all = samples(training, "b\tz\n");
    Batch batch;
    all.draw(1, 0, 16, batch);
    return std::make_pair(all.summary(), std::make_pair(batch.input, batch.target));
  };
  const auto plain = drawn("a\tx y\nb\tz\n");
  EXPECT_EQ(plain.first, "2 classes (a, b); 2 texts to train on, 1 to validate with");
  for (const char* same : {"\xEF\xBB\xBF"
                           "a\tx y\nb\tz\n",
                           "a\tx y\r\nb\tz\r\n", "a\tx y\rb\tz\r", "a\tx y\nb\tz", "a\tx y\nb\tz\n\n\n",
                           "a\tx y\r\nb\tz\r\n\r\n", "a \tx y\n b\tz\n"})
    EXPECT_EQ(drawn(same), plain) << same;
  refused("a\tx\r\n\r\nb\ty\r\n", ":2", {"no tab"});
  refused("a\tx\rb y\r", ":2", {"no tab", "b y"});
  refused("a\tx\nb\t \n", ":2", {"text is empty"});
  refused("a\tx\n \ty\n", ":2", {"label is empty"});
  refused(std::string("a\tx\nb\ty\0\n", 9), ":2", {"NUL"});
  refused("\n\r\n", "", {"all its lines are empty"});
  refused("\xEF\xBB\xBF", "", {"byte order mark"});
  refused("\x1F\x8B\x08", "", {"gzip"});
}

TEST_F(DataLabelled, too_many_classes_are_refused) {
  std::string training;
  for (int i = 0; i < most_classes; ++i) training += "class" + std::to_string(i) + "\tx\n";
  EXPECT_EQ(samples(training, "class5\tx\n").classes().size(), static_cast<std::size_t>(most_classes));
  refused(training + "class5\ty\nand one more\tx\n", ":" + std::to_string(most_classes + 2),
          {"'and one more'", std::to_string(most_classes)});
}

TEST_F(DataLabelled, label_of_the_validation_file_that_training_does_not_have_is_refused) {
  const std::string training = "a\tx\nc\ty\n", place = path("validation.tsv");
  expect_input_error([&] { samples(training, "a\tz\nb\tz\n"); }, place + ":2", {"the label 'b'"});
  expect_input_error([&] { samples(training, "d\tz\n"); }, place + ":1", {"the label 'd'"});
  expect_input_error([&] { samples(training, ""); }, place, {"is empty"});
  expect_input_error([&] { samples(training, "A\tz\n"); }, place + ":1", {"the label 'A'"});
}

TEST_F(DataLabelled, text_that_the_tokeniser_cannot_write_is_refused) {
  const std::string file = write("labelled.tsv", "a\tabba\nb\tabx\n"), other = write("other.tsv", "a\tba\n");
  const auto characters = make_character_tokenizer("abc", true);
  expect_input_error(
      [&] {
        LabelledSamples(file, other, *characters, {Summary::first, 4}, 1);
      },
      file + ":2", {"cannot write this text: 'abx'", "bytes"});
  const auto subwords = make_sentencepiece_tokenizer(generated_text(300), 400, path("cache"), "generated");
  const std::string broken = write("broken.tsv", "a\tgood\nb\tbad \xff\n");
  expect_input_error(
      [&] {
        LabelledSamples(broken, other, *subwords, {Summary::first, 4}, 1);
      },
      broken + ":2", {"cannot write this text"});
  expect_input_error([&] { samples("a\tx\nb\ty\n", "a\tx\n", Summary::first, 1); }, "sequence", {"1 tokens"});
}

}  // namespace
}  // namespace onebit::data
