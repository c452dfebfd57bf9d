#pragma once
/// \file transformer.hpp
/// The transformer's workloads: masked (BERT) or causal (GPT) language modelling on a text corpus, and classification
/// of labelled texts with the corpus's tokeniser.

#include "data/corpus.hpp"
#include "data/samples.hpp"
#include "nn/transformer.hpp"
#include "workload/quantization.hpp"
#include "workload/rounds.hpp"
#include "workload/workload.hpp"

namespace onebit::workload {

/// Products with weights, of `model.precision`. \throws InputError if this build or machine has none of that precision
template <class Exec>
linalg::MatrixProduct<Exec, float> make_product(const config::Input& input);

/// P of nn::Transformer: the predictions of `batch` samples on one rank. \throws InputError if there are too many
int predictions(const config::Input& input, int batch);

/// `model.vocabulary` or, where that is 0, the tokeniser's, for which the text is read if it must be.
/// \throws InputError for a text that cannot be read
int vocabulary(const config::Input& input);

/// Reads the files of samples, for vocabulary and classes, and trains no tokeniser: its tokens then count as four bytes
/// of text each. \throws InputError as Transformer
Footprint transformer_footprint(const config::Input& input, int ranks);

/// Sample s of step t is the same on any rank.
template <class Exec>
class Transformer : public Workload<Exec> {
public:
  Transformer(const Exec& exec, const config::Input& input, const Share& share);

  const TensorTable& tensors() const override { return m_footprint.tensors; }
  double bytes() const override { return m_footprint.bytes; }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override;
  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientReady& ready_from) override;
  LossSum validation_loss(const Exec& exec, const Vector<Exec, float>& x,
                          const std::function<bool()>& goes_on) override;
  std::string samples() const override { return m_samples->summary(); }
  nn::QuantizationState quantization() const override { return m_model.quantization(); }
  double tokens_per_step() const override { return m_rounds.samples_of_step() * m_sequence; }

private:
  void to_device(const Exec& exec);

  int m_rank;
  std::uint64_t m_seed;
  int m_sequence;
  Rounds m_rounds;
  MeasuredSteps m_measures;
  data::Corpus m_corpus;
  nn::Shape m_shape;  ///< its `classes` come from `m_samples`
  std::unique_ptr<data::Samples> m_samples;
  Footprint m_footprint;
  nn::Transformer<Exec, float> m_model;
  data::Batch m_batch_on_host;
  nn::Tokens<Exec> m_tokens;
};

}  // namespace onebit::workload
