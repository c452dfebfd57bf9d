#pragma once
/// \file transformer_parameters.hpp
/// The shape of a transformer, and its parameters: names, extents and places in one flat buffer, and first values.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/choices.hpp"
#include "base/error.hpp"
#include "base/kokkos.hpp"
#include "base/tensor_table.hpp"
#include "nn/quantized/quantization.hpp"
#include "nn/quantized/quantized_layers.hpp"

namespace onebit::nn {

/// \throws InputError of the section `model` unless `holds`
inline void check_model(bool holds, const std::string& what, const std::string& remedy) {
  if (!holds) throw InputError("model", what, remedy);
}

/// A model's architecture and extents.
struct Shape {
  Architecture architecture;
  int layers;                       ///< L
  int hidden;                       ///< H, a multiple of heads
  int heads;                        ///< A
  int feed_forward;                 ///< F
  int vocabulary;                   ///< V
  int positions;                    ///< longest sequence
  bool next_sentence_head = false;  ///< the parameters include BERT's pooler and next-sentence head
  int classes = 0;                  ///< of the classifier, which replaces all other heads; 0: none
  bool mean_pooling = false;        ///< the classifier reads the mean of a sample's rows, not one of them
  int second_text = 0;              ///< first position of BERT's second text, whose type is 1; 0: all have type 0
  bool spans = false;               ///< the head points at a span of the second text; it replaces all other heads
  double initializer_range = 0.02;  ///< standard deviation of initial weights, except for embeddings
  Quantization quantization{};

  /// Whether the head is a language model's.
  bool has_language_head() const { return classes == 0 && !spans; }
  /// Logits of a prediction in samples of T tokens.
  int outputs(int sequence) const { return spans ? sequence : classes > 0 ? classes : vocabulary; }
};

/// Names, shapes and offsets of the parameters. Weights are (out, in), as in PyTorch.
TensorTable tensor_table(const Shape& shape);

/// Weights from N(0, `Shape::initializer_range`), but in GPT the projections into the residual stream are scaled by
/// 1/√(2 L); embeddings from N(0, 0.02); biases 0; LayerNorm 1 and 0. Element i depends only on the seed, i and the
/// deviation. In 1-bit layers of K inputs Γ is K^−½, so that outputs of random signs have variance 1; it is scaled as
/// the weights are.
/// \param x (parameters)
template <class Exec, class Real>
void initialize(const Exec& exec, const Shape& shape, std::uint64_t seed, const Vector<Exec, Real>& x);

/// First elements of the tensors in the flat buffer.
struct ParameterOffsets {
  struct WeightAndBias {
    std::size_t weight = 0, bias = 0;
  };
  /// A dense layer of half a layer.
  struct Dense {
    std::size_t weight = 0, bias = 0;
    std::size_t gamma = 0;   ///< of a 1-bit layer
    int gamma_length = 0;    ///< outputs of a 1-bit layer; 0 for all others
    int number = 0;          ///< among all of them, in the order of the forward pass
    bool quantized = false;  ///< whether it is one of `QuantizedLayers`
    DenseExtents extents{};
  };
  struct Layer {
    Dense qkv, attention_output, feed_forward_input, feed_forward_output;
  };

  TensorTable table;
  std::size_t word = 0, position = 0, type = 0;
  std::vector<WeightAndBias> norms;      ///< (2 L + 1), in the order of the chain
  std::vector<Layer> layers;             ///< (L)
  WeightAndBias head_dense, head_norm;   ///< head_norm for BERT's language model only
  WeightAndBias output;                  ///< weight = `word` in language models; no bias in GPT's and of spans
  std::vector<std::size_t> multiplied;   ///< weights of dense layers, whose gradient a product writes first
  std::vector<std::string> dense_names;  ///< of the halves' dense layers, by their number

  explicit ParameterOffsets(const Shape& shape);

  /// The extents of each dense layer by its number, without outputs where it is not quantised. \param rows N
  std::vector<DenseExtents> quantized_extents(int rows) const;
};

}  // namespace onebit::nn
