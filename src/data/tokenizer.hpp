#pragma once
/// \file tokenizer.hpp
/// Tokenisers: text to token ids and back. Two take bytes as they are, the third learns subwords from the text.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace onebit::data {

/// How text becomes tokens. Beside those there is a token [MASK], which no text encodes to.
class Tokenizer {
public:
  virtual ~Tokenizer() = default;

  /// Number of token ids, [MASK] included where there is one; ids are [0, vocabulary()).
  virtual int vocabulary() const = 0;
  /// Id of [MASK]; vocabulary() for a tokeniser without one.
  virtual int mask_token() const = 0;
  virtual std::vector<int> encode(std::string_view text) const = 0;
  /// The text of tokens in [0, vocabulary()); [MASK] is printed as "[MASK]".
  virtual std::string decode(const std::vector<int>& tokens) const = 0;
};

/// Token i < 256 is byte i, token 256 is [MASK]. Takes any text, UTF-8 or not.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Tokens are the bytes that occur in `text`, in ascending order, then [MASK] where `has_mask`. Encodes no other bytes.
/// A model for it has no row that the text never uses: such rows keep a variance near 0, and compressed momentum moves
/// them at random.
std::unique_ptr<Tokenizer> make_character_tokenizer(std::string_view text, bool has_mask);

/// Byte-pair encoding by SentencePiece with byte fallback: decode(encode(x)) == x for any UTF-8 x without U+2581,
/// SentencePiece's own sign for a space, which comes back as one.
///
/// The model is trained on first use and kept in `cache_directory` under a name made from a hash of the text and all
/// options. Processes that start at once wait for the first one to train; which one it was does not change the model.
///
/// \param text            what it is trained on, UTF-8
/// \param vocabulary      number of tokens, 256 byte tokens and [MASK] included
/// \param cache_directory made if it is missing
/// \param where           what errors in the text or the vocabulary name as their place
/// \throws InputError when the vocabulary does not suit the text, or the cache is unusable or damaged
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view text, int vocabulary,
                                                        const std::string& cache_directory, const std::string& where);

/// Byte offset of the first byte that is not part of well-formed UTF-8 (RFC 3629); text.size() when there is none.
std::size_t utf8_prefix(std::string_view text);

/// The last beginning of a character at or before `offset`, for well-formed UTF-8.
std::size_t utf8_boundary(std::string_view text, std::size_t offset);

}  // namespace onebit::data
