#pragma once
/// \file corpus.hpp
/// The text of a run as tokens: a training part and a validation part.

#include <memory>
#include <string>
#include <vector>

#include "base/choices.hpp"
#include "data/tokenizer.hpp"

namespace onebit::data {

/// The concatenated texts of the files.
/// \param must_be_utf8 requires that each file is UTF-8 by itself
/// \throws InputError when a file cannot be read, is empty, does not fit into memory with its tokens or is not UTF-8
std::string read_text_files(const std::vector<std::string>& files, bool must_be_utf8);

/// Options of a corpus, from section `data` of the input.
struct CorpusOptions {
  std::vector<std::string> files;
  TokenizerKind tokenizer = TokenizerKind::bytes;
  bool has_mask = true;            ///< characters only: whether to have a token [MASK]
  int vocabulary = 0;              ///< sentencepiece only: number of tokens, [MASK] included
  std::string cache_directory;     ///< sentencepiece only: where trained models are kept
  double validation_fraction = 0;  ///< in [0, 1): fraction of the bytes, at the end of the text
};

/// The concatenated texts of all files as tokens. The text is divided first, so that the tokeniser learns only from the
/// training part. An exception is the alphabet of `characters`.
class Corpus {
public:
  /// \throws InputError as `read_text_files` and `make_sentencepiece_tokenizer`, and when the text is too short to be
  /// divided
  explicit Corpus(const CorpusOptions& options);

  int vocabulary() const { return m_tokenizer->vocabulary(); }
  int mask_token() const { return m_tokenizer->mask_token(); }
  const std::vector<int>& train() const { return m_train; }
  const std::vector<int>& validation() const { return m_validation; }
  std::string decode(const std::vector<int>& tokens) const { return m_tokenizer->decode(tokens); }
  const Tokenizer& tokenizer() const { return *m_tokenizer; }
  /// Name of the files in messages: "a.txt" or "a.txt and 2 more files".
  const std::string& name() const { return m_name; }

private:
  std::string m_name;
  std::unique_ptr<Tokenizer> m_tokenizer;
  std::vector<int> m_train;
  std::vector<int> m_validation;
};

}  // namespace onebit::data
