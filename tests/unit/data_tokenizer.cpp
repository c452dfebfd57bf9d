/// \file data_tokenizer.cpp
/// SentencePiece: round trips of friendly and hostile text, its cache, and processes that start at once.

#include "data/tokenizer.hpp"

#include <sentencepiece_processor.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "data_fixture.hpp"

namespace onebit::data {
namespace {

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class DataTokenizer : public DataTest {
protected:
  std::unique_ptr<Tokenizer> make(std::string_view text, int vocabulary = 500) const {
    return make_sentencepiece_tokenizer(text, vocabulary, path("cache"), "corpus.txt");
  }

  /// Files of the cache whose names end like this.
  std::vector<std::string> cached(const std::string& ending) const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path("cache"))) {
      if (entry.path().extension() == ending) files.push_back(entry.path().string());
    }
    return files;
  }
};

TEST_F(DataTokenizer, round_trips_text_it_was_not_trained_on) {
  const auto tokenizer = make(generated_text(600, 1));
  const std::vector<std::string> texts = {"", "a", " ", "\n", "  two  spaces \n\n  lines ",
                                          "tab\tcr\r\nnul" + std::string(1, '\0') + "end", "\xEF\xBB\xBFmark",
                                          "的🙂é", generated_text(50, 2), std::string(20000, 'x'),
                                          // No space in sight where a long word must be cut: not inside a character.
                                          [] {
                                            std::string text = "a";
                                            for (int i = 0; i < 3000; ++i) text += "的🙂";
                                            return text;
                                          }()};
  for (const std::string& text : texts) EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST_F(DataTokenizer, round_trips_spaces_that_no_training_text_had) {
  const auto tokenizer = make("onetwoonetwo\nonetwothree", 270);
  for (const std::string text : {" ", "one two", "  one\n two "})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST_F(DataTokenizer, compresses_the_text_it_was_trained_on) {
  const std::string text = generated_text(600);
  const auto tokenizer = make(text, 700);
  EXPECT_EQ(tokenizer->vocabulary(), 700);
  EXPECT_LT(tokenizer->encode(text).size(), text.size() / 2);
}

TEST_F(DataTokenizer, no_text_encodes_to_the_mask) {
  std::string text = generated_text(300);
  for (int i = 0; i < 300; ++i) text += "[MASK] <unk> <0x41>\xE2\x96\x85 \xE2\x81\x87 \xEF\xBF\xBD\n";
  const auto tokenizer = make(text);
  const std::vector<int> tokens = tokenizer->encode(text);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), tokenizer->mask_token()), 0);
  EXPECT_EQ(tokenizer->decode(tokens), text);
  EXPECT_EQ(tokenizer->decode({tokenizer->mask_token()}), "[MASK]");
  for (const int token : tokens) ASSERT_TRUE(token >= 0 && token < tokenizer->vocabulary());
}

/// Words are encoded one by one and remembered; the definition is SentencePiece on whole lines.
TEST_F(DataTokenizer, encodes_as_sentencepiece_does_on_whole_lines) {
  const std::string text = generated_text(600);
  const auto tokenizer = make(text);
  sentencepiece::SentencePieceProcessor processor;
  const std::string model = content(cached(".model").at(0));
  ASSERT_TRUE(processor.LoadFromSerializedProto(model.substr(model.find('\n') + 1)).ok());
  std::vector<int> expected;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin) + 1;
    const std::vector<int> line = processor.EncodeAsIds(text.substr(begin, end - begin));
    expected.insert(expected.end(), line.begin(), line.end());
    begin = end;
  }
  EXPECT_EQ(tokenizer->encode(text), expected);
}

TEST_F(DataTokenizer, trains_once_and_the_same_everywhere) {
  const std::string text = generated_text(600);
  const auto first = make(text);
  const std::string file = cached(".model").at(0), model = content(file);
  const auto time = std::filesystem::last_write_time(file);
  const auto second = make(text);
  EXPECT_EQ(std::filesystem::last_write_time(file), time);
  EXPECT_EQ(first->encode(text), second->encode(text));

  const auto elsewhere = make_sentencepiece_tokenizer(text, 500, path("other/cache"), "corpus.txt");
  EXPECT_EQ(content(path("other/cache/" + std::filesystem::path(file).filename().string())), model);
}

TEST_F(DataTokenizer, text_and_vocabulary_name_the_model) {
  make(generated_text(600, 1), 500);
  make(generated_text(600, 1), 501);
  make(generated_text(600, 2), 500);
  EXPECT_EQ(cached(".model").size(), 3u);
  EXPECT_EQ(cached(".model").size() + cached(".lock").size(),
            static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path("cache")), {})))
      << "temporary files are left";
}

