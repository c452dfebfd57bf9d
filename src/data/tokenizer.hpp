#pragma once
/// \file tokenizer.hpp
/// Tokenisers: text to token ids and back. Two map bytes to tokens, the third learns subwords from the text.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace onebit::data {

constexpr int byte_values = 256;
constexpr const char* mask_text = "[MASK]";

/// Maps text to tokens. No text encodes to the additional token [MASK].
class Tokenizer {
public:
  virtual ~Tokenizer() = default;

  /// Number of token ids, including [MASK]; ids are [0, vocabulary()).
  virtual int vocabulary() const = 0;
  /// Id of [MASK]; vocabulary() for a tokeniser without one.
  virtual int mask_token() const = 0;
  virtual std::vector<int> encode(std::string_view text) const = 0;
  /// The text of tokens in [0, vocabulary()), with "[MASK]" for [MASK].
  virtual std::string decode(const std::vector<int>& tokens) const = 0;
};

/// Token i < 256 is byte i, and token 256 is [MASK]. Takes any text, UTF-8 or not.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Tokens are the bytes of `text` in ascending order, then [MASK] if `has_mask`. Encodes no other bytes. A model then
/// has no embedding of a token that does not occur: such an embedding keeps a variance near 0, and compressed momentum
/// moves it at random.
std::unique_ptr<Tokenizer> make_character_tokenizer(std::string_view text, bool has_mask);

/// Whether this build has SentencePiece.
bool has_sentencepiece();

/// Byte-pair encoding by SentencePiece with byte fallback. decode(encode(x)) == x for any UTF-8 x, except that U+2581,
/// the sign of SentencePiece for a space, becomes a space.
///
/// The model is trained on first use and kept in `cache_directory`, under a hash of the text and all options. Processes
/// that start at once wait for the first one to train.
///
/// \param text            text to train on, UTF-8
/// \param vocabulary      number of tokens, including 256 byte tokens and [MASK]
/// \param cache_directory created if it is missing
/// \param where           place of the text and the vocabulary in messages
/// \throws InputError when the vocabulary does not suit the text, or the cache cannot be used or is damaged,
///         or this build has no SentencePiece
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view text, int vocabulary,
                                                        const std::string& cache_directory, const std::string& where);

/// Offset of the first byte that is not part of well-formed UTF-8 (RFC 3629); text.size() if there is none.
std::size_t utf8_prefix(std::string_view text);

/// Last beginning of a character at or before `offset`, for well-formed UTF-8.
std::size_t utf8_boundary(std::string_view text, std::size_t offset);

}  // namespace onebit::data
