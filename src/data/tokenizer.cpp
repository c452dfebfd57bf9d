#include "data/tokenizer.hpp"

#include <algorithm>
#include <array>

namespace onebit::data {
namespace {

/// Tokens are the bytes of an alphabet in ascending order, and [MASK] at the end if there is one.
class ByteTokenizer final : public Tokenizer {
public:
  /// \param is_token (bytes) whether a byte belongs to the alphabet
  ByteTokenizer(const std::array<bool, byte_values>& is_token, bool has_mask) : m_has_mask(has_mask) {
    for (std::size_t byte = 0; byte < byte_values; ++byte) {
      if (!is_token[byte]) continue;
      m_tokens[byte] = static_cast<int>(m_alphabet.size());
      m_alphabet += static_cast<char>(byte);
    }
  }

  int vocabulary() const override { return mask_token() + (m_has_mask ? 1 : 0); }
  int mask_token() const override { return static_cast<int>(m_alphabet.size()); }

  std::vector<int> encode(std::string_view text) const override {
    std::vector<int> tokens(text.size());
    std::transform(text.begin(), text.end(), tokens.begin(),
                   [this](char c) { return m_tokens[static_cast<unsigned char>(c)]; });
    return tokens;
  }

  std::string decode(const std::vector<int>& tokens) const override {
    std::string text;
    text.reserve(tokens.size());
    for (const int token : tokens)
      text += token == mask_token() ? mask_text : std::string(1, m_alphabet[static_cast<std::size_t>(token)]);
    return text;
  }

private:
  std::string m_alphabet;
  bool m_has_mask;
  std::array<int, byte_values> m_tokens{};
};

}  // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  std::array<bool, byte_values> all;
  all.fill(true);
  return std::make_unique<ByteTokenizer>(all, true);
}

std::unique_ptr<Tokenizer> make_character_tokenizer(std::string_view text, bool has_mask) {
  std::array<bool, byte_values> occurs{};
  for (const char c : text) occurs[static_cast<unsigned char>(c)] = true;
  return std::make_unique<ByteTokenizer>(occurs, has_mask);
}

std::size_t utf8_prefix(std::string_view text) {
  const auto byte = [&](std::size_t offset) -> unsigned {
    return offset < text.size() ? static_cast<unsigned char>(text[offset]) : 0;
  };
  std::size_t offset = 0;
  while (offset < text.size()) {
    const unsigned first = byte(offset), second = byte(offset + 1);
    const std::size_t length = first < 0x80                   ? 1
                               : first < 0xC2 || first > 0xF4 ? 0
                               : first < 0xE0                 ? 2
                               : first < 0xF0                 ? 3
                                                              : 4;
    bool valid = length > 0;
    for (std::size_t i = 1; i < length; ++i) valid = valid && (byte(offset + i) & 0xC0u) == 0x80u;
    const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    const bool no_character = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);  // or a surrogate
    if (!valid || overlong || no_character) return offset;
    offset += length;
  }
  return offset;
}

std::size_t utf8_boundary(std::string_view text, std::size_t offset) {
  while (offset > 0 && offset < text.size() && (static_cast<unsigned char>(text[offset]) & 0xC0u) == 0x80u) --offset;
  return offset;
}

}  // namespace onebit::data
