#include "nn/transformer.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "nn/quantized/binary_layers.hpp"
#include "nn/quantized/eight_bit_layers.hpp"

namespace onebit::nn {

namespace {

/// Parameters of a quantised layer.
template <class Exec, class Real>
QuantizedParameters<Exec, Real> quantized_parameters(const Vector<Exec, const Real>& x,
                                                     const ParameterOffsets::Dense& layer) {
  return {matrix_at<Exec>(x, layer.weight, layer.extents.outputs, layer.extents.inputs),
          vector_at<Exec>(x, layer.gamma, layer.gamma_length)};
}

template <class Exec, class Real>
std::unique_ptr<QuantizedLayers<Exec, Real>> make_quantized_layers(const Quantization& quantization,
                                                                   const std::vector<DenseExtents>& layers) {
  if (quantization.layer_bits == 8) return std::make_unique<EightBitLayers<Exec, Real>>(quantization, layers);
  return std::make_unique<BinaryLayers<Exec, Real>>(quantization, layers);
}

}  // namespace

/// The tensors whose gradient no product writes, in ranges of at most block_length elements.
std::vector<Range> summed_ranges(const ParameterOffsets& offsets) {
  std::vector<Range> ranges;
  for (const Tensor& tensor : offsets.table.tensors()) {
    const auto& products = offsets.multiplied;
    if (std::find(products.begin(), products.end(), tensor.offset) != products.end()) continue;
    const std::size_t end = tensor.offset + tensor.size();
    for (std::size_t begin = tensor.offset; begin < end; begin += block_length)
      ranges.push_back({begin, std::min(begin + block_length, end)});
  }
  return ranges;
}

/// g ← 0 in each of the ranges.
template <class Exec, class Real>
void set_zero(const Exec& exec, const Vector<Exec, Range>& ranges, const Vector<Exec, Real>& g) {
  for_each_row(
      exec, "OneBit::nn::set_zero", static_cast<int>(ranges.extent(0)),
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int k) {
        const Range range = ranges(k);
        team.for_each(static_cast<int>(range.end - range.begin), [&](int i) { g(range.begin + i) = 0; });
      });
}

