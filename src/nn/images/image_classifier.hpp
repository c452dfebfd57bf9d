#pragma once
/// \file image_classifier.hpp
/// A network that classifies images: its nodes (image_network.hpp) and the cross entropy of their logits.

#include <utility>

#include "nn/flat_vectors.hpp"
#include "nn/images/image_network.hpp"

namespace onebit::nn {

/// A batch of B images.
template <class Exec, class Real>
struct Images {
  Vector<Exec, Real> pixels;  ///< (B·H·W·C), NHWC
  Vector<Exec, int> classes;  ///< (B)
};

/// For batches of one size. It allocates all memory of a step, once. Instantiated for float and double on every
/// backend.
template <class Exec, class Real>
class ImageClassifier {
public:
  using Network = ImageNetwork<Exec, Real>;
  using Product = typename Network::Product;

  /// See ImageNetwork. \param nodes end with the logits
  ImageClassifier(const Exec& exec, const ImageNodes& nodes, int batch, int norm_samples, Product product = Product());

  /// Mean cross entropy (natural logarithm) with the statistics of the last `calibrate`.
  double loss(const Exec& exec, const Vector<Exec, const Real>& x, const Images<Exec, Real>& images);
  /// Fraction of the images of the last `loss` whose class has the greatest logit.
  double accuracy(const Exec& exec, const Images<Exec, Real>& images);

  /// The loss with the statistics of the batch; keeps what `backward` needs.
  double forward(const Exec& exec, const Vector<Exec, const Real>& x, const Images<Exec, Real>& images);
  /// g ← scale · gradient of the last `forward`, which had the same x; g += it if `add`.
  /// \param key        of the batch, for the rounding of quantised gradients
  /// \param ready_from is called with b when elements [b, d) are complete: for each weight, the last one first
  void backward(const Exec& exec, const Vector<Exec, const Real>& x, const QuantizerKey& key, Real scale, bool add,
                const Vector<Exec, Real>& g, const GradientReady& ready_from = {});

  /// As those of ImageNetwork.
  QuantizationState quantization() const { return m_network.quantization(); }
  void measure_quantizers(QuantizerMeasures measures) { m_network.measure_quantizers(measures); }

  /// The statistics of `loss` ← those of some batches, of which `draw(k)` gives the k-th: see ImageNetwork.
  template <class Draw>
  void calibrate(const Exec& exec, const Vector<Exec, const Real>& x, int batches, const Draw& draw) {
    m_network.calibrate(exec, x, batches, [&](int k) { return draw(k).pixels; });
  }

private:
  using Kernels = Layers<Exec, Real>;
  using Buffer = Vector<Exec, Real>;

  /// The mean loss of m_logits, over which `wanted` is written.
  double cross_entropy(const Exec& exec, const Vector<Exec, const Real>& x, const Images<Exec, Real>& images,
                       CrossEntropyOutput wanted);
  MatrixRef<Exec, Real> logits() const { return matrix_at<Exec>(m_logits, 0, m_batch, m_classes); }

  Network m_network;
  int m_batch, m_classes;
  std::size_t m_bias;  ///< first element of the logits' bias
  Buffer m_logits;     ///< (B, classes) of the network, or their gradient
  Buffer m_losses;     ///< (B), or whether each prediction is right
  Buffer m_scratch;
  OrderedSum<Exec> m_loss_sum;
};

}  // namespace onebit::nn
