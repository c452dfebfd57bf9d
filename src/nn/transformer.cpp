/// \file transformer.cpp
/// See transformer.hpp.

#include "nn/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/random.hpp"

namespace onebit::nn {

namespace {

/// A matrix or vector that begins at an offset in a flat buffer.
template <class Exec, class T>
MatrixRef<Exec, T> matrix_at(const Vector<Exec, T>& buffer, std::size_t offset, int rows, int columns) {
  return MatrixRef<Exec, T>(buffer.data() + offset, rows, columns);
}
template <class Exec, class T>
VectorRef<Exec, T> vector_at(const Vector<Exec, T>& buffer, std::size_t offset, int length) {
  return VectorRef<Exec, T>(buffer.data() + offset, length);
}

void check(bool holds, const std::string& what, const std::string& remedy) {
  if (!holds) throw InputError("model", what, remedy);
}

bool is_embedding(const Tensor& tensor) { return tensor.name.rfind("embeddings.", 0) == 0; }

const Shape& checked(const Shape& shape) {
  check(shape.layers > 0 && shape.hidden > 0 && shape.heads > 0 && shape.feed_forward > 0 && shape.vocabulary > 0 &&
            shape.positions > 0,
        "layers, hidden, heads, feed_forward, vocabulary and positions must be positive", "set all of them");
  check(shape.initializer_range > 0, "initial weights without a spread are all equal",
        "set initializer_range, the standard deviation, to a positive number");
  check(shape.classes == 0 || shape.classes > 1,
        "a model cannot tell " + std::to_string(shape.classes) + " classes apart", "give at least two");
  check(
      shape.hidden % shape.heads == 0,
      "hidden (" + std::to_string(shape.hidden) + ") is not a multiple of heads (" + std::to_string(shape.heads) + ")",
      "choose a number of heads that divides hidden");
  return shape;
}

}  // namespace

ParameterOffsets::ParameterOffsets(const Shape& shape) {
  checked(shape);
  using Extents = std::vector<std::size_t>;
  const std::size_t H = shape.hidden, F = shape.feed_forward, V = shape.vocabulary;
  const bool bert = shape.architecture == Architecture::bert;
  const auto dense = [this](const std::string& name, std::size_t out, std::size_t in) {
    const std::size_t weight = table.add(name + ".weight", Extents{out, in}, true);
    multiplied.push_back(weight);
    return WeightAndBias{weight, table.add(name + ".bias", Extents{out}, false)};
  };
  const auto unused_dense = [this](const std::string& name, std::size_t out, std::size_t in) {
    table.add(name + ".weight", Extents{out, in}, true);
    table.add(name + ".bias", Extents{out}, false);
  };
  const auto norm = [this, H](const std::string& name) {
    const std::size_t weight = table.add(name + ".weight", Extents{H}, false);
    return WeightAndBias{weight, table.add(name + ".bias", Extents{H}, false)};
  };

  word = table.add("embeddings.word.weight", {V, H}, true);
  position = table.add("embeddings.position.weight", {static_cast<std::size_t>(shape.positions), H}, true);
  if (bert) {
    type = table.add("embeddings.type.weight", {2, H}, true);
    norms.push_back(norm("embeddings.norm"));
  }
  for (int k = 0; k < shape.layers; ++k) {
    const std::string name = (bert ? "encoder." : "decoder.") + std::to_string(k);
    Layer layer;
    // LayerNorm stands behind its half of the layer in BERT, before it in GPT; in the chain the order is the same.
    if (!bert) norms.push_back(norm(name + ".attention.norm"));
    layer.qkv = dense(name + ".attention.qkv", 3 * H, H);
    layer.attention_output = dense(name + ".attention.output", H, H);
    norms.push_back(norm(name + (bert ? ".attention.norm" : ".feed_forward.norm")));
    layer.feed_forward_input = dense(name + ".feed_forward.input", F, H);
    layer.feed_forward_output = dense(name + ".feed_forward.output", H, F);
    if (bert) norms.push_back(norm(name + ".feed_forward.norm"));
    layers.push_back(layer);
  }
  if (!bert) norms.push_back(norm("norm"));
  if (shape.classes > 0) {
    head_dense = dense("classifier.dense", H, H);
    output = dense("classifier.output", shape.classes, H);
    return;
  }
  output.weight = word;
  multiplied.push_back(word);
  if (bert) {
    if (shape.next_sentence_head) {
      unused_dense("pooler", H, H);
      unused_dense("next_sentence", 2, H);
    }
    head_dense = dense("head.dense", H, H);
    head_norm = norm("head.norm");
    output.bias = table.add("head.output.bias", {V}, false);
  }
}

TensorTable tensor_table(const Shape& shape) { return ParameterOffsets(shape).table; }

template <class Exec, class Real>
void fill_normal(const Exec& exec, std::uint64_t key, std::size_t offset, std::size_t size, Real deviation,
                 const Vector<Exec, Real>& x) {
  for_each(
      exec, "OneBit::nn::initialize", size, KOKKOS_LAMBDA(std::size_t i) {
        const Philox4 random = philox(key, offset + i, 0);
        x(offset + i) = deviation * static_cast<Real>(normal(random.word[0], random.word[1]));
      });
}

template <class Exec, class Real>
void initialize(const Exec& exec, const Shape& shape, std::uint64_t seed, const Vector<Exec, Real>& x) {
  const Region region("OneBit::nn::initialize");
  const ParameterOffsets offsets(shape);
  const std::uint64_t key = stream_key(seed, Stream::initial_parameters);
  // BERT's for embeddings too, whatever the width: where the first LayerNorm reads small embeddings, Adam's steps turn
  // them fast, also those of rare words.
  const Real embedding_deviation = Real(0.02);
  const auto deviation = static_cast<Real>(shape.initializer_range);
  Kokkos::deep_copy(exec, x, Real(0));
  for (const Tensor& tensor : offsets.table.tensors())
    if (tensor.decays)
      fill_normal(exec, key, tensor.offset, tensor.size(), is_embedding(tensor) ? embedding_deviation : deviation, x);
  if (shape.architecture == Architecture::gpt) {
    const std::size_t H = shape.hidden, F = shape.feed_forward;
    const Real scaled = deviation / std::sqrt(Real(2 * shape.layers));
    for (const ParameterOffsets::Layer& layer : offsets.layers) {
      fill_normal(exec, key, layer.attention_output.weight, H * H, scaled, x);
      fill_normal(exec, key, layer.feed_forward_output.weight, H * F, scaled, x);
    }
  }
  const auto ones = [&](std::size_t weight) {
    Kokkos::deep_copy(exec, vector_at<Exec>(x, weight, shape.hidden), Real(1));
  };
  for (const ParameterOffsets::WeightAndBias& norm : offsets.norms) ones(norm.weight);
  if (shape.architecture == Architecture::bert && shape.classes == 0) ones(offsets.head_norm.weight);
}

/// The tensors whose gradient is not a product, in ranges of at most piece_length elements.
std::vector<Range> summed_ranges(const ParameterOffsets& offsets) {
  std::vector<Range> ranges;
  for (const Tensor& tensor : offsets.table.tensors()) {
    const auto& products = offsets.multiplied;
    if (std::find(products.begin(), products.end(), tensor.offset) != products.end()) continue;
    const std::size_t end = tensor.offset + tensor.size();
    for (std::size_t begin = tensor.offset; begin < end; begin += piece_length)
      ranges.push_back({begin, std::min(begin + piece_length, end)});
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
      m_attention{batch, shape.heads, sequence, shape.hidden, shape.architecture == Architecture::gpt},
      m_rows(batch * sequence),
      m_predictions(predictions),
      m_dropout(dropout),
      m_epsilon(shape.architecture == Architecture::bert ? Real(1e-12) : Real(1e-5)),
      m_loss_sum(predictions) {
  check(batch > 0 && sequence > 0, "a batch has no tokens", "ask for at least one sample of one token");
  check(sequence <= shape.positions,
        "a sequence of " + std::to_string(sequence) + " tokens is longer than the " + std::to_string(shape.positions) +
            " positions of the model",
        "shorten the sequence or give the model more positions");
  check(predictions > 0 && predictions <= m_rows,
        std::to_string(predictions) + " predictions in a batch of " + std::to_string(m_rows) + " tokens",
        "predict at least one token and at most all of them");
  check(
      shape.classes == 0 || predictions == batch,
      std::to_string(predictions) + " predictions for " + std::to_string(batch) + " samples, of which each has a class",
      "predict one class for each sample");
  check(dropout >= 0 && dropout < 1, "dropout " + std::to_string(dropout) + " is not in [0, 1)",
        "0.1 is usual, 0 turns it off");
  check(sequence <= 65536 && shape.layers < 20000, "dropout cannot tell so many positions or layers apart",
        "use at most 65536 positions and 20000 layers");

  const std::size_t N = m_rows, P = predictions, H = shape.hidden, F = shape.feed_forward, V = shape.outputs(),
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
  if (bert || shape.classes > 0) {
    m_predicted = buffer("predicted", P * H);
    m_head_input = buffer("head_input", P * H);
  }
  if (bert && shape.classes == 0) {
    m_head_gelu = buffer("head_gelu", P * H);
    m_head_mean = buffer("head_mean", P);
    m_head_reciprocal_std = buffer("head_reciprocal_std", P);
    m_d_head_gelu = buffer("d_head_gelu", P * H);
  }
  m_head_output = buffer("head_output", P * H);
  m_logits = buffer("logits", P * V);
  m_attention_scratch = buffer("attention_scratch", m_attention.scratch_size(exec));
  m_wide = buffer("wide", N * std::max(F, 3 * H));
  m_d_norm = buffer("d_norm", N * H);
  m_d_residual = buffer("d_residual", N * H);
  if (dropout > 0) m_d_branch = buffer("d_branch", N * H);
  m_d_head = buffer("d_head", P * H);
  const std::size_t row_blocks = row_block_count<Exec>(m_rows), head_blocks = row_block_count<Exec>(predictions);
  m_sums = buffer("sums", std::max({row_blocks * 3 * H, row_blocks * F, head_blocks * 3 * H, head_blocks * V}));
  m_losses = buffer("losses", P);
  m_links = make_uninitialized<Exec, int>("OneBit::nn::Transformer::links", 2 * N);
  m_summed = copy_to_device<Exec>("OneBit::nn::Transformer::summed", summed_ranges(m_offsets));
}

template <class Exec, class Real>
MatrixRef<Exec, Real> Transformer<Exec, Real>::rows_of(const Buffer& buffer, int slice, int columns) const {
  return matrix_at<Exec>(buffer, static_cast<std::size_t>(slice) * m_rows * columns, m_rows, columns);
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
  return {vector_at<Exec>(x, m_offsets.norms[k].weight, H),
          vector_at<Exec>(x, m_offsets.norms[k].bias, H),
          m_epsilon,
          rows_of(m_norm_input, k, H),
          rows_of(m_norm_output, k, H),
          vector_at<Exec>(m_mean, first_row, m_rows),
          vector_at<Exec>(m_reciprocal_std, first_row, m_rows)};
}

template <class Exec, class Real>
LayerNorm<Exec, Real> Transformer<Exec, Real>::head_norm(const Vector<Exec, const Real>& x) const {
  const int P = m_predictions, H = m_shape.hidden;
  return {vector_at<Exec>(x, m_offsets.head_norm.weight, H),
          vector_at<Exec>(x, m_offsets.head_norm.bias, H),
          m_epsilon,
          matrix_at<Exec>(m_head_gelu, 0, P, H),
          matrix_at<Exec>(m_head_output, 0, P, H),
          m_head_mean,
          m_head_reciprocal_std};
}

template <class Exec, class Real>
Dropout<Real> Transformer<Exec, Real>::embedding_dropout() const {
  return {m_dropout_now, m_key, 0, m_attention.sequence};
}

template <class Exec, class Real>
Dropout<Real> Transformer<Exec, Real>::residual_dropout(int k) const {
  return {m_dropout_now, m_key, k, m_attention.sequence};
}

template <class Exec, class Real>
Dropout<Real> Transformer<Exec, Real>::attention_dropout(int layer) const {
  return {m_dropout_now, m_key, 2 * m_shape.layers + 1 + layer, m_attention.sequence};
}

template <class Exec, class Real>
Dropout<Real> Transformer<Exec, Real>::classifier_dropout() const {
  return {m_dropout_now, m_key, 3 * m_shape.layers + 1, 1};
}

template <class Exec, class Real>
double Transformer<Exec, Real>::loss(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens) {
  return run(exec, x, tokens, Real(0), DropoutKey(), CrossEntropyOutput::logits);
}

template <class Exec, class Real>
double Transformer<Exec, Real>::forward(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens,
                                        const DropoutKey& key) {
  return run(exec, x, tokens, m_dropout, key, CrossEntropyOutput::gradient);
}

/// Σ losses, in double and in a fixed order.
template <class Exec, class Real>
double sum_losses(const Exec& exec, const OrderedSum<Exec>& sum, VectorRef<Exec, const Real> losses) {
  return sum(
      exec, "OneBit::nn::loss", KOKKOS_LAMBDA(std::size_t p) { return static_cast<double>(losses(p)); });
}

template <class Exec, class Real>
double Transformer<Exec, Real>::accuracy(const Exec& exec, const Tokens<Exec>& tokens) {
  const Region region("OneBit::nn::accuracy");
  Kernels::is_right(exec, tokens.target, matrix_at<Exec>(m_logits, 0, m_predictions, m_shape.outputs()), m_losses);
  return sum_losses<Exec, Real>(exec, m_loss_sum, m_losses) / m_predictions;
}

template <class Exec, class Real>
void Transformer<Exec, Real>::classify(const Exec& exec, const Vector<Exec, const Real>& x,
                                       const RealMatrix& predicted) {
  const int P = m_predictions, H = m_shape.hidden;
  const auto pooled = matrix_at<Exec>(m_head_input, 0, P, H), output = matrix_at<Exec>(m_head_output, 0, P, H);
  Kernels::dense(exec, m_product, predicted, matrix_at<Exec>(x, m_offsets.head_dense.weight, H, H), pooled);
  Kernels::bias_tanh(exec, vector_at<Exec>(x, m_offsets.head_dense.bias, H), pooled);
  Kokkos::deep_copy(exec, output, pooled);
  Kernels::drop_out(exec, classifier_dropout(), output);
}

template <class Exec, class Real>
void Transformer<Exec, Real>::classify_backward(const Exec& exec, const Vector<Exec, const Real>& x, bool add,
                                                const Vector<Exec, Real>& g) {
  const int P = m_predictions, H = m_shape.hidden;
  const std::size_t dense = m_offsets.head_dense.weight;
  const auto predicted = matrix_at<Exec>(m_predicted, 0, P, H), pooled = matrix_at<Exec>(m_head_input, 0, P, H);
  const auto d_head = matrix_at<Exec>(m_d_head, 0, P, H), d_pooled = matrix_at<Exec>(m_head_output, 0, P, H);
  // The head's output has been used; its place takes the gradient behind the dense layer, d_head the one before it.
  Kokkos::deep_copy(exec, d_pooled, d_head);
  Kernels::drop_out(exec, classifier_dropout(), d_pooled);
  Kernels::bias_tanh_backward(exec, pooled, d_pooled, m_sums, vector_at<Exec>(g, m_offsets.head_dense.bias, H));
  Kernels::dense_backward_weight(exec, m_product, d_pooled, predicted, add, matrix_at<Exec>(g, dense, H, H));
  Kernels::dense_backward_input(exec, m_product, d_pooled, matrix_at<Exec>(x, dense, H, H), false, d_head);
}

template <class Exec, class Real>
double Transformer<Exec, Real>::run(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens,
                                    Real dropout, const DropoutKey& key, CrossEntropyOutput output) {
  const Region region("OneBit::nn::forward");
  m_dropout_now = dropout;
  m_key = key;
  const int P = m_predictions, T = m_attention.sequence, H = m_shape.hidden, F = m_shape.feed_forward,
            V = m_shape.vocabulary;
  const bool bert = m_shape.architecture == Architecture::bert;
  const auto weight = [&](std::size_t offset, int out, int in) { return matrix_at<Exec>(x, offset, out, in); };
  const auto bias = [&](std::size_t offset, int out) { return vector_at<Exec>(x, offset, out); };
  const auto residual = [&](const LayerNorm<Exec, Real>& norm) { return bert ? norm.output : norm.input; };

  const LayerNorm<Exec, Real> first = norm(x, 0);
  Kernels::embed(exec, T, tokens.input, weight(m_offsets.word, V, H), weight(m_offsets.position, m_shape.positions, H),
                 bias(m_offsets.type, bert ? H : 0), first.input);
  if (!bert) Kernels::drop_out(exec, embedding_dropout(), first.input);
  Kernels::layer_norm(exec, first);
  if (bert) Kernels::drop_out(exec, embedding_dropout(), first.output);

  for (int l = 0; l < m_shape.layers; ++l) {
    const ParameterOffsets::Layer& offsets = m_offsets.layers[l];
    const LayerNorm<Exec, Real> before = norm(x, 2 * l), between = norm(x, 2 * l + 1), after = norm(x, 2 * l + 2);

    const auto qkv = rows_of(m_qkv, l, 3 * H), context = rows_of(m_context, l, H);
    Kernels::dense(exec, m_product, before.output, weight(offsets.qkv.weight, 3 * H, H), qkv);
    Kernels::add_bias(exec, bias(offsets.qkv.bias, 3 * H), qkv);
    m_attention.forward(exec, qkv, attention_dropout(l), attention_log_sums(l), m_attention_scratch, context);
    Kernels::dense(exec, m_product, context, weight(offsets.attention_output.weight, H, H), between.input);
    Kernels::residual_layer_norm(exec, residual(before), bias(offsets.attention_output.bias, H),
                                 residual_dropout(2 * l + 1), between);

    const auto inner = rows_of(m_feed_forward, l, F), gelu = rows_of(m_wide, 0, F);
    Kernels::dense(exec, m_product, between.output, weight(offsets.feed_forward_input.weight, F, H), inner);
    Kernels::bias_gelu(exec, bias(offsets.feed_forward_input.bias, F), inner, gelu);
    Kernels::dense(exec, m_product, gelu, weight(offsets.feed_forward_output.weight, H, F), after.input);
    Kernels::residual_layer_norm(exec, residual(between), bias(offsets.feed_forward_output.bias, H),
                                 residual_dropout(2 * l + 2), after);
  }

  const int outputs = m_shape.outputs();
  const bool classes = m_shape.classes > 0, has_bias = bert || classes;
  const auto last = rows_of(m_norm_output, 2 * m_shape.layers, H);
  const auto head_output = matrix_at<Exec>(m_head_output, 0, P, H), logits = matrix_at<Exec>(m_logits, 0, P, outputs);
  if (classes) {
    const auto predicted = matrix_at<Exec>(m_predicted, 0, P, H);
    if (m_shape.mean_pooling)
      Kernels::mean_rows(exec, last, predicted);
    else
      Kernels::gather_rows(exec, tokens.predicted, last, predicted);
    classify(exec, x, predicted);
  } else if (bert) {
    const auto predicted = matrix_at<Exec>(m_predicted, 0, P, H), head_input = matrix_at<Exec>(m_head_input, 0, P, H);
    const LayerNorm<Exec, Real> norm = head_norm(x);
    Kernels::gather_rows(exec, tokens.predicted, last, predicted);
    Kernels::dense(exec, m_product, predicted, weight(m_offsets.head_dense.weight, H, H), head_input);
    Kernels::bias_gelu(exec, bias(m_offsets.head_dense.bias, H), head_input, norm.input);
    Kernels::layer_norm(exec, norm);
  } else {
    Kernels::gather_rows(exec, tokens.predicted, last, head_output);
  }
  Kernels::dense(exec, m_product, head_output, weight(m_offsets.output.weight, outputs, H), logits);
  Kernels::cross_entropy(exec, bias(m_offsets.output.bias, has_bias ? outputs : 0), tokens.target, output, logits,
                         m_losses);
  return sum_losses<Exec, Real>(exec, m_loss_sum, m_losses) / P;
}

template <class Exec, class Real>
void Transformer<Exec, Real>::backward(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens,
                                       Real scale, bool add, const Vector<Exec, Real>& g,
                                       const GradientProgress& final_from) {
  const Region region("OneBit::nn::backward");
  if (!add) set_zero(exec, m_summed, g);
  const int P = m_predictions, T = m_attention.sequence, H = m_shape.hidden, F = m_shape.feed_forward,
            V = m_shape.vocabulary;
  const bool bert = m_shape.architecture == Architecture::bert;
  const auto weight = [&](std::size_t offset, int out, int in) { return matrix_at<Exec>(x, offset, out, in); };
  const auto d_weight = [&](std::size_t offset, int out, int in) { return matrix_at<Exec>(g, offset, out, in); };
  const auto d_bias = [&](std::size_t offset, int out) { return vector_at<Exec>(g, offset, out); };
  const auto d_norm_of = [&](ParameterOffsets::WeightAndBias norm, std::size_t branch_bias, int branch_channels) {
    return LayerNormGradient<Exec, Real>{d_bias(norm.weight, H), d_bias(norm.bias, H),
                                         d_bias(branch_bias, branch_channels)};
  };
  const VectorRef<Exec, Real> sums = m_sums;
  const Dropout<Real> no_dropout;

  auto d_norm = rows_of(m_d_norm, 0, H);          // at n_k
  auto d_residual = rows_of(m_d_residual, 0, H);  // at z_k
  const bool drops = residual_dropout(0).active();
  const auto d_branch = [&] { return drops ? rows_of(m_d_branch, 0, H) : d_residual; };  // at half_k(n_{k−1})

  // The head. forward left P times the gradient of the mean loss in the place of the logits.
  const int outputs = m_shape.outputs();
  const bool classes = m_shape.classes > 0;
  const auto d_logits = matrix_at<Exec>(m_logits, 0, P, outputs);
  const auto head_output = matrix_at<Exec>(m_head_output, 0, P, H), d_head = matrix_at<Exec>(m_d_head, 0, P, H);
  const std::size_t output = m_offsets.output.weight;
  Kernels::dense_backward_input(exec, m_product, d_logits, weight(output, outputs, H), false, d_head, scale / P);
  Kernels::dense_backward_weight(exec, m_product, d_logits, head_output, add, d_weight(output, outputs, H), scale / P);
  if (bert || classes)
    Kernels::add_bias_backward(exec, d_logits, sums, d_bias(m_offsets.output.bias, outputs), scale / P);
  if (classes) {
    classify_backward(exec, x, add, g);
  } else if (bert) {
    const ParameterOffsets::WeightAndBias& dense = m_offsets.head_dense;
    const auto head_input = matrix_at<Exec>(m_head_input, 0, P, H), predicted = matrix_at<Exec>(m_predicted, 0, P, H);
    const auto d_gelu = matrix_at<Exec>(m_d_head_gelu, 0, P, H);
    Kernels::layer_norm_backward(exec, head_norm(x), d_head, false, d_gelu, no_dropout, d_gelu, sums,
                                 d_norm_of(m_offsets.head_norm, 0, 0));
    Kernels::bias_gelu_backward(exec, head_input, d_gelu, sums, d_bias(dense.bias, H));
    Kernels::dense_backward_weight(exec, m_product, d_gelu, predicted, add, d_weight(dense.weight, H, H));
    Kernels::dense_backward_input(exec, m_product, d_gelu, weight(dense.weight, H, H), false, d_head);
  }
  if (classes && m_shape.mean_pooling)
    Kernels::mean_rows_backward(exec, d_head, d_norm);
  else
    Kernels::gather_rows_backward(exec, tokens.predicted, d_head, d_norm);

  // From d_norm to d_residual and d_branch. In BERT the residual is n_k and its gradient is in d_norm already; in GPT
  // it is z_k, and its gradient waits in d_residual, but for the last k, which no residual follows.
  const auto norm_backward = [&](int k, std::size_t branch_bias) {
    const bool has_residual = !bert && k < 2 * m_shape.layers;
    Kernels::layer_norm_backward(exec, norm(x, k), d_norm, has_residual, d_residual, residual_dropout(k), d_branch(),
                                 sums, d_norm_of(m_offsets.norms[k], branch_bias, H));
  };
  // From the gradient at the output of a half's first dense layer to d_norm at its input, which in BERT includes the
  // residual's.
  const auto first_dense_backward = [&](const RealMatrix& d_output, std::size_t offset) {
    const auto first = weight(offset, d_output.extent_int(1), H);
    Kernels::dense_backward_input(exec, m_product, d_output, first, bert, bert ? d_residual : d_norm);
    if (bert) std::swap(d_norm, d_residual);
  };

  for (int l = m_shape.layers - 1; l >= 0; --l) {
    const ParameterOffsets::Layer& offsets = m_offsets.layers[l];

    const auto inner = rows_of(m_feed_forward, l, F), d_inner = rows_of(m_wide, 0, F);
    const auto feed_forward_input = rows_of(m_norm_output, 2 * l + 1, H);
    norm_backward(2 * l + 2, offsets.feed_forward_output.bias);
    Kernels::dense_backward_input(exec, m_product, d_branch(), weight(offsets.feed_forward_output.weight, H, F), false,
                                  d_inner);
    Kernels::bias_gelu_backward(exec, inner, d_inner, sums, d_bias(offsets.feed_forward_input.bias, F));
    Kernels::dense_backward_weight(exec, m_product, d_branch(), inner, add,
                                   d_weight(offsets.feed_forward_output.weight, H, F));
    Kernels::dense_backward_weight(exec, m_product, d_inner, feed_forward_input, add,
                                   d_weight(offsets.feed_forward_input.weight, F, H));
    if (final_from) final_from(offsets.feed_forward_input.weight);
    first_dense_backward(d_inner, offsets.feed_forward_input.weight);

    const auto qkv = rows_of(m_qkv, l, 3 * H), d_qkv = rows_of(m_wide, 0, 3 * H);
    const auto context = rows_of(m_context, l, H), attention_input = rows_of(m_norm_output, 2 * l, H);
    norm_backward(2 * l + 1, offsets.attention_output.bias);
    const auto d_context = d_norm;  // whose values have been used
    Kernels::dense_backward_input(exec, m_product, d_branch(), weight(offsets.attention_output.weight, H, H), false,
                                  d_context);
    Kernels::dense_backward_weight(exec, m_product, d_branch(), context, add,
                                   d_weight(offsets.attention_output.weight, H, H));
    m_attention.backward(exec, qkv, context, d_context, attention_dropout(l), attention_log_sums(l),
                         m_attention_scratch, d_qkv);
    Kernels::add_bias_backward(exec, d_qkv, sums, d_bias(offsets.qkv.bias, 3 * H));
    Kernels::dense_backward_weight(exec, m_product, d_qkv, attention_input, add,
                                   d_weight(offsets.qkv.weight, 3 * H, H));
    // In front of it stand GPT's normalisation, whose gradient comes next, and the embeddings, whose comes last: the head
    // multiplies by them and the first layer reads them.
    if (final_from) final_from(offsets.qkv.weight);
    first_dense_backward(d_qkv, offsets.qkv.weight);
  }

  // Embeddings. BERT drops after the normalisation and adds a type, whose gradient is a sum of rows like a bias's; GPT
  // drops before.
  if (bert) Kernels::drop_out(exec, embedding_dropout(), d_norm);
  Kernels::layer_norm_backward(exec, norm(x, 0), d_norm, !bert, d_residual, no_dropout, d_residual, sums,
                               d_norm_of(m_offsets.norms[0], m_offsets.type, bert ? H : 0));
  if (!bert) Kernels::drop_out(exec, embedding_dropout(), d_residual);
  Kernels::embed_backward(exec, T, tokens.input, d_residual, m_links, d_weight(m_offsets.word, V, H),
                          d_weight(m_offsets.position, m_shape.positions, H));
}

#define ONEBIT_INSTANTIATE_REAL(Exec, Real)                                                                  \
  template void initialize<Exec, Real>(const Exec&, const Shape&, std::uint64_t, const Vector<Exec, Real>&); \
  template class Transformer<Exec, Real>;
#define ONEBIT_INSTANTIATE(Exec) ONEBIT_INSTANTIATE_REAL(Exec, float) ONEBIT_INSTANTIATE_REAL(Exec, double)
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