template <class Exec, class Real>
Transformer<Exec, Real>::Transformer(const Exec& exec, const Shape& shape, int batch, int sequence, int predictions,
                                     Real dropout, linalg::MatrixProduct<Exec, Real> product)
    : m_shape(shape),
      m_offsets(shape),
      m_product(std::move(product)),
      m_quantized(make_quantized_layers<Exec, Real>(shape.quantization, m_offsets.quantized_extents(batch * sequence))),
      m_attention{
          batch, shape.heads, sequence, shape.hidden, shape.architecture == Architecture::gpt, m_product.precision()},
      m_rows(batch * sequence),
      m_predictions(predictions),
      m_outputs(shape.outputs(sequence)),
      m_dropout(dropout),
      m_epsilon(shape.architecture == Architecture::bert ? Real(1e-12) : Real(1e-5)),
      m_inputs(shape.layers),
      m_loss_sum(predictions) {
  check_model(batch > 0 && sequence > 0, "a batch has no tokens", "ask for at least one sample of one token");
  check_model(sequence <= shape.positions,
              "a sequence of " + std::to_string(sequence) + " tokens is longer than the " +
                  std::to_string(shape.positions) + " positions of the model",
              "shorten the sequence or give the model more positions");
  check_model(
      shape.second_text >= 0 && shape.second_text < sequence,
      "the second text begins at position " + std::to_string(shape.second_text) + " of " + std::to_string(sequence),
      "let it begin behind the first one's tokens, or at 0 for one text");
  check_model(predictions > 0 && predictions <= m_rows,
              std::to_string(predictions) + " predictions in a batch of " + std::to_string(m_rows) + " tokens",
              "predict at least one token and at most all of them");
  const int of_sample = shape.spans ? 2 : 1;
  check_model(shape.has_language_head() || predictions == of_sample * batch,
              std::to_string(predictions) + " predictions for " + std::to_string(batch) + " samples",
              "predict one class for each sample, or the two ends of its span");
  check_model(dropout >= 0 && dropout < 1, "dropout " + std::to_string(dropout) + " is not in [0, 1)",
              "0.1 is usual, 0 turns it off");
  check_model(sequence <= 65536 && shape.layers < 20000, "dropout cannot tell so many positions or layers apart",
              "use at most 65536 positions and 20000 layers");

  const std::size_t N = m_rows, P = predictions, H = shape.hidden, F = shape.feed_forward, V = m_outputs,
                    L = shape.layers, norms = 2 * L + 1;
  const bool bert = shape.architecture == Architecture::bert;
  const auto buffer = [](const char* name, std::size_t length) {
    return make_uninitialized<Exec, Real>(std::string("OneBit::nn::Transformer::") + name, length);
  };
  m_norm_input = buffer("norm_input", norms * N * H);
  m_norm_output = buffer("norm_output", norms * N * H);
  m_mean = buffer("mean", norms * N);
  m_reciprocal_std = buffer("reciprocal_std", norms * N);
  m_qkv = buffer("qkv", L * N * 3 * H);
  m_attention_log_sums = buffer("attention_log_sums", L * N * shape.heads);
  m_context = buffer("context", L * N * H);
  m_feed_forward = buffer("feed_forward", L * N * F);
  if (shape.spans) {
    m_scores = buffer("scores", N * 2);
  } else {
    m_head_output = buffer("head_output", P * H);
    m_d_head = buffer("d_head", P * H);
  }
  if (shape.classes > 0 || (bert && shape.has_language_head())) {
    m_predicted = buffer("predicted", P * H);
    m_head_input = buffer("head_input", P * H);
  }
  if (bert && shape.has_language_head()) {
    m_head_gelu = buffer("head_gelu", P * H);
    m_head_mean = buffer("head_mean", P);
    m_head_reciprocal_std = buffer("head_reciprocal_std", P);
    m_d_head_gelu = buffer("d_head_gelu", P * H);
  }
  m_logits = buffer("logits", P * V);
  m_attention_scratch = buffer("attention_scratch", m_attention.scratch_size(exec));
  m_wide = buffer("wide", N * std::max(F, 3 * H));
  m_d_norm = buffer("d_norm", N * H);
  m_d_residual = buffer("d_residual", N * H);
  if (dropout > 0) m_d_branch = buffer("d_branch", N * H);
  const std::size_t row_blocks = row_block_count<Exec>(m_rows), head_blocks = row_block_count<Exec>(predictions);
  m_sums = buffer("sums", std::max({row_blocks * 3 * H, row_blocks * F, head_blocks * 3 * H, head_blocks * V}));
  m_losses = buffer("losses", P);
  m_links = make_uninitialized<Exec, int>("OneBit::nn::Transformer::links", 2 * N);
  m_summed = copy_to_device<Exec>("OneBit::nn::Transformer::summed", summed_ranges(m_offsets));
}

template <class Exec, class Real>
MatrixRef<Exec, Real> Transformer<Exec, Real>::rows_of(const Buffer& buffer, int number, int columns) const {
  return matrix_at<Exec>(buffer, static_cast<std::size_t>(number) * m_rows * columns, m_rows, columns);
}

template <class Exec, class Real>
VectorRef<Exec, Real> Transformer<Exec, Real>::attention_log_sums(int layer) const {
  const int rows = m_rows * m_shape.heads;
  return vector_at<Exec>(m_attention_log_sums, static_cast<std::size_t>(layer) * rows, rows);
}

template <class Exec, class Real>
LayerNorm<Exec, Real> Transformer<Exec, Real>::norm(const Vector<Exec, const Real>& x, int k) const {
  const int H = m_shape.hidden;
  const std::size_t first_row = static_cast<std::size_t>(k) * m_rows;
  const auto weight = vector_at<Exec>(x, m_offsets.norms[k].weight, H);
  const auto bias = vector_at<Exec>(x, m_offsets.norms[k].bias, H);
  const auto mean = vector_at<Exec>(m_mean, first_row, m_rows);
  const auto reciprocal_std = vector_at<Exec>(m_reciprocal_std, first_row, m_rows);
  return {weight, bias, m_epsilon, rows_of(m_norm_input, k, H), rows_of(m_norm_output, k, H), mean, reciprocal_std};
}

template <class Exec, class Real>
LayerNorm<Exec, Real> Transformer<Exec, Real>::head_norm(const Vector<Exec, const Real>& x) const {
  const int P = m_predictions, H = m_shape.hidden;
  const auto weight = vector_at<Exec>(x, m_offsets.head_norm.weight, H);
  const auto bias = vector_at<Exec>(x, m_offsets.head_norm.bias, H);
  const auto input = matrix_at<Exec>(m_head_gelu, 0, P, H), output = matrix_at<Exec>(m_head_output, 0, P, H);
  return {weight, bias, m_epsilon, input, output, m_head_mean, m_head_reciprocal_std};
}