TEST_F(DataTokenizer, processes_that_start_at_once_agree) {
  const std::string text = generated_text(2000);
  constexpr int processes = 4;
  int gate[2];
  ASSERT_EQ(::pipe(gate), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < processes; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(gate[1]);
      char unused = 0;
      if (::read(gate[0], &unused, 1) != 0) ::_exit(3);  // until the parent opens the gate
      try {
        const std::vector<int> tokens = make(text)->encode(text);
        std::ofstream(path("tokens" + std::to_string(i)), std::ios::binary)
            .write(reinterpret_cast<const char*>(tokens.data()),
                   static_cast<std::streamsize>(tokens.size() * sizeof(int)));
        ::_exit(0);
      } catch (...) {
        ::_exit(1);
      }
    }
    children.push_back(child);
  }
  ::close(gate[0]);
  ::close(gate[1]);
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(cached(".model").size(), 1u);
  const std::string tokens = content(path("tokens0"));
  EXPECT_FALSE(tokens.empty());
  for (int i = 1; i < processes; ++i) EXPECT_EQ(content(path("tokens" + std::to_string(i))), tokens);
  const std::vector<int> expected = make(text)->encode(text);
  EXPECT_EQ(tokens, std::string(reinterpret_cast<const char*>(expected.data()), expected.size() * sizeof(int)));
}

TEST_F(DataTokenizer, says_which_model_is_damaged) {
  const std::string text = generated_text(600);
  make(text);
  const std::string file = cached(".model").at(0), model = content(file);
  std::vector<std::string> damaged = {
      "",         "garbage", model.substr(0, 10), model.substr(0, model.size() / 2), model.substr(0, model.size() - 1),
      model + "x"};
  for (const std::size_t place : {std::size_t{3}, std::size_t{30}, model.size() / 2, model.size() - 1}) {
    damaged.push_back(model);
    damaged.back()[place] ^= 1;
  }
  for (const std::string& bytes : damaged) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    expect_input_error([&] { make(text); }, file, {"damaged", "delete this file"});
  }
  std::filesystem::remove(file);
  make(text);
  EXPECT_EQ(content(file), model);
}

TEST_F(DataTokenizer, says_which_model_cannot_be_read) {
  const std::string text = generated_text(600);
  make(text);
  const std::string file = cached(".model").at(0);
  ASSERT_EQ(::chmod(file.c_str(), 0), 0);
  {
    const Unprivileged scope;
    expect_input_error([&] { make(text); }, file, {"cannot read"});
  }
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  expect_input_error([&] { make(text); }, file, {"cannot read"});
}

TEST_F(DataTokenizer, says_that_the_cache_cannot_be_written) {
  const std::string text = generated_text(600);
  const std::string file = write("file", "");
  expect_input_error([&] { make_sentencepiece_tokenizer(text, 500, file + "/cache", "corpus.txt"); }, file + "/cache",
                     {"cannot write the tokenizer cache", "Not a directory"});
  ASSERT_EQ(::chmod(path("").c_str(), 0555), 0);
  {
    const Unprivileged scope;
    expect_input_error([&] { make(text); }, path("cache"), {"cannot write the tokenizer cache", "Permission denied"});
  }
  ASSERT_EQ(::chmod(path("").c_str(), 0755), 0);
  // A cache that others filled serves those who may only read it.
  make(text);
  const Unprivileged scope;
  EXPECT_NO_THROW(make(text));
}

TEST_F(DataTokenizer, refuses_vocabularies_that_do_not_suit_the_text) {
  const std::string text = generated_text(100);
  for (const int vocabulary : {-1, 0, 1, 257}) {
    expect_input_error([&] { make(text, vocabulary); }, "corpus.txt", {"no room"});
  }
  expect_input_error([&] { make(text, 258); }, "corpus.txt", {"258 vs", "remedy: choose"});
  expect_input_error([&] { make(text, 1 << 20); }, "corpus.txt", {"too high", "<= ", "remedy: choose"});
  EXPECT_TRUE(cached(".model").empty());
}

/// Whatever the text is, the outcome is a tokeniser that gives it back, or an InputError.
TEST_F(DataTokenizer, hostile_texts_work_or_are_refused) {
  std::string ideographs;
  for (std::uint32_t code = 0x4E00; code < 0x5200; ++code) {
    ideographs += static_cast<char>(0xE0 | code >> 12);
    ideographs += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    ideographs += static_cast<char>(0x80 | (code & 0x3F));
  }
  const std::vector<std::string> texts = {"a",
                                          "\n",
                                          " ",
                                          std::string(5000, '\n'),
                                          std::string(5000, ' '),
                                          std::string(5000, '\0'),
                                          std::string(100000, 'a'),
                                          std::string(4096, 'a') + "\n" + std::string(4097, 'b'),
                                          "\xE2\x96\x85\xE2\x96\x85",
                                          "\t\t\t\n\t",
                                          ideographs};
  for (const std::string& text : texts) {
    for (const int vocabulary : {260, 300}) {
      try {
        const auto tokenizer = make(text, vocabulary);
        EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
      } catch (const InputError& error) {
        EXPECT_EQ(std::string(error.what()).find(": \n"), std::string::npos) << "no reason: " << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace onebit::data
