#pragma once
/// \file dcgan.hpp
/// A generative adversarial network of convolutions: DCGAN (Radford, Metz and Chintala, *Unsupervised representation
/// learning with deep convolutional generative adversarial networks*, ICLR 2016).
///
/// The generator G makes images from normal numbers z, and the discriminator D gives a logit that is positive for
/// images of the data. D minimises L_D, the mean of softplus(−D(image)) plus the mean of softplus(D(G(z))). G minimises
/// L_G, the mean of softplus(−D(G(z))), in place of −L_D, whose gradient vanishes while D is right (Goodfellow et al.,
/// NIPS 2014, Section 3). softplus(a) = ln(1 + e^a).
///
/// Both networks have one flat vector of parameters, x = [G; D], and g = [∇_G L_G; ∇_D L_D] at one x and one batch of z
/// takes the place of a gradient. So a step of any optimiser is a step of both networks at once.

#include <cstdint>

#include "base/device/parallel.hpp"
#include "nn/images/image_network.hpp"

namespace onebit::nn {

/// Normal numbers that the generator makes an image of (the paper's Section 4 has as many uniform ones).
inline constexpr int latent_size = 100;

/// The images of a DCGAN, and its width.
struct DcganShape {
  int height, width, channels;  ///< of an image
  int first_outputs;            ///< channels of the discriminator's first convolution and of the generator's last input
};

/// How often the discriminator halves the extents of its images: three times if they are multiples of 8, else twice; 0
/// if they are no multiples of 4, which no DCGAN here makes.
int halvings(int height, int width);

/// The two networks, with all parameters in the discriminator's table. The generator: a dense layer of z makes a small
/// image of many channels, and transposed convolutions of 4 × 4 pixels double its extents and halve its channels; with
/// batch normalisations and ReLUs between them, and tanh at the end. The discriminator: convolutions of 4 × 4 pixels
/// and stride 2 with leaky ReLUs, and batch normalisations except at the first; a dense layer gives the logit. All
/// matrices begin with N(0, 0.02²).
struct DcganNodes {
  /// \param shape has `halvings`
  explicit DcganNodes(const DcganShape& shape);

  const TensorTable& table() const { return discriminator.table(); }

  ImageNodes generator, discriminator;
};

/// Where the discriminator should say that images are from.
enum class Source { data, generator };

/// L_D and L_G.
struct DcganLosses {
  double discriminator, generator;
};

/// latents (B·latent_size) ← the z of samples [first_sample, first_sample + B) of a step. Each is a function of
/// (seed, step, sample).
template <class Exec, class Real>
void draw_latents(const Exec& exec, std::uint64_t seed, std::uint64_t step, std::uint64_t first_sample,
                  const Vector<Exec, Real>& latents);

/// For batches of one size B. It allocates all memory of a step, once. Images are flat, (B·H·W·C), with values in
/// [−1, 1]. Images of the data and of the generator go through the discriminator in batches of their own, each with its
/// own statistics. Instantiated for float and double on every backend.
template <class Exec, class Real>
class Dcgan {
public:
  using Buffer = Vector<Exec, Real>;
  using Network = ImageNetwork<Exec, Real>;
  using Product = typename Network::Product;

  /// See ImageNetwork.
  Dcgan(const Exec& exec, const DcganNodes& nodes, int batch, int norm_samples, Product of_generator = Product(),
        Product of_discriminator = Product());

  /// g ← scale · [∇_G L_G; ∇_D L_D] of a batch; g += it if `add`. \returns the losses
  /// \param images  of the data
  /// \param latents z, (B·latent_size)
  /// \param ready_from is called with b when elements [b, d) are complete: for each weight, the last one first
  DcganLosses gradient(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& images, const Buffer& latents,
                       Real scale, bool add, const Buffer& g, const GradientReady& ready_from = {});

  // The networks in use, with statistics that ImageNetwork::calibrate takes.

  /// Those of `generate` ← from batches of z, of which `draw(k)` gives the k-th.
  template <class Draw>
  void calibrate_generator(const Exec& exec, const Vector<Exec, const Real>& x, int batches, const Draw& draw) {
    m_generator.calibrate(exec, x, batches, draw);
  }
  /// Those of `loss` ← from batches of images of one source.
  template <class Draw>
  void calibrate_discriminator(const Exec& exec, const Vector<Exec, const Real>& x, int batches, const Draw& draw) {
    m_discriminator.calibrate(exec, x, batches, draw);
  }
  /// Images of z.
  const Buffer& generate(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& latents) {
    return m_generator.infer(exec, x, latents);
  }
  /// The mean of softplus(∓D): that part of L_D which images of this source have.
  double loss(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& images, Source source);

private:
  /// The mean of softplus(∓logit) for logits that should name this source; d_logits ← factor · its gradient.
  double logistic_loss(const Exec& exec, const Buffer& logits, Source source, Real factor, const Buffer& d_logits);

  Network m_generator, m_discriminator;
  int m_batch;
  Buffer m_losses;  ///< (B)
  OrderedSum<Exec> m_loss_sum;
};

}  // namespace onebit::nn
