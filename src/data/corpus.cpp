#include "data/corpus.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.hpp"
#include "base/system/activity.hpp"
#include "data/file_bytes.hpp"

namespace onebit::data {
namespace {

/// Bytes of text that fit into this machine's memory together with their tokens, at most one for each byte.
std::uintmax_t most_text() { return machine_memory() / (1 + sizeof(int)); }

constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

bool begins_with(std::string_view text, std::string_view begin) { return text.substr(0, begin.size()) == begin; }

/// Refuses what is no text but would pass for one, by the first bytes: text in units of 16 or 32 bits, and formats that
/// people take for text by their names.
void refuse_other_formats(const std::string& file, std::string_view content) {
  using namespace std::string_view_literals;
  const struct {
    std::string_view begin;
    const char *what, *remedy;
  } formats[] = {
      {"\xFF\xFE\0\0"sv, "text in UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"},
      {"\0\0\xFE\xFF"sv, "text in UTF-32", "convert it: iconv -f UTF-32 -t UTF-8"},
      {"\xFF\xFE"sv, "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
      {"\xFE\xFF"sv, "text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8"},
      {"\x1F\x8B"sv, "compressed by gzip", "decompress it: gunzip"},
      {"BZh"sv, "compressed by bzip2", "decompress it: bunzip2"},
      {"\xFD"
       "7zXZ"sv,
       "compressed by xz", "decompress it: unxz"},
      {"\x28\xB5\x2F\xFD"sv, "compressed by Zstandard", "decompress it: unzstd"},
      {"PK\x03\x04"sv, "a ZIP archive (as .xlsx and .docx are)", "save it as text, or unpack it"},
      {"\x89HDF\r\n"sv, "an HDF5 file", "name a text file"},
      {"OneBit sealed file"sv, "a checkpoint", "name a text file"},
      {"%PDF-"sv, "a PDF", "convert it: pdftotext"},
  };
  for (const auto& format : formats)
    if (begins_with(content, format.begin))
      throw InputError(file, std::string("is not plain text: it is ") + format.what, format.remedy);
  // Text in UTF-16 has no mark where its name says how it is written. Half of its bytes are 0 in many languages.
  const std::string_view begin = content.substr(0, 4096);
  const auto zeros = static_cast<std::size_t>(std::count(begin.begin(), begin.end(), '\0'));
  if (zeros >= 8 && 10 * zeros > begin.size())
    throw InputError(file,
                     "is not plain text: " + std::to_string(zeros) + " of its first " + std::to_string(begin.size()) +
                         " bytes are NUL, as in UTF-16",
                     "convert it: iconv -f UTF-16LE -t UTF-8");
}

}  // namespace

std::string read_text_files(const std::vector<std::string>& files, bool must_be_utf8) {
  const Activity activity("OneBit::data::read");
  const std::uintmax_t most = most_text();
  std::vector<std::size_t> sizes;
  std::size_t total = 0;
  for (const std::string& file : files) {
    const std::uintmax_t size = checked_size(file, "text");
    if (size > most - total) {
      throw InputError(file,
                       "the corpus up to here has " + std::to_string(total) + " + " + std::to_string(size) +
                           " bytes; with its tokens, this machine's memory holds " + std::to_string(most),
                       "use fewer or smaller files");
    }
    sizes.push_back(static_cast<std::size_t>(size));
    total += sizes.back();
  }

  std::string text(total, '\0');
  std::size_t offset = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    read_bytes(files[i], 0, text.data() + offset, sizes[i]);
    const std::string_view content = std::string_view(text).substr(offset, sizes[i]);
    refuse_other_formats(files[i], content);
    const std::size_t valid = must_be_utf8 ? utf8_prefix(content) : sizes[i];
    if (valid < sizes[i])
      throw InputError(files[i], "is not UTF-8 at byte offset " + std::to_string(valid),
                       "convert it (iconv -t UTF-8), or use the tokenizer 'bytes', which takes any text");
    // A byte order mark says how the file is written, and is none of its characters.
    if (begins_with(content, byte_order_mark)) {
      text.erase(offset, byte_order_mark.size());
      sizes[i] -= byte_order_mark.size();
    }
    if (sizes[i] == 0) throw InputError(files[i], "is empty but for a byte order mark", "name a file with text in it");
    offset += sizes[i];
  }
  return text;
}

Corpus::Corpus(const CorpusOptions& options) : m_name(joined_names(options.files, "corpus")) {
  const double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1))
    throw InputError(m_name, "a validation fraction of " + std::to_string(fraction) + " is not in [0, 1)",
                     "set it to the share of the text to validate with, for example 0.1");
  const bool subwords = options.tokenizer == TokenizerKind::sentencepiece;
  const std::string text = read_text_files(options.files, subwords);

  std::size_t train_bytes = text.size();
  if (fraction > 0) {
    const auto share = static_cast<std::size_t>(std::llround(fraction * static_cast<double>(text.size())));
    train_bytes -= std::clamp<std::size_t>(share, 1, text.size());
  }
  if (subwords) train_bytes = utf8_boundary(text, train_bytes);
  if (train_bytes == 0)
    throw InputError(m_name, "its " + std::to_string(text.size()) + " bytes are too few to be divided",
                     "give more text, or set a smaller validation fraction");
  const std::string_view train = std::string_view(text).substr(0, train_bytes);
  const std::string_view validation = std::string_view(text).substr(train_bytes);

  switch (options.tokenizer) {
    case TokenizerKind::bytes:
      m_tokenizer = make_byte_tokenizer();
      break;
    case TokenizerKind::characters:
      m_tokenizer = make_character_tokenizer(text, options.has_mask);
      break;
    case TokenizerKind::sentencepiece:
      m_tokenizer = make_sentencepiece_tokenizer(train, options.vocabulary, options.cache_directory, m_name);
      break;
  }
  const Activity activity("OneBit::data::encode");
  m_train = m_tokenizer->encode(train);
  m_validation = m_tokenizer->encode(validation);
}

}  // namespace onebit::data
