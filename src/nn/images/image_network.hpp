#pragma once
/// \file image_network.hpp
/// A network that classifies images (nodes.hpp), forward and backward on one flat buffer of parameters and one of
/// gradients.
///
/// In training a norm has the statistics of its group of samples. A network that is in use has those of the training
/// data: `calibrate` takes them from some batches with the parameters of now (Wu and Johnson, *Rethinking "Batch" in
/// BatchNorm*, 2021, Section 3.2, "PreciseBN"). So no running average is a state of the run.

#include <cstdint>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/range.hpp"
#include "nn/images/batch_norm.hpp"
#include "nn/images/nodes.hpp"

namespace onebit::nn {

/// A batch of B images.
template <class Exec, class Real>
struct Images {
  Vector<Exec, Real> pixels;  ///< (B·H·W·C), NHWC
  Vector<Exec, int> classes;  ///< (B)
};

/// Numbers that a network keeps of a batch, for an estimate of memory: the outputs of all nodes and their gradients.
/// Scratch memory, of some MiB, is not counted.
double numbers_kept(const ImageNodes& nodes, int batch);

/// For batches of one size. It allocates all memory of a step, once. Instantiated for float and double on every
/// backend.
template <class Exec, class Real>
class ImageNetwork {
public:
  using Product = linalg::MatrixProduct<Exec, Real>;

  /// \param batch        B, a multiple of norm_samples
  /// \param norm_samples whose statistics a norm takes together
  ImageNetwork(const Exec& exec, const ImageNodes& nodes, int batch, int norm_samples, Product product = Product());

  /// Mean cross entropy (natural logarithm) with the statistics of the last `calibrate`.
  double loss(const Exec& exec, const Vector<Exec, const Real>& x, const Images<Exec, Real>& images);
  /// Fraction of the images of the last `loss` whose class has the greatest logit.
  double accuracy(const Exec& exec, const Images<Exec, Real>& images);

  /// The loss with the statistics of the batch; keeps what `backward` needs.
  double forward(const Exec& exec, const Vector<Exec, const Real>& x, const Images<Exec, Real>& images);
  /// g ← scale · gradient of the last `forward`, which had the same x; g += it if `add`.
  /// \param ready_from is called with b when elements [b, d) are complete: for each convolution, the last one first
  void backward(const Exec& exec, const Vector<Exec, const Real>& x, Real scale, bool add, const Vector<Exec, Real>& g,
                const GradientReady& ready_from = {});

  /// The statistics of `loss` ← the means over some batches, of which `draw(k)` gives the k-th: of the means of groups,
  /// and of their variances with R − 1 in place of R rows.
  template <class Draw>
  void calibrate(const Exec& exec, const Vector<Exec, const Real>& x, int batches, const Draw& draw) {
    Kokkos::deep_copy(exec, m_population, Real(0));
    for (int k = 0; k < batches; ++k) {
      run(exec, x, draw(k).pixels, true);
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
  using Buffer = Vector<Exec, Real>;

  /// The output of node k, or the gradient there.
  RealMatrix output(int k) const { return matrix(m_outputs[k], m_nodes.nodes()[k]); }
  RealMatrix gradient(int k) const { return matrix(m_gradients[k], m_nodes.nodes()[k]); }
  RealMatrix matrix(const Buffer& buffer, const Node& node) const {
    return RealMatrix(buffer.data(), m_batch * node.height * node.width, node.channels);
  }
  RealMatrix logits() const { return RealMatrix(m_logits.data(), m_batch, m_classes); }
  /// Of norm node k. \param trains with the statistics of the batch, not of the population
  BatchNorm<Exec, Real> norm(const Vector<Exec, const Real>& x, int k, bool trains) const;
  /// Node by node up to the last; a norm's statistics are the batch's or the population's.
  void run(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& pixels, bool trains);
  double head(const Exec& exec, const Vector<Exec, const Real>& x, const Images<Exec, Real>& images,
              CrossEntropyOutput output);
  void node_backward(const Exec& exec, const Vector<Exec, const Real>& x, int k, bool add, const Buffer& g);
  void norm_backward(const Exec& exec, const Vector<Exec, const Real>& x, int k, bool add, const Buffer& g);
  /// Whether a gradient at node k is added to what another node wrote there, which from now on is so.
  bool adds_to(int k) {
    const bool adds = m_has_gradient[k];
    m_has_gradient[k] = true;
    return adds;
  }

  ImageNodes m_nodes;
  Product m_product;
  int m_batch, m_classes, m_groups;
  Real m_epsilon = Real(1e-5);                          ///< of the norms, torchvision's
  std::vector<Convolution<Exec, Real>> m_convolutions;  ///< by node; unused for others

  std::vector<Buffer> m_outputs;             ///< of each node
  std::vector<Buffer> m_gradients;           ///< at each node's output
  std::vector<bool> m_has_gradient;          ///< of each node, in a backward pass
  std::vector<std::size_t> m_first_channel;  ///< (norms + 1) of each norm among all norms' channels
  Buffer m_mean, m_reciprocal_std;           ///< (G, C) of each norm, one after the other
  Buffer m_population;                       ///< (2, channels of all norms) means, and reciprocal standard deviations
  Buffer m_logits;                           ///< (B, classes), or their gradient
  Buffer m_losses;                           ///< (B), or whether each prediction is right
  Buffer m_unfolded, m_scratch;
  Factor m_weights;  ///< all parameters
  OrderedSum<Exec> m_loss_sum;
};

}  // namespace onebit::nn
