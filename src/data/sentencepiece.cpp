/// \file sentencepiece.cpp
/// The tokeniser of subwords, by SentencePiece; without_sentencepiece.cpp takes its place where there is none.

#include <fcntl.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/system/activity.hpp"
#include "base/system/stop_signal.hpp"
#include "data/tokenizer.hpp"
#include "io/file.hpp"

namespace onebit::data {
namespace {

// --- cutting text -----------------------------------------------------------

/// Longest word and longest training sentence in bytes: bounds the work of a call for a text without spaces or lines.
constexpr std::size_t longest_cut = 4096;
/// Bytes of training sentences: ten times as many take minutes and do not improve a vocabulary of a usual size.
constexpr std::size_t training_bytes = std::size_t{64} << 20;

/// End of the word that begins at `begin`: the next space, which begins the next word (SentencePiece writes "▁word"),
/// or the place after the next newline. No subword crosses such an end, so words are encoded one by one.
std::size_t word_end(std::string_view text, std::size_t begin) {
  const std::size_t longest = std::min(text.size(), begin + longest_cut);
  for (std::size_t end = begin; end < longest; ++end) {
    if (text[end] == '\n') return end + 1;
    if (text[end] == ' ' && end > begin) return end;
  }
  return longest == text.size() ? longest : utf8_boundary(text, longest);
}

/// Training sentences: lines without their newline (which the byte token <0x0A> encodes). Long lines are cut between
/// words. Of a text of more than `training_bytes`, every n-th line is taken.
class Sentences final : public sentencepiece::SentenceIterator {
public:
  explicit Sentences(std::string_view text) : m_text(text), m_stride(1 + text.size() / training_bytes) { read(); }

  bool done() const override { return m_done; }
  void Next() override {
    for (std::size_t skipped = 1; skipped < m_stride && m_end < m_text.size(); ++skipped) m_end = sentence_end(m_end);
    read();
  }
  const std::string& value() const override { return m_sentence; }
  sentencepiece::util::Status status() const override { return {}; }

private:
  std::size_t sentence_end(std::size_t begin) const {
    std::size_t end = word_end(m_text, begin);
    while (end < m_text.size() && m_text[end - 1] != '\n') {
      const std::size_t next = word_end(m_text, end);
      if (next - begin > longest_cut) break;
      end = next;
    }
    return end;
  }

  void read() {
    m_done = m_end == m_text.size();
    if (m_done) return;
    const std::size_t begin = m_end;
    m_end = sentence_end(begin);
    m_sentence = m_text.substr(begin, m_end - begin);
    if (m_sentence.back() == '\n') m_sentence.pop_back();
  }

  std::string_view m_text;
  std::size_t m_stride;
  std::size_t m_end = 0;
  bool m_done = false;
  std::string m_sentence;
};

// --- training ---------------------------------------------------------------

using Options = std::vector<std::pair<std::string, std::string>>;

/// Everything that the trained model depends on besides the text.
Options training_options(int vocabulary) {
  return {
      // BPE counts in integers. Sums of floats could depend on the number of threads.
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocabulary)},
      {"num_threads", "1"},
      // With byte fallback, no text encodes to <unk>, which SentencePiece requires: its id serves as [MASK]. (A
      // user-defined symbol would also match a text that says "[MASK]".)
      {"byte_fallback", "true"},
      {"unk_id", "0"},
      {"unk_piece", mask_text},
      {"unk_surface", mask_text},
      {"bos_id", "-1"},
      {"eos_id", "-1"},
      {"pad_id", "-1"},
      // No normalisation, so that decoding restores the text.
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"max_sentence_length", std::to_string(longest_cut)},
  };
}

/// The reason in "Internal: file(line) [condition] reason", or the whole text if there is none.
std::string reason(const sentencepiece::util::Status& status) {
  const std::string text = status.ToString();
  const std::size_t condition = text.rfind("] ");
  return condition == std::string::npos || condition + 2 == text.size() ? text : text.substr(condition + 2);
}

/// The serialised model.
std::string train(std::string_view text, const Options& options, const std::string& where) {
  const Activity activity("OneBit::data::train_tokenizer");
  std::unordered_map<std::string, std::string> arguments(options.begin(), options.end());
  arguments["minloglevel"] = "3";  // fatal messages only; errors are returned as a status
  Sentences sentences(text);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(arguments, &sentences, &model);
  if (!status.ok())
    throw InputError(where, "SentencePiece cannot make the vocabulary from this text: " + reason(status),
                     "choose a vocabulary that the message allows, give more text, or use the tokenizer 'bytes'");
  return model;
}

// --- cache ------------------------------------------------------------------

/// FNV-1a, 64 bit (Fowler, Noll and Vo; RFC 9923).
std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = 0xCBF29CE484222325ull) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3ull;
  return hash;
}

/// First line of a cached model; the model follows.
std::string header(std::string_view model) { return "onebit-sentencepiece 1 fnv1a " + hex(fnv1a(model)) + "\n"; }

std::string system_message(int error) { return std::generic_category().message(error); }

[[noreturn]] void throw_unwritable(const std::string& path, int error) {
  throw InputError(path, "cannot write the tokenizer cache: " + system_message(error),
                   "choose a cache directory that you may write to and that has space");
}

/// Removes a file at the end of its scope, unless it was renamed.
struct TemporaryName {
  std::string path;
  ~TemporaryName() { ::unlink(path.c_str()); }
};