template <class Exec, class Real>
double Transformer<Exec, Real>::accuracy(const Exec& exec, const Tokens<Exec>& tokens) {
  const Region region("OneBit::nn::accuracy");
  if (m_shape.spans) return span_measure(exec, SpanMeasure::exact, tokens);
  Kernels::is_right(exec, tokens.target, logit_matrix(), m_losses);
  return sum_losses<Exec, Real>(exec, m_loss_sum, m_losses) / m_predictions;
}

template <class Exec, class Real>
double Transformer<Exec, Real>::span_measure(const Exec& exec, SpanMeasure of, const Tokens<Exec>& tokens) {
  Spans<Exec, Real>::measure(exec, of, tokens.predicted, tokens.target, logit_matrix(), m_losses);
  return sum_losses<Exec, Real>(exec, m_loss_sum, m_losses) / m_predictions;
}

template <class Exec, class Real>
double Transformer<Exec, Real>::run(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens,
                                    Real dropout, const DropoutKey& key, CrossEntropyOutput output) {
  const Region region("OneBit::nn::forward");
  m_dropout_now = dropout;
  m_key = key;
  const int H = m_shape.hidden, F = m_shape.feed_forward;
  const bool bert = m_shape.architecture == Architecture::bert;
  m_product.prepare(exec, MatrixRef<Exec, const Real>(x.data(), 1, x.extent(0)), m_weights);
  const auto dense_of_layer = [&](const Dense& layer, const Factor& from, const RealMatrix& to) {
    if (layer.quantized)
      m_quantized->forward(exec, m_product, layer.number, from.matrix, quantized_parameters(x, layer), to);
    else
      dense(exec, layer.weight, from, to);
  };
  // A factor that the backward pass reads, too.
  const auto keep = [&](const Dense& layer, const RealMatrix& from, Factor& factor) {
    if (layer.quantized)
      factor = from;
    else
      m_product.prepare(exec, from, factor);
  };
  const auto bias = [&](std::size_t offset, int out) { return vector_at<Exec>(x, offset, out); };
  const auto residual = [&](const LayerNorm<Exec, Real>& norm) { return bert ? norm.output : norm.input; };

  const LayerNorm<Exec, Real> first = norm(x, 0);
  const int T = m_attention.sequence;
  const Embeddings<Exec, Real> embeddings{matrix_at<Exec>(x, m_offsets.word, m_shape.vocabulary, H),
                                          matrix_at<Exec>(x, m_offsets.position, m_shape.positions, H),
                                          matrix_at<Exec>(x, m_offsets.type, bert ? 2 : 0, H), T,
                                          m_shape.second_text > 0 ? m_shape.second_text : T};
  Kernels::embed(exec, embeddings, tokens.input, first.input);
  if (!bert) Kernels::drop_out(exec, residual_dropout(0), first.input);
  Kernels::layer_norm(exec, first);
  if (bert) Kernels::drop_out(exec, residual_dropout(0), first.output);

  for (int l = 0; l < m_shape.layers; ++l) {
    const ParameterOffsets::Layer& offsets = m_offsets.layers[l];
    LayerInputs& inputs = m_inputs[l];
    const LayerNorm<Exec, Real> before = norm(x, 2 * l), between = norm(x, 2 * l + 1), after = norm(x, 2 * l + 2);

    const auto qkv = rows_of(m_qkv, l, 3 * H), context = rows_of(m_context, l, H);
    keep(offsets.qkv, before.output, inputs.qkv);
    dense_of_layer(offsets.qkv, inputs.qkv, qkv);
    Kernels::add_bias(exec, bias(offsets.qkv.bias, 3 * H), qkv, {}, qkv);
    m_attention.forward(exec, qkv, attention_dropout(l), attention_log_sums(l), m_attention_scratch, context);
    keep(offsets.attention_output, context, inputs.attention_output);
    dense_of_layer(offsets.attention_output, inputs.attention_output, between.input);
    Kernels::residual_layer_norm(exec, residual(before), bias(offsets.attention_output.bias, H),
                                 residual_dropout(2 * l + 1), between);

    const auto inner = rows_of(m_feed_forward, l, F), gelu = rows_of(m_wide, 0, F);
    keep(offsets.feed_forward_input, between.output, inputs.feed_forward_input);
    dense_of_layer(offsets.feed_forward_input, inputs.feed_forward_input, inner);
    Kernels::bias_gelu(exec, bias(offsets.feed_forward_input.bias, F), inner, gelu);
    dense_of_layer(offsets.feed_forward_output, gelu, after.input);
    Kernels::residual_layer_norm(exec, residual(between), bias(offsets.feed_forward_output.bias, H),
                                 residual_dropout(2 * l + 2), after);
  }

  return head(exec, x, tokens, output);
}

