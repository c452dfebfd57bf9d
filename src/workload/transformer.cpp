#include "workload/transformer.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "config/checks.hpp"
#include "data/labelled.hpp"
#include "data/sampler.hpp"

namespace onebit::workload {
namespace {

constexpr double validation_fraction = 0.1;  // of the text, at its end

data::CorpusOptions corpus_options(const config::Input& input) {
  data::CorpusOptions options;
  options.files = input.data.corpus;
  options.tokenizer = input.data.tokenizer;
  options.has_mask = input.model.architecture == Architecture::bert;
  options.vocabulary = input.data.vocabulary;
  options.cache_directory = input.data.cache.empty() ? input.run.output : input.data.cache;
  options.validation_fraction = validation_fraction;
  return options;
}

bool has_spans(const config::Input& input) { return input.workload.kind == WorkloadKind::spans; }

data::Objective objective(const config::Input& input) {
  return input.model.architecture == Architecture::bert ? data::Objective::masked : data::Objective::causal;
}

nn::Shape shape(const config::Input& input, int tokenizer_vocabulary) {
  const auto& m = input.model;
  if (m.vocabulary != 0 && m.vocabulary < tokenizer_vocabulary)
    throw InputError(input.where("model.vocabulary"),
                     "model.vocabulary is " + std::to_string(m.vocabulary) + ", fewer than the tokeniser's " +
                         std::to_string(tokenizer_vocabulary) + " tokens",
                     "raise model.vocabulary, or set it to 0");
  const int vocabulary = m.vocabulary != 0 ? m.vocabulary : tokenizer_vocabulary;
  nn::Shape shape{m.architecture, m.layers, m.hidden, m.heads, m.feed_forward, vocabulary, m.positions};
  shape.next_sentence_head = m.architecture == Architecture::bert;
  shape.mean_pooling = m.pooling == Pooling::mean;
  shape.second_text = m.second_text;
  shape.spans = has_spans(input);
  shape.initializer_range = m.initializer_range;
  shape.quantization = quantization(input);
  return shape;
}

/// Makes the source of batches.
/// \param shape     gets the number of classes
std::unique_ptr<data::Samples> make_samples(const config::Input& input, const data::Corpus& corpus,
                                            const Rounds& rounds, nn::Shape& shape) {
  const auto seed = static_cast<std::uint64_t>(input.run.seed);
  const int sequence = input.model.sequence;
  if (!config::has_labelled_texts(input))
    return located(input.where("model.sequence"),
                   [&] { return std::make_unique<data::Sampler>(corpus, objective(input), sequence, seed); });
  const data::SampleForm form{
      input.model.architecture == Architecture::bert ? data::Summary::first : data::Summary::last, sequence,
      input.model.second_text, has_spans(input) ? data::Label::answer : data::Label::of_class};
  return located(input.where("data.labelled"), [&] {
    auto samples = std::make_unique<data::LabelledSamples>(input.data.labelled, input.data.labelled_validation,
                                                           corpus.tokenizer(), form, seed);
    rounds.check_validation(input, samples->validation_size(), input.data.labelled_validation);
    shape.classes = static_cast<int>(samples->classes().size());
    return samples;
  });
}

/// Bytes of what nn::Transformer keeps of a batch of B samples for the backward pass, and of its scratch.
/// docs/develop/performance/memory.md has the sums. In double, because products of the input's numbers overflow
/// integers.
double activation_bytes(const config::Input& input, const nn::Shape& shape, const TensorTable& tensors, int batch) {
  const double L = shape.layers, H = shape.hidden, A = shape.heads, F = shape.feed_forward,
               V = shape.outputs(input.model.sequence);
  const double N = static_cast<double>(batch) * input.model.sequence, P = 1.0 * batch * predictions(input, 1);
  const double head = shape.architecture == Architecture::bert ? 6 : 2, dropout = input.model.dropout > 0 ? 1 : 0;
  const double kept = (2 * L + 1) * (2 * N * H + 2 * N) + L * N * (4 * H + F + A) + P * V + head * P * H +
                      N * std::max(F, 3 * H) + (2 + dropout) * N * H;
  double bytes = sizeof(float) * kept;
  if (input.model.precision == Precision::bf16) {  // copies: weights, inputs of dense layers, two factors
    const double factor = std::max({N * std::max(F, 3 * H), P * V, H * std::max({V, F, 3 * H})});
    bytes += 2 * (static_cast<double>(tensors.size()) + 3 * L * N * H + 2 * factor);
  }
  // Of a quantised layer of K inputs and D outputs: 3 N K bits and 16 N D bits, or 8 N K bits.
  const bool quantized = shape.quantization.kind != QuantizationKind::none;
  const double of_layer = shape.quantization.layer_bits == 8 ? 8 * (3 * H + F) : 3 * (3 * H + F) + 16 * (5 * H + F);
  return bytes + (quantized ? L * N * of_layer / 8 : 0);
}

/// \param tokens of the corpus, each an int
Footprint footprint_of(const config::Input& input, const nn::Shape& shape, std::size_t tokens, int batch) {
  Footprint footprint;
  footprint.tensors = located(input.where("model.quantization.exclude"), [&] { return nn::tensor_table(shape); });
  footprint.bytes = activation_bytes(input, shape, footprint.tensors, batch) +
                    static_cast<double>(sizeof(int)) * static_cast<double>(tokens);
  footprint.keys = {"model.layers",    "model.hidden",   "model.feed_forward", "model.vocabulary",
                    "model.positions", "model.sequence", "train.batch",        "model.preset"};
  return footprint;
}

std::size_t tokens_of(const data::Corpus& corpus) { return corpus.train().size() + corpus.validation().size(); }

/// That of a run whose tokeniser has yet to be trained, which may take minutes. Its files are read.
Footprint footprint_before_training(const config::Input& input, int batch) {
  const std::size_t bytes =
      located(input.where("data.corpus"), [&] { return data::read_text_files(input.data.corpus, true).size(); });
  nn::Shape untrained = shape(input, input.data.vocabulary);
  constexpr std::size_t bytes_of_token = 4;
  if (!config::has_labelled_texts(input)) return footprint_of(input, untrained, bytes / bytes_of_token, batch);
  located(input.where("data.labelled"), [&] { data::read_text_files({input.data.labelled}, true); });
  located(input.where("data.labelled_validation"),
          [&] { data::read_text_files({input.data.labelled_validation}, true); });
  if (!untrained.spans) untrained.classes = 2;
  return footprint_of(input, untrained, bytes / bytes_of_token, batch);
}

}  // namespace

int vocabulary(const config::Input& input) {
  if (input.model.vocabulary != 0) return input.model.vocabulary;
  if (input.data.tokenizer == TokenizerKind::sentencepiece) return input.data.vocabulary;
  if (input.data.tokenizer == TokenizerKind::bytes) return data::make_byte_tokenizer()->vocabulary();
  return located(input.where("data.corpus"), [&] { return data::Corpus(corpus_options(input)).vocabulary(); });
}

int predictions(const config::Input& input, int batch) {
  if (config::has_labelled_texts(input)) return has_spans(input) ? 2 * batch : batch;
  return located(input.where("train.batch"),
                 [&] { return data::predictions(objective(input), batch, input.model.sequence); });
}

template <class Exec>
linalg::MatrixProduct<Exec, float> make_product(const config::Input& input) {
  return located(input.where("model.precision"),
                 [&] { return linalg::MatrixProduct<Exec, float>(input.model.precision); });
}

Footprint transformer_footprint(const config::Input& input, int ranks) {
  const Rounds rounds(input, ranks);
  const int batch = rounds.batch;
  predictions(input, batch);  // which refuses too many
  if (input.data.tokenizer == TokenizerKind::sentencepiece) return footprint_before_training(input, batch);
  const data::Corpus corpus = located(input.where("data.corpus"), [&] { return data::Corpus(corpus_options(input)); });
  nn::Shape with_classes = shape(input, corpus.vocabulary());
  make_samples(input, corpus, rounds, with_classes);
  return footprint_of(input, with_classes, tokens_of(corpus), batch);
}

template <class Exec>
Transformer<Exec>::Transformer(const Exec& exec, const config::Input& input, const Share& share)
    : m_rank(share.rank),
      m_seed(input.run.seed),
      m_sequence(input.model.sequence),
      m_rounds(input, share.ranks),
      m_measures(input, share.rank),
      m_corpus(located(input.where("data.corpus"), [&] { return data::Corpus(corpus_options(input)); })),
      m_shape(shape(input, m_corpus.vocabulary())),
      m_samples(make_samples(input, m_corpus, m_rounds, m_shape)),
      m_footprint(check_memory(input, footprint_of(input, m_shape, tokens_of(m_corpus), m_rounds.batch), share)),
      m_model(exec, m_shape, m_rounds.batch, m_sequence, predictions(input, m_rounds.batch),
              static_cast<float>(input.model.dropout), make_product<Exec>(input)) {
  const std::size_t rows = static_cast<std::size_t>(m_rounds.batch) * m_sequence;
  const std::size_t predicted = predictions(input, m_rounds.batch);
  m_tokens.input = make_uninitialized<Exec, int>("OneBit::workload::input", rows);
  m_tokens.predicted = make_uninitialized<Exec, int>("OneBit::workload::predicted", predicted);
  m_tokens.target = make_uninitialized<Exec, int>("OneBit::workload::target", predicted);
}

template <class Exec>
void Transformer<Exec>::initialize(const Exec& exec, const Vector<Exec, float>& x) {
  nn::initialize<Exec, float>(exec, m_shape, m_seed, x);
}

template <class Exec>
double Transformer<Exec>::gradient(const Exec& exec, const Vector<Exec, float>& x, long step,
                                   const Vector<Exec, float>& g, PhaseTimes& times, const GradientReady& ready_from) {
  const Region region("OneBit::workload::transformer");
  Stopwatch watch;
  double loss = 0;
  for (int round = 0; round < m_rounds.of_step; ++round) {
    const std::uint64_t first = m_rounds.first_sample(m_rank, round);
    m_samples->draw(step, first, m_rounds.batch, m_batch_on_host);
    to_device(exec);
    loss += m_model.forward(exec, x, m_tokens, {m_seed, static_cast<std::uint64_t>(step), first});
    times.add(Phase::forward, watch.restart());
    const bool last = round + 1 == m_rounds.of_step;
    m_model.measure_quantizers(last ? m_measures(step) : nn::QuantizerMeasures::none);
    m_model.backward(exec, x, m_tokens, 1.0f / static_cast<float>(m_rounds.of_step), round > 0, g,
                     last ? ready_from : GradientReady());
    fence(exec, "OneBit::workload::transformer");
    times.add(Phase::backward, watch.restart());
  }
  return loss / m_rounds.of_step;
}

template <class Exec>
LossSum Transformer<Exec>::validation_loss(const Exec& exec, const Vector<Exec, float>& x,
                                           const std::function<bool()>& goes_on) {
  const Region region("OneBit::workload::validation");
  LossSum loss;
  double right = 0, f1 = 0;
  for (int round = 0; round < m_rounds.of_validation; ++round) {
    m_samples->draw_validation(m_rounds.first_validation_sample(m_rank, round), m_rounds.batch, m_batch_on_host);
    to_device(exec);
    loss.sum += m_rounds.batch * m_model.loss(exec, x, m_tokens);
    right += m_rounds.batch * m_model.accuracy(exec, m_tokens);
    if (m_shape.spans) f1 += m_rounds.batch * m_model.f1(exec, m_tokens);
    loss.samples += m_rounds.batch;
    if (!goes_on()) return {};
  }
  loss.right = right;
  if (m_shape.spans) loss.f1 = f1;
  return loss;
}

template <class Exec>
void Transformer<Exec>::to_device(const Exec& exec) {
  copy_batch(exec, m_batch_on_host.input, m_tokens.input);
  copy_batch(exec, m_batch_on_host.predicted, m_tokens.predicted);
  copy_batch(exec, m_batch_on_host.target, m_tokens.target);
}

#define ONEBIT_INSTANTIATE(Exec)                                                  \
  template linalg::MatrixProduct<Exec, float> make_product(const config::Input&); \
  template class Transformer<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