/// The cached model; none if there is no such file.
std::optional<std::string> load(const std::string& path) {
  const Descriptor file(path, O_RDONLY | O_NONBLOCK);  // does not wait for the other end of a pipe
  if (file < 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0 || !S_ISREG(status.st_mode))
    throw InputError(path,
                     "cannot read the cached tokenizer model: " +
                         (file < 0 ? system_message(errno) : std::string("it is no ordinary file")),
                     "make it a readable file, or name another data.cache");
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  content.resize(read_at(file, 0, content.data(), content.size()));
  if (errno != 0) throw unreadable(path, errno);
  const std::size_t header_size = header({}).size();
  const std::string model = content.substr(std::min(header_size, content.size()));
  if (content.compare(0, header_size, header(model)) != 0)
    throw InputError(path, "the cached tokenizer model is damaged: its checksum is wrong",
                     "delete this file: the next run trains the model again");
  return model;
}

/// Writes the model under a temporary name and renames it, so that `path` is always a complete file.
void store(const std::string& path, const std::string& model) {
  TemporaryName temporary{path + ".XXXXXX"};
  const Descriptor file(::mkstemp(temporary.path.data()));
  if (file < 0) throw_unwritable(path, errno);
  const std::string content = header(model) + model;
  if (!write_at(file, 0, content.data(), content.size())) throw_unwritable(path, errno);
  // Others may share the cache; mkstemp gives access to the owner only.
  if (::fchmod(file, 0644) != 0 || ::fsync(file) != 0 || ::rename(temporary.path.c_str(), path.c_str()) != 0) {
    throw_unwritable(path, errno);
  }
}

/// The cached model, or a new one.
std::string load_or_train(std::string_view text, const Options& options, const std::string& path,
                          const std::string& where) {
  if (auto model = load(path)) return *std::move(model);

  const std::string directory = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw_unwritable(directory, error.value());
  const std::string lock_path = path + ".lock";
  const Descriptor lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock < 0) throw_unwritable(lock_path, errno);
  // With the lock, only one process trains. On a file system without locks, each trains the same model and replaces the
  // file by an equal one.
  {
    const Activity activity("OneBit::data::tokenizer_lock", waits_for_ranks);
    while (::flock(lock, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  if (auto model = load(path)) return *std::move(model);
  std::string model = train(text, options, where);
  store(path, model);
  return model;
}

// --- SentencePiece ----------------------------------------------------------

class SentencePieceTokenizer final : public Tokenizer {
public:
  /// \param path place of the model in messages
  SentencePieceTokenizer(const std::string& model, int vocabulary, const std::string& path) {
    const auto status = m_processor.LoadFromSerializedProto(model);
    if (!status.ok() || m_processor.GetPieceSize() != vocabulary ||
        m_processor.IdToPiece(m_processor.unk_id()) != mask_text) {
      throw InputError(path, "the cached tokenizer model cannot be used by this SentencePiece",
                       "delete this file: the next run trains the model again");
    }
  }

  int vocabulary() const override { return m_processor.GetPieceSize(); }
  int mask_token() const override { return m_processor.unk_id(); }

  std::vector<int> encode(std::string_view text) const override {
    // Words repeat, and a look-up is ten times as fast as an encoding.
    constexpr std::size_t most_known_words = std::size_t{1} << 20;
    constexpr std::size_t longest_known_word = 32;
    std::unordered_map<std::string_view, std::vector<int>> known_words;
    std::vector<int> tokens;
    std::vector<int> word_tokens;
    for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      Activity::goes_on();
      StopSignal::check();
      end = word_end(text, begin);
      const std::string_view word = text.substr(begin, end - begin);
      const auto known = known_words.find(word);
      if (known != known_words.end()) {
        tokens.insert(tokens.end(), known->second.begin(), known->second.end());
        continue;
      }
      // SentencePiece before 0.1.97 has a string_view of its own.
      check(m_processor.Encode({word.data(), word.size()}, &word_tokens));
      tokens.insert(tokens.end(), word_tokens.begin(), word_tokens.end());
      if (word.size() <= longest_known_word && known_words.size() < most_known_words) {
        known_words.emplace(word, word_tokens);
      }
    }
    return tokens;
  }

  std::string decode(const std::vector<int>& tokens) const override {
    std::string text;
    check(m_processor.Decode(tokens, &text));
    // If the training text had no space, a space is encoded as the bytes of SentencePiece's sign for it.
    constexpr std::string_view sign = "\xE2\x96\x81";
    for (std::size_t at = text.find(sign); at != std::string::npos; at = text.find(sign, at + 1))
      text.replace(at, sign.size(), " ");
    return text;
  }

private:
  static void check(const sentencepiece::util::Status& status) {
    if (!status.ok()) throw RunError("tokenizer", "SentencePiece failed: " + status.ToString(), "report this");
  }

  sentencepiece::SentencePieceProcessor m_processor;
};

}  // namespace

bool has_sentencepiece() { return true; }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(std::string_view text, int vocabulary,
                                                        const std::string& cache_directory, const std::string& where) {
  if (vocabulary <= byte_values + 1)
    throw InputError(where, "a vocabulary of " + std::to_string(vocabulary) + " has no room for subwords",
                     "choose more than " + std::to_string(byte_values + 1) +
                         " (256 byte tokens and [MASK]), or use the tokenizer 'bytes'");
  const Options options = training_options(vocabulary);
  std::uint64_t hash = fnv1a(text);
  for (const auto& [key, value] : options) hash = fnv1a(key + "=" + value + "\n", hash);
  const std::filesystem::path directory = cache_directory.empty() ? "." : cache_directory;
  const std::string path = directory / ("sentencepiece-" + std::to_string(vocabulary) + "-" + hex(hash) + ".model");
  return std::make_unique<SentencePieceTokenizer>(load_or_train(text, options, path, where), vocabulary, path);
}

}  // namespace onebit::data
