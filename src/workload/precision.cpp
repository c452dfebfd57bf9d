#include "workload/precision.hpp"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>
#include <vector>

#include "base/system/stop_signal.hpp"
#include "base/timer.hpp"
#include "config/checks.hpp"
#include "workload/transformer.hpp"

namespace onebit::workload {
namespace {

/// The model with at most two layers. Without the corpus, the vocabulary of its tokeniser is a guess.
nn::Shape trial_shape(const config::Input& input) {
  const auto& m = input.model;
  const int tokens = input.data.tokenizer == TokenizerKind::sentencepiece ? input.data.vocabulary : 257;
  const int layers = std::min(m.layers, 2), vocabulary = m.vocabulary != 0 ? m.vocabulary : tokens;
  nn::Shape shape{m.architecture, layers, m.hidden, m.heads, m.feed_forward, vocabulary, m.positions};
  if (input.workload.kind == WorkloadKind::classification) shape.classes = 2;
  shape.spans = input.workload.kind == WorkloadKind::spans;
  return shape;
}

/// Seconds that a gradient of one round takes the slowest rank: the least of three times, after one to warm up.
template <class Exec>
double measure(const Exec& exec, const config::Input& input, const Communicator& communicator, Precision precision) {
  const nn::Shape shape = trial_shape(input);
  const int batch = input.train.batch / (communicator.size() * input.train.accumulation);
  const int sequence = input.model.sequence, predictions = workload::predictions(input, batch);
  Vector<Exec, float> x, g;
  nn::Tokens<Exec> tokens;
  std::optional<nn::Transformer<Exec, float>> model;
  communicator.collectively([&] {
    x = make_uninitialized<Exec, float>("OneBit::workload::trial_parameters", nn::tensor_table(shape).size());
    g = make_uninitialized<Exec, float>("OneBit::workload::trial_gradient", x.extent(0));
    std::vector<int> inputs(static_cast<std::size_t>(batch) * sequence), rows(predictions);
    for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = static_cast<int>(i) % shape.vocabulary;
    for (std::size_t p = 0; p < rows.size(); ++p) rows[p] = static_cast<int>(p * inputs.size() / rows.size());
    tokens = {copy_to_device<Exec>("OneBit::workload::trial_tokens", inputs),
              copy_to_device<Exec>("OneBit::workload::trial_rows", rows),
              copy_to_device<Exec>("OneBit::workload::trial_targets", std::vector<int>(rows.size(), 0))};
    nn::initialize(exec, shape, static_cast<std::uint64_t>(input.run.seed), x);
    model.emplace(exec, shape, batch, sequence, predictions, 0.0f, linalg::MatrixProduct<Exec, float>(precision));
  });
  constexpr int repetitions = 3;
  double least = std::numeric_limits<double>::infinity();
  for (int repetition = 0; repetition <= repetitions; ++repetition) {
    communicator.collectively(StopSignal::check);  // the ranks begin together
    const Stopwatch watch;
    model->forward(exec, x, tokens, {});
    model->backward(exec, x, tokens, 1, false, g, {});
    fence(exec, "OneBit::workload::trial");
    const double seconds = watch.seconds();
    const std::vector<double> all = communicator.gather(&seconds, 1);
    if (repetition > 0) least = std::min(least, *std::max_element(all.begin(), all.end()));
  }
  return least;
}

}  // namespace

template <class Exec>
ChosenPrecision choose_precision(const Exec& exec, const config::Input& input, const Communicator& communicator) {
  if (input.model.precision != Precision::automatic)
    return {input.model.precision,
            input.given.count("model.precision") > 0 ? "the input says so" : "it is the default"};
  if (config::has_images(input)) return {Precision::fp32, "networks of images are not timed"};
  if (!config::has_model(input)) return {Precision::fp32, "the workload has no products"};
  const Region region("OneBit::workload::choose_precision");
  const std::string no_bf16 = linalg::missing<Exec>(Precision::bf16);
  if (!no_bf16.empty()) return {Precision::fp32, no_bf16};
  ChosenPrecision best{Precision::fp32, "a gradient of two layers took: "};
  double least = std::numeric_limits<double>::infinity();
  for (const Precision precision : {Precision::fp32, Precision::tf32, Precision::bf16}) {
    if (!linalg::missing<Exec>(precision).empty()) continue;
    const double seconds = measure(exec, input, communicator, precision);
    char text[64];
    std::snprintf(text, sizeof text, "%s%s %.3g ms", precision == Precision::fp32 ? "" : ", ",
                  to_string(precision).c_str(), 1e3 * seconds);
    best.reason += text;
    if (seconds >= least) continue;
    least = seconds;
    best.precision = precision;
  }
  return best;
}

#define ONEBIT_INSTANTIATE(Exec) \
  template ChosenPrecision choose_precision(const Exec&, const config::Input&, const Communicator&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
