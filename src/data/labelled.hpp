#pragma once
/// \file labelled.hpp
/// Labelled texts for classification: files of which each line is a label, a tab and a text.

#include <cstddef>
#include <string>
#include <vector>

#include "data/samples.hpp"
#include "data/tokenizer.hpp"

namespace onebit::data {

/// The most classes that a file may have; more are taken for a text in the place of the label.
inline constexpr int most_classes = 1000;

/// Which token of a sample stands for all of it.
enum class Summary {
  first,  ///< a token [MASK] in front of the text: BERT's [CLS], which the tokenisers do not have
  last    ///< the text's last token, the first that a causal model has read all of the text at (Radford et al. 2018)
};

/// Samples of T tokens: a text is cut at T, and a shorter one begins again behind its end, because the models have no
/// mask for tokens that are none.
class LabelledSamples final : public Samples {
public:
  /// Class k is the k-th of the training file's labels in alphabetical order. Texts become tokens here; the tokeniser is
  /// not needed afterwards.
  /// \param training_file, validation_file must have no sample in common; nothing checks that
  /// \param sequence T
  /// \throws InputError naming file and line for a line without a tab, an empty label or text, a text that the tokeniser
  ///         cannot write, a label that the training file does not have, fewer than two or more than `most_classes`
  ///         classes; and as `read_text_files`
  LabelledSamples(const std::string& training_file, const std::string& validation_file, const Tokenizer& tokenizer,
                  Summary summary, int sequence, std::uint64_t seed);

  /// Labels of the classes.
  const std::vector<std::string>& classes() const { return m_classes; }
  std::size_t training_size() const { return m_training.labels.size(); }
  std::size_t validation_size() const { return m_validation.labels.size(); }

  /// Drawn uniformly, with replacement: sample s of step t is a function of (seed, t, s).
  void draw(std::uint64_t step, std::uint64_t first_sample, int count, Batch& batch) const override;
  /// Each sample once at most.
  void draw_validation(std::uint64_t first_sample, int count, Batch& batch) const override;

private:
  /// One file's samples.
  struct Set {
    std::vector<int> labels;          ///< class of each
    std::vector<int> tokens;          ///< of all, T at most of each
    std::vector<std::size_t> begins;  ///< of each among the tokens, and the end of the last
  };
  Set read(const std::string& file, const Tokenizer& tokenizer, bool is_training);
  template <class IndexOf>
  void fill(const Set& set, int count, const IndexOf& index_of, Batch& batch) const;

  std::string m_validation_file;
  Summary m_summary;
  std::size_t m_sequence;
  std::uint64_t m_seed;
  int m_mask_token;
  std::vector<std::string> m_classes;
  Set m_training, m_validation;
  std::uint64_t m_stride;  ///< from one validation sample to the next
};

}  // namespace onebit::data
