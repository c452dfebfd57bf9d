#pragma once
/// \file image_network.hpp
/// A network of images (nodes.hpp), forward and backward on one flat buffer of parameters and one of gradients. It ends
/// with the output of its last node; what a loss makes of that is the caller's (image_classifier.hpp).
///
/// In training a norm has the statistics of its group of samples. A network that is in use has those of the training
/// data: `calibrate` takes them from some batches with the parameters of now (Wu and Johnson, *Rethinking "Batch" in
/// BatchNorm*, 2021, Section 3.2, "PreciseBN"). So no running average is a state of the run.

#include <cstdint>
#include <vector>

#include "base/range.hpp"
#include "nn/images/buffer_pool.hpp"
#include "nn/images/layers/batch_norm.hpp"
#include "nn/images/layers/binary_convolution.hpp"
#include "nn/images/nodes.hpp"

namespace onebit::nn {

/// Numbers that a network keeps of a batch, for an estimate of memory: the outputs of all nodes, some gradients, and
/// the bits of 1-bit convolutions, 32 of which count as a number. Scratch memory, of some MiB, is not counted.
double numbers_kept(const ImageNodes& nodes, int batch);

/// Refuses a batch of a network whose 1-bit convolutions it would give gradients with too long columns.
/// \throws InputError
void check_binary_convolutions(const ImageNodes& nodes, int batch);

/// For batches of one size. It allocates all memory of a step, once. Instantiated for float and double on every
/// backend.
template <class Exec, class Real>
class ImageNetwork {
public:
  using Product = linalg::MatrixProduct<Exec, Real>;
  using Buffer = Vector<Exec, Real>;

  /// \param batch        B, a multiple of norm_samples
  /// \param norm_samples whose statistics a norm takes together
  ImageNetwork(const Exec& exec, const ImageNodes& nodes, int batch, int norm_samples, Product product = Product());

  /// The output (B·H·W·C) of the last node with the statistics of the batch; keeps what `backward` needs. The caller
  /// may write over it. \param pixels (B·H·W·C) of the images
  const Buffer& forward(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& pixels) {
    return run(exec, x, pixels, true);
  }
  /// The same with the statistics of the last `calibrate`.
  const Buffer& infer(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& pixels) {
    return run(exec, x, pixels, false);
  }

  /// (B·H·W·C) where the caller writes the gradient at the output before each `backward`.
  const Buffer& d_output() const { return m_d_output; }
  /// g ← the gradient at d_output() of the last `forward`, which had the same x; g += it if `add`. It may overwrite
  /// d_output().
  /// \param ready_from is called with b when elements [b, d) are complete: for each weight, the last one first
  /// \param key        of the batch, for the rounding of quantised gradients
  void backward(const Exec& exec, const Vector<Exec, const Real>& x, bool add, const Vector<Exec, Real>& g,
                const GradientReady& ready_from = {}, const QuantizerKey& key = {});

  /// Of the 1-bit convolutions in the last `backward`.
  QuantizationState quantization() const;
  /// What `backward` measures of their quantisers.
  void measure_quantizers(QuantizerMeasures measures) { m_quantizer_measures = measures; }

  /// d_images (B·H·W·C) ← the gradient at the images alone, with no gradient of parameters. It is for networks without
  /// layer normalisations and biases of their own.
  void backward_to_images(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& d_images);

  /// The statistics of `infer` ← the means over some batches, whose pixels `draw(k)` gives for the k-th: of the means
  /// of groups, and of their variances with R − 1 in place of R rows.
  template <class Draw>
  void calibrate(const Exec& exec, const Vector<Exec, const Real>& x, int batches, const Draw& draw) {
    if (m_nodes.norms() == 0) return;
    Kokkos::deep_copy(exec, m_population, Real(0));
    for (int k = 0; k < batches; ++k) {
      run(exec, x, draw(k), true);
      add_statistics(exec, 1 / Real(batches));
    }
    set_population(exec);
  }

  // The parts of these. They are public because they hold lambdas for the device.

  /// m_population += factor · the statistics of each norm, the mean over its groups.
  void add_statistics(const Exec& exec, Real factor);
  /// The reciprocal standard deviations of m_population from its variances.
  void set_population(const Exec& exec);

private:
  using Kernels = Layers<Exec, Real>;
  using Norms = BatchNorms<Exec, Real>;
  using RealMatrix = MatrixRef<Exec, Real>;
  using Factor = linalg::Factor<Exec, Real>;

