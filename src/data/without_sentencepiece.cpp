/// \file without_sentencepiece.cpp
/// In the place of sentencepiece.cpp in a build without SentencePiece. The program refuses the input earlier, where it
/// can name the key.

#include "base/error.hpp"
#include "data/tokenizer.hpp"

namespace onebit::data {

bool has_sentencepiece() { return false; }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view, int, const std::string&,
                                                        const std::string& where) {
  throw InputError(where, "this build has no SentencePiece, which makes subwords", "build OneBit with SentencePiece");
}

}  // namespace onebit::data
