/// \file data_corpus.cpp
/// Corpus: reading and dividing the text, and every way in which files can be unusable.

#include "data/corpus.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "data_fixture.hpp"

namespace onebit::data {
namespace {

class DataCorpus : public DataTest {
protected:
  static Corpus bytes(const std::vector<std::string>& files, double validation_fraction = 0) {
    return Corpus({files, TokenizerKind::bytes, true, 0, "", validation_fraction});
  }
  Corpus sentencepiece(const std::vector<std::string>& files, double validation_fraction = 0,
                       int vocabulary = 400) const {
    return Corpus({files, TokenizerKind::sentencepiece, true, vocabulary, path("cache"), validation_fraction});
  }
};

TEST_F(DataCorpus, bytes_round_trip_over_all_byte_values) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const Corpus corpus = bytes({write("all", all)});
  EXPECT_EQ(corpus.vocabulary(), 257);
  EXPECT_EQ(corpus.mask_token(), 256);
  ASSERT_EQ(corpus.train().size(), 256u);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(corpus.train()[static_cast<std::size_t>(byte)], byte);
  EXPECT_EQ(corpus.decode(corpus.train()), all);
  EXPECT_EQ(corpus.decode({'a', 256, 'b'}), "a[MASK]b");
}

TEST_F(DataCorpus, files_of_several_blocks_are_read_whole) {
  constexpr std::size_t block = std::size_t{1} << 20;
  for (const std::size_t size : {block - 1, block, 2 * block, 2 * block + 3}) {
    std::string text(size, '\0');
    for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 + i / 1000);
    EXPECT_TRUE(read_text_files({write("1", "abc"), write("2", text), write("3", "d")}, false) == "abc" + text + "d")
        << size;
  }
}

TEST_F(DataCorpus, characters_have_a_token_for_each_byte_that_occurs_and_no_other) {
  const std::string file =
      write("text", std::string("b\xff") + "a b\xff" + "c");  // 'c' only in the part that validates
  for (const bool has_mask : {false, true}) {
    const Corpus corpus({{file}, TokenizerKind::characters, has_mask, 0, "", 0.1});
    EXPECT_EQ(corpus.vocabulary(), 5 + has_mask);
    EXPECT_EQ(corpus.mask_token(), 5);
    EXPECT_EQ(corpus.train(), (std::vector<int>{2, 4, 1, 0, 2, 4}));
    EXPECT_EQ(corpus.validation(), std::vector<int>{3});
    EXPECT_EQ(corpus.decode(corpus.train()), std::string("b\xff") + "a b\xff");
    if (has_mask) {
      EXPECT_EQ(corpus.decode({1, 5, 2}), "a[MASK]b");
    }
  }
}

TEST_F(DataCorpus, files_follow_each_other_and_the_end_validates) {
  const std::vector<std::string> files = {write("1", "abcdef"), write("2", "gh"), write("3", "ij")};
  const Corpus corpus = bytes(files, 0.3);
  EXPECT_EQ(corpus.decode(corpus.train()), "abcdefg");
  EXPECT_EQ(corpus.decode(corpus.validation()), "hij");
  EXPECT_EQ(corpus.name(), files[0] + " and 2 more files");
}

TEST_F(DataCorpus, any_positive_fraction_validates_and_none_does_not) {
  const std::string file = write("text", "0123456789");
  EXPECT_EQ(bytes({file}, 1e-9).validation().size(), 1u);
  EXPECT_TRUE(bytes({file}, 0).validation().empty());
}

TEST_F(DataCorpus, sentencepiece_round_trips_and_divides_between_characters) {
  const std::string text = generated_text(600);
  const std::string file = write("text", text);
  for (const double fraction : {0.1, 0.1001, 0.1002, 0.1003, 0.1004}) {
    const Corpus corpus = sentencepiece({file}, fraction);
    const std::string train = corpus.decode(corpus.train()), validation = corpus.decode(corpus.validation());
    EXPECT_EQ(train + validation, text);
    EXPECT_NEAR(static_cast<double>(validation.size()), fraction * static_cast<double>(text.size()), 4);
    EXPECT_EQ(utf8_prefix(train), train.size());
  }
}

TEST_F(DataCorpus, validation_text_never_trains_the_tokenizer) {
  const std::string train = generated_text(600, 1);
  // As many bytes again: the same training part, another validation part.
  const Corpus a = sentencepiece({write("a", train + std::string(train.size(), 'x'))}, 0.5);
  const Corpus b = sentencepiece({write("b", train + std::string(train.size(), 'y'))}, 0.5);
  EXPECT_EQ(a.train(), b.train());
  const std::filesystem::directory_iterator cache(path("cache"));
  int models = 0;
  for (const auto& entry : cache) models += entry.path().extension() == ".model";
  EXPECT_EQ(models, 1);
}