template <class Exec, class Real>
void Transformer<Exec, Real>::dense(const Exec& exec, std::size_t weight, const Factor& from, const RealMatrix& to) {
  Kernels::dense(exec, m_product, from, m_weights.part(weight, to.extent_int(1), from.matrix.extent_int(1)), to);
}

template <class Exec, class Real>
double Transformer<Exec, Real>::head(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens,
                                     CrossEntropyOutput output) {
  const int H = m_shape.hidden;
  const bool bert = m_shape.architecture == Architecture::bert;
  const auto bias = [&](std::size_t offset, int out) { return vector_at<Exec>(x, offset, out); };
  const int P = m_predictions, outputs = m_outputs;
  const bool classes = m_shape.classes > 0, has_bias = m_shape.has_language_head() ? bert : classes;
  const auto last = rows_of(m_norm_output, 2 * m_shape.layers, H), logits = logit_matrix();
  const auto head_output = matrix_at<Exec>(m_head_output, 0, P, H);
  if (m_shape.spans) {
    const auto scores = rows_of(m_scores, 0, 2);
    dense(exec, m_offsets.output.weight, last, scores);
    Spans<Exec, Real>::gather(exec, tokens.predicted, scores, logits);
  } else if (bert || classes) {
    const auto predicted = matrix_at<Exec>(m_predicted, 0, P, H), head_input = matrix_at<Exec>(m_head_input, 0, P, H);
    if (classes && m_shape.mean_pooling)
      Kernels::mean_rows(exec, last, predicted);
    else
      Kernels::gather_rows(exec, tokens.predicted, last, predicted);
    dense(exec, m_offsets.head_dense.weight, predicted, head_input);
    if (classes) {
      Kernels::bias_tanh(exec, bias(m_offsets.head_dense.bias, H), head_input);
      Kokkos::deep_copy(exec, head_output, head_input);
      Kernels::drop_out(exec, classifier_dropout(), head_output);
    } else {
      const LayerNorm<Exec, Real> norm = head_norm(x);
      Kernels::bias_gelu(exec, bias(m_offsets.head_dense.bias, H), head_input, norm.input);
      Kernels::layer_norm(exec, norm);
    }
  } else {
    Kernels::gather_rows(exec, tokens.predicted, last, head_output);
  }
  if (!m_shape.spans) dense(exec, m_offsets.output.weight, head_output, logits);
  Kernels::cross_entropy(exec, bias(m_offsets.output.bias, has_bias ? outputs : 0), tokens.target, output, logits,
                         m_losses);
  return sum_losses<Exec, Real>(exec, m_loss_sum, m_losses) / P;
}

/// The arguments of a backward pass, and the gradients that go from each half of a layer to the half before it.
template <class Exec, class Real>
struct Transformer<Exec, Real>::BackwardPass {
  const Exec& exec;
  Transformer& model;
  const Vector<Exec, const Real>& x;
  const Vector<Exec, Real>& g;
  bool add;
  RealMatrix d_norm;      ///< (N, H) at n_k
  RealMatrix d_residual;  ///< (N, H) at z_k

