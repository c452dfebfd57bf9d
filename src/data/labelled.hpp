#pragma once
/// \file labelled.hpp
/// Labelled texts: files with a label, a tab and a text on each line, or a label and two texts. The label is a class,
/// or an answer that stands in the second text. Spaces around a label, a byte order mark, the kind of line ends and
/// empty lines at the end do not count.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "data/samples.hpp"
#include "data/tokenizer.hpp"

namespace onebit::data {

/// Limit of the number of classes. More labels are taken for texts in the wrong column.
inline constexpr int most_classes = 1000;

/// The token of a sample at which the model predicts its class.
enum class Summary {
  first,  ///< a token [MASK] in front of the text, in place of BERT's [CLS], which the tokenisers do not have
  last    ///< the last token of the text, where a causal model has read all of it (Radford et al. 2018)
};

/// What a label says.
enum class Label {
  of_class,  ///< the class of the sample, which has one target
  answer     ///< the words of the second text that are asked for, whose first and last token are the two targets
};

/// Where a sample's T tokens are.
struct SampleForm {
  Summary summary;
  int sequence;         ///< T
  int second_text = 0;  ///< position at which the second of two texts begins; 0: samples have one text
  Label label = Label::of_class;

  int texts() const { return second_text > 0 ? 2 : 1; }
  int targets() const { return label == Label::answer ? 2 : 1; }
  /// Position of the first token of text k.
  int begin(int k) const { return k > 0 ? second_text : summary == Summary::first ? 1 : 0; }
  /// Position behind its last token.
  int end(int k) const { return k + 1 < texts() ? second_text : sequence; }
};

/// Samples of T tokens. A text that is longer than its place is cut there; a shorter one is repeated, because attention
/// has no mask for padding. A batch's `predicted` are the rows of the summaries; for answers, the rows of the first and
/// of the last token of each second text, without its repetitions, and `target` are positions in [0, T). A sample whose
/// answer is cut is left out.
class LabelledSamples final : public Samples {
public:
  /// Class k is the k-th of the training file's labels in alphabetical order. The tokeniser is used in the constructor
  /// only.
  /// \param training_file, validation_file should have no sample in common, which is not checked
  /// \throws InputError that names file and line for a line without a tab before each text, an empty label or text, a
  ///         text that the tokeniser cannot encode, a label that the training file lacks, fewer than two or more than
  ///         `most_classes` classes, an answer that its text lacks; if no sample is left; for a form that leaves a text
  ///         no place; and as `read_text_files`
  LabelledSamples(const std::string& training_file, const std::string& validation_file, const Tokenizer& tokenizer,
                  const SampleForm& form, std::uint64_t seed);

  /// "2 classes (negative, positive); 120 texts to train on, 40 to validate with"
  std::string summary() const override;
  /// Labels of the classes; none for answers.
  const std::vector<std::string>& classes() const { return m_classes; }
  std::size_t training_size() const { return m_training.targets.size() / m_form.targets(); }
  std::size_t validation_size() const { return m_validation.targets.size() / m_form.targets(); }

  /// Draws uniformly with replacement. Sample s of step t is a function of (seed, t, s).
  void draw(std::uint64_t step, std::uint64_t first_sample, int count, Batch& batch) const override;
  /// Draws each sample at most once.
  void draw_validation(std::uint64_t first_sample, int count, Batch& batch) const override;

private:
  /// The samples of a file.
  struct Set {
    std::vector<int> targets;         ///< (samples * targets) classes, or the answers' positions in [0, T)
    std::vector<int> tokens;          ///< of each text at most those that have a place
    std::vector<std::size_t> begins;  ///< (samples * texts + 1) first token of each text
    std::size_t cut_answers = 0;      ///< samples that were left out
  };
  Set read(const std::string& file, const Tokenizer& tokenizer, bool is_training);
  int class_of(std::string_view label, const std::string& where) const;
  /// The positions of the answer's first and last token, which may be behind the sample's end.
  std::vector<int> answer_of(std::string_view answer, std::string_view text, const std::vector<int>& tokens,
                             const Tokenizer& tokenizer, const std::string& where) const;
  template <class IndexOf>
  void fill(const Set& set, int count, const IndexOf& index_of, Batch& batch) const;

  SampleForm m_form;
  std::uint64_t m_seed;
  int m_mask_token;
  std::vector<std::string> m_classes;
  Set m_training, m_validation;
  ValidationOrder m_validation_order;
};

}  // namespace onebit::data
