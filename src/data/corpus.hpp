#pragma once
/// \file corpus.hpp
/// The text of a run as tokens: a part to train on and a part to validate with.

#include <memory>
#include <string>
#include <vector>

#include "base/choices.hpp"
#include "data/tokenizer.hpp"

namespace onebit::data {

/// The texts of the files, one after the other. Each must be UTF-8 by itself: a character that is cut off at the end of
/// a file must not be completed by the next.
/// \throws InputError when a file cannot be read, is empty, does not fit into memory with its tokens or is not UTF-8
std::string read_text_files(const std::vector<std::string>& files, bool must_be_utf8);

/// What a corpus is made of: section `data` of the input.
struct CorpusOptions {
  std::vector<std::string> files;
  TokenizerKind tokenizer = TokenizerKind::bytes;
  bool has_mask = true;            ///< characters only: whether there is a token [MASK]
  int vocabulary = 0;              ///< sentencepiece only: number of tokens, [MASK] included
  std::string cache_directory;     ///< sentencepiece only: where trained models are kept
  double validation_fraction = 0;  ///< share of the text, in bytes, in [0, 1): the end of it
};

/// The texts of all files, one after the other, as tokens. The text is cut into its two parts before anything else is
/// done with it, so the tokeniser never learns from the validation part either, but for the alphabet of `characters`.
class Corpus {
public:
  /// \throws InputError when a file cannot be read, is empty, does not fit into memory or (sentencepiece) is not UTF-8,
  ///         when the text is too short to be divided, and as `make_sentencepiece_tokenizer`
  explicit Corpus(const CorpusOptions& options);

  int vocabulary() const { return m_tokenizer->vocabulary(); }
  int mask_token() const { return m_tokenizer->mask_token(); }
  const std::vector<int>& train() const { return m_train; }
  const std::vector<int>& validation() const { return m_validation; }
  std::string decode(const std::vector<int>& tokens) const { return m_tokenizer->decode(tokens); }
  const Tokenizer& tokenizer() const { return *m_tokenizer; }
  /// The files, as error messages name them: "a.txt", "a.txt and 2 more files".
  const std::string& name() const { return m_name; }

private:
  std::string m_name;
  std::unique_ptr<Tokenizer> m_tokenizer;
  std::vector<int> m_train;
  std::vector<int> m_validation;
};

}  // namespace onebit::data