  VectorRef<Exec, Real> d_bias(std::size_t bias, int length) const { return vector_at<Exec>(g, bias, length); }
  LayerNormGradient<Exec, Real> d_parameters(ParameterOffsets::WeightAndBias norm, std::size_t branch_bias,
                                             int branch_channels) const {
    const int H = d_norm.extent_int(1);
    return {d_bias(norm.weight, H), d_bias(norm.bias, H), d_bias(branch_bias, branch_channels)};
  }
  /// scale · d_output as the factor of the products of its dense layer, until the next layer's.
  const Factor& factor(const RealMatrix& matrix, Real scale = 1) const {
    model.m_product.prepare(exec, matrix, model.m_d_output, scale);
    return model.m_d_output;
  }
  void dense_weight(std::size_t weight, const Factor& d_output, const Factor& input, Real scale = 1) const {
    const int out = d_output.matrix.extent_int(1), in = input.matrix.extent_int(1);
    Kernels::dense_backward_weight(exec, model.m_product, d_output, input, add, matrix_at<Exec>(g, weight, out, in),
                                   scale);
  }
  void dense_input(std::size_t weight, const Factor& d_output, const RealMatrix& d_input, bool adds = false,
                   Real scale = 1) const {
    const int out = d_output.matrix.extent_int(1), in = d_input.extent_int(1);
    Kernels::dense_backward_input(exec, model.m_product, d_output, model.m_weights.part(weight, out, in), adds, d_input,
                                  scale);
  }

  // The same of a layer's dense layers.
  const Factor& factor(const Dense& layer, const RealMatrix& matrix) const {
    if (!layer.quantized) return factor(matrix);
    model.m_d_output.matrix = matrix;
    return model.m_d_output;
  }
  QuantizerKey quantizer_key(const Dense& layer) const {
    return {model.m_key.seed, model.m_key.step, model.m_key.first_sample, layer.number};
  }
  void dense_parameters(const Dense& layer, const Factor& d_output, const Factor& input) const {
    if (!layer.quantized) return dense_weight(layer.weight, d_output, input);
    const int inputs = layer.extents.inputs, outputs = layer.extents.outputs;
    model.m_quantized->backward_parameters(
        exec, quantizer_key(layer), model.m_product, d_output.matrix, quantized_parameters(x, layer), add, model.m_sums,
        matrix_at<Exec>(g, layer.weight, outputs, inputs), vector_at<Exec>(g, layer.gamma, layer.gamma_length));
  }
  void dense_input(const Dense& layer, const Factor& d_output, const RealMatrix& d_input, bool adds = false) const {
    if (!layer.quantized) return dense_input(layer.weight, d_output, d_input, adds);
    model.m_quantized->backward_input(exec, quantizer_key(layer), model.m_product, d_output.matrix,
                                      quantized_parameters(x, layer), adds, d_input);
  }
};

template <class Exec, class Real>
void Transformer<Exec, Real>::spans_backward(const BackwardPass& pass, Real scale) {
  const auto d_scores = rows_of(m_scores, 0, 2), last = rows_of(m_norm_output, 2 * m_shape.layers, m_shape.hidden);
  Spans<Exec, Real>::gather_backward(pass.exec, logit_matrix(), d_scores);
  const Factor& d_output = pass.factor(d_scores, scale / m_predictions);
  pass.dense_input(m_offsets.output.weight, d_output, pass.d_norm, false, scale / m_predictions);
  pass.dense_weight(m_offsets.output.weight, d_output, last, scale / m_predictions);
}

template <class Exec, class Real>
void Transformer<Exec, Real>::head_backward(const BackwardPass& pass, const Tokens<Exec>& tokens, Real scale) {
  if (m_shape.spans) return spans_backward(pass, scale);
  const int P = m_predictions, H = m_shape.hidden, outputs = m_outputs;
  const bool bert = m_shape.architecture == Architecture::bert, classes = m_shape.classes > 0;
  const auto head_input = matrix_at<Exec>(m_head_input, 0, P, H), predicted = matrix_at<Exec>(m_predicted, 0, P, H);
  const auto head_output = matrix_at<Exec>(m_head_output, 0, P, H), d_head = matrix_at<Exec>(m_d_head, 0, P, H);
  // The forward pass left P times the gradient of the mean loss in the place of the logits.
  const auto d_logits = logit_matrix();
  const Factor& d_output = pass.factor(d_logits, scale / P);
  pass.dense_input(m_offsets.output.weight, d_output, d_head, false, scale / P);
  pass.dense_weight(m_offsets.output.weight, d_output, head_output, scale / P);
  if (bert || classes) {
    const ParameterOffsets::WeightAndBias& dense = m_offsets.head_dense;
    // The head's output is no longer needed, so a classifier's gradient takes its place.
    const auto d_dense = classes ? head_output : matrix_at<Exec>(m_d_head_gelu, 0, P, H);
    Kernels::add_bias_backward(pass.exec, d_logits, m_sums, pass.d_bias(m_offsets.output.bias, outputs), scale / P);
    if (classes) {
      Kokkos::deep_copy(pass.exec, d_dense, d_head);
      Kernels::drop_out(pass.exec, classifier_dropout(), d_dense);
      Kernels::bias_tanh_backward(pass.exec, head_input, d_dense, m_sums, pass.d_bias(dense.bias, H));
    } else {
      Kernels::layer_norm_backward(pass.exec, head_norm(pass.x), d_head, false, d_dense, Dropout<Real>(), d_dense,
                                   m_sums, pass.d_parameters(m_offsets.head_norm, 0, 0));
      Kernels::bias_gelu_backward(pass.exec, head_input, d_dense, m_sums, pass.d_bias(dense.bias, H));
    }
    const Factor& d_first = pass.factor(d_dense);
    pass.dense_weight(dense.weight, d_first, predicted);
    pass.dense_input(dense.weight, d_first, d_head);
  }
  if (classes && m_shape.mean_pooling)
    Kernels::mean_rows_backward(pass.exec, d_head, pass.d_norm);
  else
    Kernels::gather_rows_backward(pass.exec, tokens.predicted, d_head, pass.d_norm);
}