TEST_F(DataCorpus, refuses_files_that_are_no_text) {
  expect_input_error([&] { bytes({}); }, "corpus", {"no files"});
  expect_input_error([&] { bytes({path("none")}); }, path("none"), {"No such file"});
  expect_input_error([&] { bytes({path("")}); }, path(""), {"is a directory"});
  expect_input_error([&] { bytes({write("empty", "")}); }, path("empty"), {"is empty"});
  expect_input_error([&] { bytes({"/dev/zero"}); }, "/dev/zero", {"not a regular file"});
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  expect_input_error([&] { bytes({path("pipe")}); }, path("pipe"), {"not a regular file"});
  // One bad file among good ones is the one that is named.
  const std::string good = write("good", "text");
  expect_input_error([&] { bytes({good, path("none"), good}); }, path("none"), {"No such file"});
  expect_input_error([&] { bytes({good + "/below"}); }, good + "/below", {"Not a directory"});
}

/// Editors and spreadsheets put a mark in front of UTF-8, which is no character of the text.
TEST_F(DataCorpus, byte_order_marks_are_no_text) {
  const std::string mark = "\xEF\xBB\xBF", text = generated_text(20);
  EXPECT_EQ(read_text_files({write("a", mark + text), write("b", mark + "more"), write("c", "end" + mark)}, true),
            text + "more" + "end" + mark);
  EXPECT_EQ(bytes({write("d", mark + text)}).train(), bytes({write("e", text)}).train());
  expect_input_error([&] { bytes({write("f", mark)}); }, path("f"), {"byte order mark"});
}

TEST_F(DataCorpus, refuses_formats_that_are_not_plain_text) {
  using namespace std::string_literals;
  const std::pair<std::string, const char*> formats[] = {{"\xFF\xFEh\0i\0"s, "UTF-16"},
                                                         {"\xFE\xFF\0h\0i"s, "UTF-16"},
                                                         {"\xFF\xFE\0\0h\0\0\0"s, "UTF-32"},
                                                         {"\0\0\xFE\xFF\0\0\0h"s, "UTF-32"},
                                                         {"\x1F\x8B\x08 x"s, "gzip"},
                                                         {"\x89HDF\r\n\x1A\n x"s, "HDF5"},
                                                         {"w\0i\0t\0h\0o\0u\0t\0 \0i\0t\0"s, "UTF-16"},
                                                         {"PK\x03\x04 x"s, "ZIP"},
                                                         {"BZh9 x"s, "bzip2"},
                                                         {"\x28\xB5\x2F\xFD x"s, "Zstandard"}};
  for (const auto& [content, name] : formats) {
    const std::string file = write("other", content);
    expect_input_error([&] { bytes({file}); }, file, {"not plain text", name});
    expect_input_error([&] { sentencepiece({file}); }, file, {"not plain text", name});
  }
}

TEST_F(DataCorpus, refuses_an_unreadable_file) {
  const std::string file = write("secret", "text");
  ASSERT_EQ(::chmod(file.c_str(), 0), 0);
  const Unprivileged scope;
  expect_input_error([&] { bytes({file}); }, file, {"Permission denied"});
}

TEST_F(DataCorpus, refuses_text_beyond_the_memory_before_it_allocates) {
  const std::string file = write("sparse", "text");
  if (::truncate(file.c_str(), off_t{15} << 40) != 0) GTEST_SKIP() << "no sparse file of 15 TiB here";
  expect_input_error([&] { bytes({file}); }, file, {"memory"});
}

TEST_F(DataCorpus, refuses_impossible_fractions) {
  const std::string file = write("text", "0123456789");
  for (const double fraction : {-0.1, 1.0, 2.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_input_error([&] { bytes({file}, fraction); }, file, {"validation fraction"});
  }
  expect_input_error([&] { bytes({file}, 0.99); }, file, {"too few"});
}

TEST_F(DataCorpus, names_the_byte_that_is_not_utf_8) {
  const std::string good = write("good", generated_text(100));
  const std::vector<std::pair<std::string, std::size_t>> cases = {
      {"abc\xFF", 3},           // no such byte
      {"caf\xE9 au lait", 3},   // Latin-1
      {"\xC3\xA9\xA9", 2},      // stray continuation
      {"\xC0\xAF", 0},          // overlong '/'
      {"a\xE0\x80\xAF", 1},     // overlong
      {"\xED\xA0\x80", 0},      // surrogate
      {"\xF4\x90\x80\x80", 0},  // beyond U+10FFFF
      {"ab\xE2\x82", 2},        // cut off at the end of the file
  };
  for (const auto& [text, offset] : cases) {
    const std::string bad = write("bad", text);
    expect_input_error(
        [&] {
          sentencepiece({good, bad, good});
        },
        bad, {"not UTF-8 at byte offset " + std::to_string(offset) + "\n"});
    EXPECT_NO_THROW(bytes({good, bad, good}));
  }
  // A character divided between two files is whole in neither.
  const std::string head = write("head", "a\xE2"), tail = write("tail", "\x82\xAC");
  expect_input_error([&] { sentencepiece({head, tail}); }, head, {"byte offset 1\n"});
}

TEST_F(DataCorpus, utf_8_boundary_is_the_last_beginning_of_a_character) {
  const std::string text = "aé的🙂";
  EXPECT_EQ(utf8_prefix(text), text.size());
  const std::vector<std::size_t> expected = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
  for (std::size_t offset = 0; offset <= text.size(); ++offset) {
    EXPECT_EQ(utf8_boundary(text, offset), expected[offset]) << offset;
  }
}

}  // namespace
}  // namespace onebit::data
