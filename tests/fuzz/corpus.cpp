/// \file corpus.cpp
/// Fuzzes the corpus reader. The first bytes choose the tokeniser and its options and where the text is cut into two
/// files, the rest is text.

#include "data/corpus.hpp"

#include <fuzzer/FuzzedDataProvider.h>

#include "fuzz.hpp"

namespace {

/// The text of a file without its byte order mark.
std::string without_mark(const std::string& text) { return text.rfind("\xEF\xBB\xBF", 0) == 0 ? text.substr(3) : text; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace onebit;
  FuzzedDataProvider bytes(data, size);
  data::CorpusOptions options;
  // SentencePiece takes a hundred times as long, so it has its turn in one of sixteen.
  const int choice = bytes.ConsumeIntegralInRange(0, 15);
  options.tokenizer = choice == 15      ? TokenizerKind::sentencepiece
                      : choice % 2 == 0 ? TokenizerKind::bytes
                                        : TokenizerKind::characters;
  options.has_mask = bytes.ConsumeBool();
  options.vocabulary = bytes.ConsumeIntegralInRange(250, 600);
  options.validation_fraction = bytes.ConsumeFloatingPointInRange(-0.1, 1.1);
  const std::string first = bytes.ConsumeRandomLengthString(), second = bytes.ConsumeRemainingBytesAsString();

  const std::string cache = fuzz::scratch() / "cache";
  options.cache_directory = cache;
  for (const auto& [name, text] : {std::pair{"one.txt", first}, std::pair{"two.txt", second}}) {
    options.files.push_back(fuzz::scratch() / name);
    fuzz::write_file(options.files.back(), text);
  }
  fuzz::refuses_or_reads([&] {
    const data::Corpus corpus(options);
    for (const auto* const part : {&corpus.train(), &corpus.validation()})
      for (const int token : *part)
        fuzz::expect(token >= 0 && token < corpus.vocabulary() && token != corpus.mask_token(), "tokens are in range");
    const std::string text = corpus.decode(corpus.train()) + corpus.decode(corpus.validation());
    const bool has_signs = (first + second).find("\xE2\x96\x81") != std::string::npos;  // U+2581, SentencePiece's space
    const std::string given = without_mark(first) + without_mark(second);
    fuzz::expect(text == given || (options.tokenizer == TokenizerKind::sentencepiece && has_signs),
                 "tokens are the text");
  });
  if (options.tokenizer == TokenizerKind::sentencepiece) std::filesystem::remove_all(cache);
  return 0;
}