/// From d_norm to d_residual and to the gradient at half_k(n_{k−1}), which is returned. BERT's residual is n_k, whose
/// gradient is in d_norm already. GPT's is z_k, whose gradient is in d_residual, except that of the last k, which has
/// none.
template <class Exec, class Real>
MatrixRef<Exec, Real> Transformer<Exec, Real>::norm_backward(const BackwardPass& pass, int k, std::size_t branch_bias) {
  const bool bert = m_shape.architecture == Architecture::bert, has_residual = !bert && k < 2 * m_shape.layers;
  const Dropout<Real> dropout = residual_dropout(k);
  const auto d_branch = dropout.active() ? rows_of(m_d_branch, 0, m_shape.hidden) : pass.d_residual;
  Kernels::layer_norm_backward(pass.exec, norm(pass.x, k), pass.d_norm, has_residual, pass.d_residual, dropout,
                               d_branch, m_sums, pass.d_parameters(m_offsets.norms[k], branch_bias, m_shape.hidden));
  return d_branch;
}

template <class Exec, class Real>
const linalg::Factor<Exec, Real>& Transformer<Exec, Real>::feed_forward_backward(const BackwardPass& pass, int l) {
  const int F = m_shape.feed_forward;
  const ParameterOffsets::Layer& offsets = m_offsets.layers[l];
  const auto inner = rows_of(m_feed_forward, l, F), d_inner = rows_of(m_wide, 0, F);
  const Factor& d_branch =
      pass.factor(offsets.feed_forward_output, norm_backward(pass, 2 * l + 2, offsets.feed_forward_output.bias));
  pass.dense_input(offsets.feed_forward_output, d_branch, d_inner);
  Kernels::bias_gelu_backward(pass.exec, inner, d_inner, m_sums, pass.d_bias(offsets.feed_forward_input.bias, F));
  pass.dense_parameters(offsets.feed_forward_output, d_branch, inner);
  const Factor& d_output = pass.factor(offsets.feed_forward_input, d_inner);
  pass.dense_parameters(offsets.feed_forward_input, d_output, m_inputs[l].feed_forward_input);
  return d_output;
}

template <class Exec, class Real>
const linalg::Factor<Exec, Real>& Transformer<Exec, Real>::attention_backward(const BackwardPass& pass, int l) {
  const int H = m_shape.hidden;
  const ParameterOffsets::Layer& offsets = m_offsets.layers[l];
  const auto qkv = rows_of(m_qkv, l, 3 * H), d_qkv = rows_of(m_wide, 0, 3 * H), context = rows_of(m_context, l, H);
  const Factor& d_branch =
      pass.factor(offsets.attention_output, norm_backward(pass, 2 * l + 1, offsets.attention_output.bias));
  const auto d_context = pass.d_norm;  // no longer needed
  pass.dense_input(offsets.attention_output, d_branch, d_context);
  pass.dense_parameters(offsets.attention_output, d_branch, m_inputs[l].attention_output);
  m_attention.backward(pass.exec, qkv, context, d_context, attention_dropout(l), attention_log_sums(l),
                       m_attention_scratch, d_qkv);
  Kernels::add_bias_backward(pass.exec, d_qkv, m_sums, pass.d_bias(offsets.qkv.bias, 3 * H));
  const Factor& d_output = pass.factor(offsets.qkv, d_qkv);
  pass.dense_parameters(offsets.qkv, d_output, m_inputs[l].qkv);
  return d_output;
}

