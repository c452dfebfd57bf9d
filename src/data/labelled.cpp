#include "data/labelled.hpp"
#include "base/system/stop_signal.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <string_view>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/system/activity.hpp"
#include "data/corpus.hpp"

namespace onebit::data {
namespace {

/// A sample; views of the text of the file.
struct Line {
  std::string_view label;
  std::vector<std::string_view> texts;
  std::size_t number;  ///< of the line in the file, from 0 on
};

const char* form_of_lines(int texts) {
  return texts > 1 ? "write a label, a tab, a text, a tab and a second text on each line"
                   : "write a label, a tab and a text on each line";
}

std::string place(const std::string& file, std::size_t line) { return file + ":" + std::to_string(line + 1); }

std::string_view without_spaces(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

/// Refuses a line that is no sample. A tab in the last text is a part of it.
Line parsed(std::string_view line, const std::string& where, std::size_t number, int texts) {
  std::vector<std::string_view> fields{line};
  while (static_cast<int>(fields.size()) <= texts) {
    const std::string_view rest = fields.back();
    const std::size_t tab = rest.find('\t');
    if (tab == std::string_view::npos)
      throw InputError(where,
                       (fields.size() == 1 ? "this line has no tab: '" : "this line has no second text: '") +
                           excerpt(std::string(line)) + "'",
                       form_of_lines(texts));
    fields.back() = rest.substr(0, tab);
    fields.push_back(rest.substr(tab + 1));
  }
  if (line.find('\0') != std::string_view::npos)
    throw InputError(where, "this line holds a NUL byte", "write the file as UTF-8 text");
  const Line sample{without_spaces(fields[0]), {fields.begin() + 1, fields.end()}, number};
  if (sample.label.empty()) throw InputError(where, "the label is empty", "write one in front of the tab");
  for (const std::string_view text : sample.texts)
    if (without_spaces(text).empty())
      throw InputError(where, text.data() == fields[1].data() ? "the text is empty" : "the second text is empty",
                       "write one behind the tab, or leave the line out");
  return sample;
}

/// Lines end as those of Linux (LF), Windows (CR LF) or old Macs (CR) do. Empty ones at the end are passed over.
std::vector<Line> cut_into_lines(const std::string& file, std::string_view text, int texts) {
  std::vector<Line> lines;
  text = text.substr(0, text.find_last_not_of("\r\n") + 1);
  for (std::size_t begin = 0, number = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find_first_of("\r\n", begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    lines.push_back(parsed(line, place(file, number), number, texts));
    begin = end + (text.substr(end, 2) == "\r\n" ? 2 : 1);
  }
  if (lines.empty()) throw InputError(file, "all its lines are empty", form_of_lines(texts));
  return lines;
}

/// All labels in alphabetical order.
std::vector<std::string> labels_of(const std::string& file, const std::vector<Line>& lines) {
  std::map<std::string, std::size_t> first_line;
  for (std::size_t line = 0; line < lines.size(); ++line) {
    first_line.emplace(lines[line].label, line);
    if (first_line.size() > most_classes)
      throw InputError(place(file, lines[line].number),
                       "'" + excerpt(std::string(lines[line].label)) + "' is the label of one class more than " +
                           std::to_string(most_classes),
                       "check that labels stand in front of the tabs, and texts behind them");
  }
  if (first_line.size() < 2)
    throw InputError(file, "all its lines have the label '" + excerpt(first_line.begin()->first) + "'",
                     "give samples of at least two classes");
  std::vector<std::string> labels;
  for (const auto& [label, line] : first_line) labels.push_back(label);
  return labels;
}

/// Its tokens. Refuses a text that the tokeniser does not give back.
std::vector<int> encoded(const Tokenizer& tokenizer, std::string_view text, const std::string& where) {
  std::vector<int> tokens = tokenizer.encode(text);
  if (tokens.empty() || tokenizer.decode(tokens) != text)
    throw InputError(where, "the tokeniser cannot write this text: '" + excerpt(std::string(text)) + "'",
                     "use the text's own corpus for the tokeniser, or the tokenizer 'bytes'");
  return tokens;
}

/// Whether a letter, a digit or a part of a character beyond ASCII.
bool is_of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || (c & 0x80) != 0; }

/// Where the answer stands first in a text as whole words; npos if nowhere.
std::size_t find_answer(std::string_view text, std::string_view answer) {
  const auto joins = [&](std::size_t k) {
    return k > 0 && k < text.size() && is_of_word(text[k - 1]) && is_of_word(text[k]);
  };
  std::size_t begin = text.find(answer);
  while (begin != std::string_view::npos && (joins(begin) || joins(begin + answer.size())))
    begin = text.find(answer, begin + 1);
  return begin;
}

/// The first and the last of the tokens that have a part of the bytes [begin, end) of their text.
std::array<int, 2> tokens_of_bytes(const Tokenizer& tokenizer, const std::vector<int>& tokens, std::size_t begin,
                                   std::size_t end) {
  // The first token up to which the text is longer than `byte` bytes, halving the tokens in question each time: a text
  // of 500 tokens would else be decoded 500 times.
  const auto of_byte = [&](std::size_t byte) {
    std::size_t first = 0, last = tokens.size() - 1;
    while (first < last) {
      const std::size_t middle = (first + last) / 2;
      const std::vector<int> prefix(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(middle) + 1);
      if (tokenizer.decode(prefix).size() > byte)
        last = middle;
      else
        first = middle + 1;
    }
    return static_cast<int>(first);
  };
  return {of_byte(begin), of_byte(end - 1)};
}

}  // namespace

LabelledSamples::LabelledSamples(const std::string& training_file, const std::string& validation_file,
                                 const Tokenizer& tokenizer, const SampleForm& form, std::uint64_t seed)
    : m_form(form), m_seed(seed), m_mask_token(tokenizer.mask_token()) {
  for (int text = 0; text < form.texts(); ++text)
    if (form.begin(text) >= form.end(text))
      throw InputError(
          "sequence",
          std::to_string(form.sequence) + " tokens hold no text" +
              (form.texts() > 1 ? ", or none before or behind position " + std::to_string(form.second_text) : ""),
          "give each text at least one token, and the mark of an encoder another one");
  m_training = read(training_file, tokenizer, true);
  m_validation = read(validation_file, tokenizer, false);
  for (const auto& [file, set] : {std::make_pair(&training_file, &m_training), {&validation_file, &m_validation}})
    if (set->targets.empty())
      throw InputError(*file, "no answer is among the tokens for which its text has a place",
                       "give second texts more tokens (model.sequence, model.second_text)");
  m_validation_order = ValidationOrder(validation_file, validation_size());
}

std::string LabelledSamples::summary() const {
  constexpr std::size_t most_shown = 10;
  const std::string sizes = std::to_string(training_size()) + " texts to train on, " +
                            std::to_string(validation_size()) + " to validate with";
  if (m_form.label == Label::answer)
    return sizes + "; left out because their answer is cut: " + std::to_string(m_training.cut_answers) + " and " +
           std::to_string(m_validation.cut_answers);
  std::string names;
  for (std::size_t k = 0; k < std::min(m_classes.size(), most_shown); ++k)
    names += (k > 0 ? ", " : "") + excerpt(m_classes[k]);
  return std::to_string(m_classes.size()) + " classes (" + names + (m_classes.size() > most_shown ? ", …" : "") +
         "); " + sizes;
}

int LabelledSamples::class_of(std::string_view label, const std::string& where) const {
  const auto found = std::lower_bound(m_classes.begin(), m_classes.end(), label);
  if (found == m_classes.end() || *found != label)
    throw InputError(where, "no sample of the training file has the label '" + excerpt(std::string(label)) + "'",
                     "correct the label, or leave out the line");
  return static_cast<int>(found - m_classes.begin());
}

std::vector<int> LabelledSamples::answer_of(std::string_view answer, std::string_view text,
                                            const std::vector<int>& tokens, const Tokenizer& tokenizer,
                                            const std::string& where) const {
  const std::size_t begin = find_answer(text, answer);
  if (begin == std::string_view::npos)
    throw InputError(where, "the second text lacks the answer '" + excerpt(std::string(answer)) + "'",
                     "write the answer as its words stand there, or leave out the line");
  const auto [first, last] = tokens_of_bytes(tokenizer, tokens, begin, begin + answer.size());
  return {m_form.second_text + first, m_form.second_text + last};
}

LabelledSamples::Set LabelledSamples::read(const std::string& file, const Tokenizer& tokenizer, bool is_training) {
  const std::string text = read_text_files({file}, false);
  const std::vector<Line> lines = cut_into_lines(file, text, m_form.texts());
  if (is_training && m_form.label == Label::of_class) m_classes = labels_of(file, lines);
  Set set;
  set.begins.push_back(0);
  const Activity activity("OneBit::data::encode");
  for (std::size_t line = 0; line < lines.size(); ++line) {
    Activity::goes_on();
    StopSignal::check();
    const std::string where = place(file, lines[line].number);
    std::vector<std::vector<int>> texts;
    for (const std::string_view one : lines[line].texts) texts.push_back(encoded(tokenizer, one, where));
    const std::vector<int> targets =
        m_form.label == Label::of_class
            ? std::vector{class_of(lines[line].label, where)}
            : answer_of(lines[line].label, lines[line].texts[1], texts[1], tokenizer, where);
    if (m_form.label == Label::answer && targets.back() >= m_form.sequence) {
      ++set.cut_answers;
      continue;
    }
    set.targets.insert(set.targets.end(), targets.begin(), targets.end());
    for (int k = 0; k < m_form.texts(); ++k) {
      const std::size_t most = m_form.end(k) - m_form.begin(k);
      set.tokens.insert(set.tokens.end(), texts[k].begin(),
                        texts[k].begin() + static_cast<std::ptrdiff_t>(std::min(texts[k].size(), most)));
      set.begins.push_back(set.tokens.size());
    }
  }
  return set;
}

template <class IndexOf>
void LabelledSamples::fill(const Set& set, int count, const IndexOf& index_of, Batch& batch) const {
  const auto samples = static_cast<std::size_t>(count), sequence = static_cast<std::size_t>(m_form.sequence);
  batch.input.resize(samples * sequence);
  const std::size_t targets = m_form.targets();
  batch.predicted.resize(samples * targets);
  batch.target.resize(samples * targets);
  for (std::size_t sample = 0; sample < samples; ++sample) {
    const std::size_t index = index_of(sample);
    int* const input = batch.input.data() + sample * sequence;
    input[0] = m_mask_token;  // a causal model's first text begins here
    int first = 0, last = 0;
    for (int k = 0; k < m_form.texts(); ++k) {
      const std::size_t text = index * m_form.texts() + k, begin = set.begins[text];
      const int length = static_cast<int>(set.begins[text + 1] - begin);
      first = m_form.begin(k);
      for (int t = first; t < m_form.end(k); ++t) input[t] = set.tokens[begin + (t - first) % length];
      last = first + length - 1;
    }
    std::copy_n(set.targets.begin() + static_cast<std::ptrdiff_t>(index * targets), targets,
                batch.target.begin() + static_cast<std::ptrdiff_t>(sample * targets));
    const int row = static_cast<int>(sample * sequence);
    if (m_form.label == Label::answer) {
      batch.predicted[2 * sample] = row + first;
      batch.predicted[2 * sample + 1] = row + last;
    } else {
      batch.predicted[sample] = row + (m_form.summary == Summary::first ? 0 : last);
    }
  }
}

void LabelledSamples::draw(std::uint64_t step, std::uint64_t first_sample, int count, Batch& batch) const {
  const std::uint64_t key = stream_key(m_seed, Stream::data);
  fill(
      m_training, count,
      [&](std::size_t sample) { return drawn_sample(philox(key, step, first_sample + sample), training_size()); },
      batch);
}

void LabelledSamples::draw_validation(std::uint64_t first_sample, int count, Batch& batch) const {
  m_validation_order.check(first_sample, count);
  fill(
      m_validation, count, [&](std::size_t sample) { return m_validation_order[first_sample + sample]; }, batch);
}

}  // namespace onebit::data
