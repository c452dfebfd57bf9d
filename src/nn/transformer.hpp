#pragma once
/// \file transformer.hpp
/// BERT (Devlin et al. 2019: post-LN encoder, masked language model) and GPT (Radford et al. 2019: pre-LN decoder,
/// causal language model), forward and backward on one flat buffer of parameters and one of gradients.
///
/// Both are the same chain of 2 L halves of layers, attention and feed-forward in turn:
///   z_0 = embeddings, n_0 = LayerNorm_0(z_0),
///   z_k = r_{k−1} + dropout(half_k(n_{k−1})), n_k = LayerNorm_k(z_k) for k = 1 … 2 L,
/// with the residual r_k = n_k in BERT (post-LN) and r_k = z_k in GPT (pre-LN). The head reads n_{2 L}.
///
/// The head is a language model's. With `Shape::classes` > 0 it is BERT's classifier (Devlin et al. 2019, section 4.1;
/// BertForSequenceClassification in transformers): logits = W₂ dropout(tanh(W₁ n + b₁)) + b₂, where n is one row of
/// n_{2 L} for each sample, or the mean of its T rows with `Shape::mean_pooling`. With `Shape::spans` it is a dense
/// layer that gives each row of n_{2 L} two scores (spans.hpp).
///
/// `Shape::quantization` quantises the dense layers of the halves (quantized_layers.hpp).

#include <memory>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/kokkos.hpp"
#include "base/range.hpp"
#include "linalg/matrix_product.hpp"
#include "nn/attention/attention.hpp"
#include "nn/dropout.hpp"
#include "nn/flat_vectors.hpp"
#include "nn/layers.hpp"
#include "nn/quantized/quantization.hpp"
#include "nn/quantized/quantized_layers.hpp"
#include "nn/spans.hpp"
#include "nn/transformer_parameters.hpp"

namespace onebit::nn {

/// A batch: B samples of T tokens, and the rows of (B*T) at which a token, or the sample's class, is predicted. For
/// spans P = 2 B: entries 2 b and 2 b + 1 of `predicted` are the first and the last row of sample b's second text, and
/// of `target` those of its right answer.
template <class Exec>
struct Tokens {
  Vector<Exec, int> input;      ///< (B*T)
  Vector<Exec, int> predicted;  ///< (P) rows of (B*T); for classes P = B, entry p in sample p
  Vector<Exec, int> target;     ///< (P) tokens or classes; for spans the right answers' positions in [0, T)
};

/// A model for batches of one size. It allocates all memory of a step, once.
/// Instantiated for float and double on every backend.
template <class Exec, class Real>
class Transformer {
public:
  /// \param batch       B, samples of a step
  /// \param sequence    T
  /// \param predictions P, predicted rows of a step, over all samples; B for classes, 2 B for spans
  /// \param dropout     probability of dropping, in [0, 1): after the embeddings, on the attention's probabilities and
  ///                    before each residual
  /// \param product     for the dense layers
  Transformer(const Exec& exec, const Shape& shape, int batch, int sequence, int predictions, Real dropout,
              linalg::MatrixProduct<Exec, Real> product = linalg::MatrixProduct<Exec, Real>());

  /// Mean cross entropy (natural logarithm) over the P predictions, without dropout.
  double loss(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens) {
    return run(exec, x, tokens, Real(0), DropoutKey(), CrossEntropyOutput::logits);
  }
  /// Fraction of the predictions of the last `loss`, of the same tokens, whose target has the greatest logit; of the
  /// answers that are exact, for spans.
  double accuracy(const Exec& exec, const Tokens<Exec>& tokens);
  /// Mean F1 of the answers of the last `loss`, of the same tokens, for spans.
  double f1(const Exec& exec, const Tokens<Exec>& tokens) { return span_measure(exec, SpanMeasure::f1, tokens); }

  /// The loss with dropout; keeps what `backward` needs.
  double forward(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens,
                 const DropoutKey& key) {
    return run(exec, x, tokens, m_dropout, key, CrossEntropyOutput::gradient);
  }

  /// g ← scale · gradient of the last `forward`, which had the same x and tokens; g += it if `add`. To be called once
  /// for each `forward`, because it overwrites the activations.
  /// \param ready_from is called with b when elements [b, d) are complete: twice for each layer, the last layer first
  void backward(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens, Real scale, bool add,
                const Vector<Exec, Real>& g, const GradientReady& ready_from = {});

  /// Of the quantised layers in the last `backward`.
  QuantizationState quantization() const;
  /// What `backward` measures of their quantisers.
  void measure_quantizers(QuantizerMeasures measures) { m_quantizer_measures = measures; }

  /// (P, V), (P, classes) or (P, T) of spans, of the last `loss`; after `forward` their gradient.
  Vector<Exec, Real> logits() const { return m_logits; }

private:
  using Kernels = Layers<Exec, Real>;
  using RealMatrix = MatrixRef<Exec, Real>;
  using Factor = linalg::Factor<Exec, Real>;
  using Buffer = Vector<Exec, Real>;
  using Dense = ParameterOffsets::Dense;