template <class Exec, class Real>
void Transformer<Exec, Real>::backward(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens,
                                       Real scale, bool add, const Vector<Exec, Real>& g,
                                       const GradientReady& ready_from) {
  const Region region("OneBit::nn::backward");
  if (!add) set_zero(exec, m_summed, g);
  m_quantized->start_state(m_quantizer_measures);
  const int H = m_shape.hidden;
  const bool bert = m_shape.architecture == Architecture::bert;
  m_weights.matrix = MatrixRef<Exec, const Real>(x.data(), 1, x.extent(0));  // the same values as in `forward`
  BackwardPass pass{exec, *this, x, g, add, rows_of(m_d_norm, 0, H), rows_of(m_d_residual, 0, H)};
  head_backward(pass, tokens, scale);

  // From the gradient at the output of a half's first dense layer to d_norm at its input. BERT adds the gradient of the
  // residual.
  const auto first_dense_backward = [&](const Dense& layer, const Factor& d_output) {
    pass.dense_input(layer, d_output, bert ? pass.d_residual : pass.d_norm, bert);
    if (bert) std::swap(pass.d_norm, pass.d_residual);
  };
  for (int l = m_shape.layers - 1; l >= 0; --l) {
    const ParameterOffsets::Layer& offsets = m_offsets.layers[l];
    const Factor& d_inner = feed_forward_backward(pass, l);
    if (ready_from) ready_from(offsets.feed_forward_input.weight);
    first_dense_backward(offsets.feed_forward_input, d_inner);
    const Factor& d_qkv = attention_backward(pass, l);
    // Not yet final: the norm before it in GPT, and the embeddings, whose gradient comes last because the first layer
    // and the head both read them.
    if (ready_from) ready_from(offsets.qkv.weight);
    first_dense_backward(offsets.qkv, d_qkv);
  }

  // BERT drops after the norm and adds a type, whose gradient is a sum of rows, like that of a bias, if all rows have
  // the same type. GPT drops before.
  const bool one_type = bert && m_shape.second_text == 0;
  if (bert) Kernels::drop_out(exec, residual_dropout(0), pass.d_norm);
  Kernels::layer_norm_backward(exec, norm(x, 0), pass.d_norm, !bert, pass.d_residual, Dropout<Real>(), pass.d_residual,
                               m_sums, pass.d_parameters(m_offsets.norms[0], m_offsets.type, one_type ? H : 0));
  if (!bert) Kernels::drop_out(exec, residual_dropout(0), pass.d_residual);
  Kernels::embed_backward(exec, m_attention.sequence, tokens.input, pass.d_residual, m_links,
                          matrix_at<Exec>(g, m_offsets.word, m_shape.vocabulary, H),
                          matrix_at<Exec>(g, m_offsets.position, m_shape.positions, H));
  if (bert && !one_type) types_backward(exec, g);
}

/// The gradient of a type is the sum of those of its positions, to which all rounds of the step have added.
template <class Exec, class Real>
void Transformer<Exec, Real>::types_backward(const Exec& exec, const Vector<Exec, Real>& g) {
  const std::size_t H = m_shape.hidden;
  const int ends[] = {0, m_shape.second_text, m_attention.sequence};
  for (std::size_t type = 0; type < 2; ++type) {
    const auto d_type = vector_at<Exec>(g, m_offsets.type + type * H, m_shape.hidden);
    const auto d_positions =
        matrix_at<Exec>(g, m_offsets.position + ends[type] * H, ends[type + 1] - ends[type], m_shape.hidden);
    Kokkos::deep_copy(exec, d_type, Real(0));
    Kernels::add_bias_backward(exec, d_positions, m_sums, d_type);
  }
}

template <class Exec, class Real>
QuantizationState Transformer<Exec, Real>::quantization() const {
  QuantizationState state = m_quantized->state();
  for (GradientGroups& gradient : state.gradients) gradient.layer = m_offsets.dense_names[gradient.number];
  return state;
}

#define ONEBIT_INSTANTIATE(Exec, Real) template class Transformer<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
