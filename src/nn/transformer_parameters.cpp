#include "nn/transformer_parameters.hpp"

#include <algorithm>
#include <cmath>

#include "base/names.hpp"
#include "base/random.hpp"
#include "nn/flat_vectors.hpp"

namespace onebit::nn {

namespace {

bool is_embedding(const Tensor& tensor) { return tensor.name.rfind("embeddings.", 0) == 0; }

/// The entries of Quantization::excluded that are patterns of names.
std::vector<std::string> excluded_patterns(const Quantization& quantization) {
  std::vector<std::string> patterns;
  for (const std::string& entry : quantization.excluded)
    if (entry != "first" && entry != "last") patterns.push_back(entry);
  return patterns;
}

/// Whether a dense layer of layer l is quantised.
bool is_quantized(const Shape& shape, int l, const std::string& name) {
  const auto& excluded = shape.quantization.excluded;
  const auto has = [&](const char* word) { return std::count(excluded.begin(), excluded.end(), word) > 0; };
  if (shape.quantization.kind == QuantizationKind::none) return false;
  if ((l == 0 && has("first")) || (l + 1 == shape.layers && has("last"))) return false;
  return !matches_any(excluded_patterns(shape.quantization), name);
}

const Shape& checked(const Shape& shape) {
  check_model(shape.layers > 0 && shape.hidden > 0 && shape.heads > 0 && shape.feed_forward > 0 &&
                  shape.vocabulary > 0 && shape.positions > 0,
              "layers, hidden, heads, feed_forward, vocabulary and positions must be positive", "set all of them");
  check_model(shape.initializer_range > 0, "initial weights without a spread are all equal",
              "set initializer_range, the standard deviation, to a positive number");
  check_model(shape.classes == 0 || shape.classes > 1,
              "a model cannot tell " + std::to_string(shape.classes) + " classes apart", "give at least two");
  check_model(shape.classes == 0 || !shape.spans, "a model with classes has no head for spans", "choose one of them");
  check_model(
      shape.hidden % shape.heads == 0,
      "hidden (" + std::to_string(shape.hidden) + ") is not a multiple of heads (" + std::to_string(shape.heads) + ")",
      "choose a number of heads that divides hidden");
  return shape;
}

}  // namespace

ParameterOffsets::ParameterOffsets(const Shape& shape) {
  checked(shape);
  using Extents = std::vector<std::size_t>;
  const std::size_t H = shape.hidden, V = shape.vocabulary;
  const bool bert = shape.architecture == Architecture::bert;
  int number_of_dense = 0;
  // A matrix and its bias, or the weight and the bias of a norm.
  const auto add = [this](const std::string& name, const Extents& extents) {
    const std::size_t weight = table.add(name + ".weight", extents, extents.size() == 2);
    return WeightAndBias{weight, table.add(name + ".bias", {extents.front()}, false)};
  };
  const auto dense = [&](const std::string& name, std::size_t out, std::size_t in) {
    const WeightAndBias added = add(name, {out, in});
    multiplied.push_back(added.weight);
    return added;
  };
  const auto dense_of_layer = [&](int l, const std::string& name, int out, int in, int matrices = 1) {
    dense_names.push_back(name);
    Dense dense;
    dense.extents.inputs = in;
    dense.extents.outputs = out;
    dense.number = number_of_dense++;
    dense.quantized = is_quantized(shape, l, name);
    if (dense.quantized && shape.quantization.layer_bits == 1) dense.gamma_length = out;
    dense.weight = table.add(name + ".weight", Extents{std::size_t(out), std::size_t(in)}, true, matrices);
    multiplied.push_back(dense.weight);
    if (dense.gamma_length > 0) dense.gamma = table.add(name + ".gamma", Extents{std::size_t(out)}, false);
    dense.bias = table.add(name + ".bias", Extents{std::size_t(out)}, false);
    return dense;
  };
  const auto norm = [&](const std::string& name) { return add(name, {H}); };

  word = table.add("embeddings.word.weight", {V, H}, true, 0);
  position = table.add("embeddings.position.weight", {static_cast<std::size_t>(shape.positions), H}, true, 0);
  if (bert) {
    type = table.add("embeddings.type.weight", {2, H}, true, 0);
    norms.push_back(norm("embeddings.norm"));
  }
  for (int k = 0; k < shape.layers; ++k) {
    const std::string name = (bert ? "encoder." : "decoder.") + std::to_string(k);
    Layer layer;
    // BERT normalises after each half of a layer, GPT before. Along the chain the norms have the same order.
    if (!bert) norms.push_back(norm(name + ".attention.norm"));
    layer.qkv = dense_of_layer(k, name + ".attention.qkv", 3 * shape.hidden, shape.hidden, 3);
    layer.attention_output = dense_of_layer(k, name + ".attention.output", shape.hidden, shape.hidden);
    norms.push_back(norm(name + (bert ? ".attention.norm" : ".feed_forward.norm")));
    layer.feed_forward_input = dense_of_layer(k, name + ".feed_forward.input", shape.feed_forward, shape.hidden);
    layer.feed_forward_output = dense_of_layer(k, name + ".feed_forward.output", shape.hidden, shape.feed_forward);
    if (bert) norms.push_back(norm(name + ".feed_forward.norm"));
    layers.push_back(layer);
  }
  check_patterns(excluded_patterns(shape.quantization), dense_names, "dense layer");
  if (!bert) norms.push_back(norm("norm"));
  if (shape.classes > 0) {
    head_dense = dense("classifier.dense", H, H);
    output = dense("classifier.output", shape.classes, H);
    return;
  }
  if (shape.spans) {  // without a bias, which would be the same for all tokens among which is chosen
    output.weight = table.add("spans.output.weight", {2, H}, true);
    multiplied.push_back(output.weight);
    return;
  }
  output.weight = word;
  multiplied.push_back(word);
  if (bert) {
    if (shape.next_sentence_head) {  // in BERT's checkpoints, but without an effect on the loss
      add("pooler", {H, H});
      add("next_sentence", {2, H});
    }
    head_dense = dense("head.dense", H, H);
    head_norm = norm("head.norm");
    output.bias = table.add("head.output.bias", {V}, false);
  }
}

std::vector<DenseExtents> ParameterOffsets::quantized_extents(int rows) const {
  std::vector<DenseExtents> extents;
  for (const Layer& layer : layers)
    for (Dense dense : {layer.qkv, layer.attention_output, layer.feed_forward_input, layer.feed_forward_output}) {
      dense.extents.rows = rows;
      extents.push_back(dense.quantized ? dense.extents : DenseExtents());
    }
  return extents;
}

TensorTable tensor_table(const Shape& shape) { return ParameterOffsets(shape).table; }

template <class Exec, class Real>
void initialize(const Exec& exec, const Shape& shape, std::uint64_t seed, const Vector<Exec, Real>& x) {
  const Region region("OneBit::nn::initialize");
  const ParameterOffsets offsets(shape);
  const std::uint64_t key = stream_key(seed, Stream::initial_parameters);
  // BERT's value at any width. LayerNorm scales small embeddings up, so Adam's steps of fixed size would turn smaller
  // ones too fast.
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
  const Real of_residual = shape.architecture == Architecture::gpt ? 1 / std::sqrt(Real(2 * shape.layers)) : Real(1);
  const auto scales = [&](const ParameterOffsets::Dense& dense, Real factor) {
    if (dense.gamma_length == 0) return;
    const Real gamma = factor / std::sqrt(static_cast<Real>(dense.extents.inputs));
    Kokkos::deep_copy(exec, vector_at<Exec>(x, dense.gamma, dense.gamma_length), gamma);
  };
  for (const ParameterOffsets::Layer& layer : offsets.layers) {
    scales(layer.qkv, Real(1));
    scales(layer.attention_output, of_residual);
    scales(layer.feed_forward_input, Real(1));
    scales(layer.feed_forward_output, of_residual);
  }
  for (const ParameterOffsets::WeightAndBias& norm : offsets.norms) ones(norm.weight);
  if (shape.architecture == Architecture::bert && shape.has_language_head()) ones(offsets.head_norm.weight);
}

#define ONEBIT_INSTANTIATE(Exec, Real) \
  template void initialize<Exec, Real>(const Exec&, const Shape&, std::uint64_t, const Vector<Exec, Real>&);
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