  struct BackwardPass;
  /// What the dense layers of a layer read in the forward pass and again in the backward pass.
  struct LayerInputs {
    Factor qkv, attention_output, feed_forward_input;
  };

  double run(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens, Real dropout,
             const DropoutKey& key, CrossEntropyOutput output);
  /// From n_{2 L} to the loss.
  double head(const Exec& exec, const Vector<Exec, const Real>& x, const Tokens<Exec>& tokens,
              CrossEntropyOutput output);
  void dense(const Exec& exec, std::size_t weight, const Factor& from, const RealMatrix& to);
  double span_measure(const Exec& exec, SpanMeasure of, const Tokens<Exec>& tokens);
  void spans_backward(const BackwardPass& pass, Real scale);
  RealMatrix logit_matrix() const { return matrix_at<Exec>(m_logits, 0, m_predictions, m_outputs); }
  void head_backward(const BackwardPass& pass, const Tokens<Exec>& tokens, Real scale);
  void types_backward(const Exec& exec, const Vector<Exec, Real>& g);
  RealMatrix norm_backward(const BackwardPass& pass, int k, std::size_t branch_bias);
  // Each returns the gradient at the output of the first dense layer of its half.
  const Factor& feed_forward_backward(const BackwardPass& pass, int l);
  const Factor& attention_backward(const BackwardPass& pass, int l);
  LayerNorm<Exec, Real> norm(const Vector<Exec, const Real>& x, int k) const;
  LayerNorm<Exec, Real> head_norm(const Vector<Exec, const Real>& x) const;
  /// Of half k; of the embeddings for k = 0.
  Dropout<Real> residual_dropout(int k) const { return {m_dropout_now, m_key, k, m_attention.sequence}; }
  Dropout<Real> attention_dropout(int layer) const {
    return {m_dropout_now, m_key, 2 * m_shape.layers + 1 + layer, m_attention.sequence};
  }
  Dropout<Real> classifier_dropout() const { return {m_dropout_now, m_key, 3 * m_shape.layers + 1, 1}; }
  RealMatrix rows_of(const Buffer& buffer, int number, int columns) const;
  VectorRef<Exec, Real> attention_log_sums(int layer) const;

  Shape m_shape;
  ParameterOffsets m_offsets;
  linalg::MatrixProduct<Exec, Real> m_product;
  std::unique_ptr<QuantizedLayers<Exec, Real>> m_quantized;
  Attention<Exec, Real> m_attention;
  int m_rows, m_predictions, m_outputs;  ///< N = B*T, P, logits of a prediction
  Real m_dropout;
  Real m_epsilon;  ///< of the layer normalisations

  QuantizerMeasures m_quantizer_measures = QuantizerMeasures::none;
  Real m_dropout_now = 0;  ///< of the last run: 0 in `loss`
  DropoutKey m_key;

  // Kept for backward.
  Buffer m_norm_input, m_norm_output;         ///< z and n, (2 L + 1, N, H)
  Buffer m_mean, m_reciprocal_std;            ///< (2 L + 1, N)
  Buffer m_qkv;                               ///< (L, N, 3 H)
  Buffer m_attention_log_sums;                ///< (L, B*A*T)
  Buffer m_context;                           ///< (L, N, H)
  Buffer m_feed_forward;                      ///< (L, N, F), before GELU
  Buffer m_predicted;                         ///< (P, H), rows of n_{2 L}; not for GPT's language model
  Buffer m_head_input;                        ///< (P, H), before GELU or after tanh; not for GPT's language model
  Buffer m_head_gelu;                         ///< (P, H); BERT's language model only
  Buffer m_head_mean, m_head_reciprocal_std;  ///< (P); BERT's language model only
  Buffer m_head_output;                       ///< (P, H), input of the last dense layer; not for spans
  Buffer m_scores;                            ///< (N, 2) of spans, or their gradient
  Buffer m_logits;                            ///< (P, outputs), or their gradient

  // Factors of more than one product, which are rounded once in bf16.
  Factor m_weights;                   ///< all parameters
  std::vector<LayerInputs> m_inputs;  ///< (L)
  Factor m_d_output;                  ///< the gradient at the output of one dense layer

  // Scratch.
  Buffer m_attention_scratch;      ///< of each thread on the host, or a number for each row
  Buffer m_wide;                   ///< (N, max(F, 3 H)): GELU's output, its gradient, or that of qkv
  Buffer m_d_norm, m_d_residual;   ///< (N, H)
  Buffer m_d_branch;               ///< (N, H); empty without dropout
  Buffer m_d_head, m_d_head_gelu;  ///< (P, H); m_d_head_gelu for BERT's language model only
  Buffer m_sums;                   ///< partial sums of blocks of rows
  Buffer m_losses;                 ///< (P), or whether each prediction is right
  Vector<Exec, int> m_links;       ///< (2 N)
  Vector<Exec, Range> m_summed;    ///< ranges of g that no product writes, of at most block_length elements
  OrderedSum<Exec> m_loss_sum;
};

}  // namespace onebit::nn