  /// The output of node k, or the gradient there.
  RealMatrix output(int k) const { return matrix(m_outputs[k], m_nodes.nodes()[k]); }
  RealMatrix gradient(int k) const { return matrix(m_gradients[k], m_nodes.nodes()[k]); }
  RealMatrix matrix(const Buffer& buffer, const Node& node) const {
    return RealMatrix(buffer.data(), m_batch * node.height * node.width, node.channels);
  }
  /// The same with a row for each sample.
  RealMatrix samples(const Buffer& buffer, int k) const {
    return RealMatrix(buffer.data(), m_batch, m_nodes.nodes()[k].size());
  }
  /// Of norm node k. \param trains with the statistics of the batch, not of the population
  BatchNorm<Exec, Real> norm(const Vector<Exec, const Real>& x, int k, bool trains) const;
  /// Of layer_norm node k.
  LayerNorm<Exec, Real> layer_norm(const Vector<Exec, const Real>& x, int k) const;
  /// The output of the node that node k adds; empty if it adds none.
  RealMatrix addend(int k) const {
    const int from = m_nodes.nodes()[k].addend;
    return from > 0 ? output(from) : RealMatrix();
  }
  void convolve(const Exec& exec, const Vector<Exec, const Real>& x, int k);
  /// The output of the last node, after all before it; a norm's statistics are the batch's or the population's.
  const Buffer& run(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& pixels, bool trains);
  void backward_through(const Exec& exec, const Vector<Exec, const Real>& x, bool add, const Buffer& g,
                        const GradientReady& ready_from);
  /// Whether the gradient of parameters is wanted, and that at the output of node k.
  static bool wants_parameters(const Buffer& g) { return g.extent(0) > 0; }
  bool wants_gradient(int k) const { return k > 0 || m_d_images.extent(0) > 0; }
  void node_backward(const Exec& exec, const Vector<Exec, const Real>& x, int k, bool add, const Buffer& g);
  void convolution_backward(const Exec& exec, int k, bool add, const Buffer& g);
  void binary_backward(const Exec& exec, const Vector<Exec, const Real>& x, int k, bool add, const Buffer& g);
  void dense_backward(const Exec& exec, int k, bool add, const Buffer& g);
  void transposed_backward(const Exec& exec, int k, bool add, const Buffer& g);
  void norm_backward(const Exec& exec, const Vector<Exec, const Real>& x, int k, bool add, const Buffer& g);
  void layer_norm_backward(const Exec& exec, const Vector<Exec, const Real>& x, int k, bool add, const Buffer& g);
  void bias_backward(const Exec& exec, int k, bool add, const Buffer& g);
  void exchange_backward(const Exec& exec, int k);
  /// Elements [begin, begin + length) of g, to which a gradient is added: 0 before, unless `add`.
  static VectorRef<Exec, Real> vector_gradient(const Exec& exec, const Buffer& g, std::size_t begin, int length,
                                               bool add);
  QuantizedParameters<Exec, Real> binary_parameters(const Vector<Exec, const Real>& x, const Node& node) const;
  /// Whether a gradient at node k is added to what another node wrote there; if not, there is memory for it now.
  bool adds_to(int k) {
    if (m_gradients[k].extent(0) > 0) return true;
    m_gradients[k] = k == 0 ? m_d_images : m_pool.take(static_cast<std::size_t>(m_batch) * m_nodes.nodes()[k].size());
    return false;
  }

  ImageNodes m_nodes;
  Product m_product;
  int m_batch, m_groups;
  Real m_epsilon = Real(1e-5);                          ///< of the norms, torchvision's
  Real m_layer_epsilon = Real(1e-6);                    ///< of layer normalisations, that of the authors of MLP-Mixer
  std::vector<Convolution<Exec, Real>> m_convolutions;  ///< by node; unused for others
  BinaryConvolutions<Exec, Real> m_binary;
  QuantizerMeasures m_quantizer_measures = QuantizerMeasures::none;
  QuantizerKey m_key;  ///< of the batch of a backward pass

  std::vector<Buffer> m_outputs;             ///< of each node
  std::vector<Buffer> m_row_statistics;      ///< (2, rows) of a layer normalisation's; by node, empty for others
  std::vector<Buffer> m_gradients;           ///< at the outputs in a backward pass, from the first to the last use
  BufferPool<Exec, Real> m_pool;             ///< of m_gradients
  Buffer m_d_output;                         ///< of the last node
  Buffer m_d_images;                         ///< of the caller; empty if it is not wanted
  std::vector<std::size_t> m_first_channel;  ///< (norms + 1) of each norm among all norms' channels
  Buffer m_mean, m_reciprocal_std;           ///< (G, C) of each norm, one after the other
  Buffer m_population;                       ///< (2, channels of all norms) means, and reciprocal standard deviations
  Buffer m_convolution_scratch, m_scratch;
  Factor m_weights;  ///< all parameters
};

}  // namespace onebit::nn
