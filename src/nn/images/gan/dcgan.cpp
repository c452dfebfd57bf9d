#include "nn/images/gan/dcgan.hpp"

#include <string>
#include <utility>

#include "nn/activation.hpp"
#include "nn/flat_vectors.hpp"

namespace onebit::nn {
namespace {

constexpr int kernel = 4, stride = 2;
constexpr double initial_deviation = 0.02;  // Section 4

ImageNodes generator_nodes(const DcganShape& shape) {
  const int levels = halvings(shape.height, shape.width);
  const auto channels = [&](int level) { return shape.first_outputs << level; };
  ImageNodes nodes(1, 1, latent_size);
  const std::string name = "generator.";
  int from = nodes.dense(name + "dense", 0, shape.height >> levels, shape.width >> levels, channels(levels - 1));
  from = nodes.norm(name + "norm0", from, true);
  for (int layer = 1; layer < levels; ++layer) {
    const std::string number = std::to_string(layer);
    from = nodes.transposed(name + "conv" + number, from, channels(levels - 1 - layer), kernel);
    from = nodes.norm(name + "norm" + number, from, true);
  }
  nodes.tanh(nodes.transposed(name + "conv" + std::to_string(levels), from, shape.channels, kernel));
  nodes.set_deviation(initial_deviation);
  return nodes;
}

ImageNodes discriminator_nodes(const DcganShape& shape, const TensorTable& before) {
  ImageNodes nodes(shape.height, shape.width, shape.channels, before);
  const std::string name = "discriminator.";
  int from = 0;
  for (int layer = 0; layer < halvings(shape.height, shape.width); ++layer) {
    const std::string number = std::to_string(layer + 1);
    from = nodes.convolution(name + "conv" + number, from, shape.first_outputs << layer,
                             {kernel, stride, (kernel - 1) / 2});
    if (layer > 0) from = nodes.norm(name + "norm" + number, from, false);
    from = nodes.leaky_relu(from);
  }
  nodes.dense(name + "dense", from, 1);
  nodes.set_deviation(initial_deviation);
  return nodes;
}

/// losses(i) ← softplus(−sign · logits(i)), and factor times its derivative.
template <class Exec, class Real>
struct LogisticLoss {
  Vector<Exec, Real> logits, losses, d_logits;
  Real sign, factor;

  KOKKOS_FUNCTION void operator()(std::size_t i) const {
    const Real a = -sign * logits(i), size = a < 0 ? -a : a;
    losses(i) = (a < 0 ? Real(0) : a) + math::log1p(exp(-size));
    d_logits(i) = -sign * factor / (1 + exp(-a));
  }
};

/// latents(i) ← number i % latent_size of the z of sample first_sample + i / latent_size.
template <class Exec, class Real>
struct DrawLatents {
  std::uint64_t key, step, first_sample;
  Vector<Exec, Real> latents;

  KOKKOS_FUNCTION void operator()(std::size_t i) const {
    const Philox4 random = philox(key, step, first_sample * latent_size + i);
    latents(i) = static_cast<Real>(normal(random.word[0], random.word[1]));
  }
};

}  // namespace

int halvings(int height, int width) {
  const auto divides = [&](int factor) { return height % factor == 0 && width % factor == 0; };
  return divides(8) ? 3 : divides(4) ? 2 : 0;
}

DcganNodes::DcganNodes(const DcganShape& shape)
    : generator(generator_nodes(shape)), discriminator(discriminator_nodes(shape, generator.table())) {}

template <class Exec, class Real>
void draw_latents(const Exec& exec, std::uint64_t seed, std::uint64_t step, std::uint64_t first_sample,
                  const Vector<Exec, Real>& latents) {
  for_each(exec, "OneBit::nn::draw_latents", latents.extent(0),
           DrawLatents<Exec, Real>{stream_key(seed, Stream::latents), step, first_sample, latents});
}

template <class Exec, class Real>
Dcgan<Exec, Real>::Dcgan(const Exec& exec, const DcganNodes& nodes, int batch, int norm_samples, Product of_generator,
                         Product of_discriminator)
    : m_generator(exec, nodes.generator, batch, norm_samples, std::move(of_generator)),
      m_discriminator(exec, nodes.discriminator, batch, norm_samples, std::move(of_discriminator)),
      m_batch(batch),
      m_losses(make_uninitialized<Exec, Real>("OneBit::nn::Dcgan::losses", batch)),
      m_loss_sum(batch) {}

template <class Exec, class Real>
double Dcgan<Exec, Real>::logistic_loss(const Exec& exec, const Buffer& logits, Source source, Real factor,
                                        const Buffer& d_logits) {
  const Real sign = source == Source::data ? 1 : -1;
  for_each(exec, "OneBit::nn::logistic_loss", logits.extent(0),
           LogisticLoss<Exec, Real>{logits, m_losses, d_logits, sign, factor});
  return sum_losses<Exec, Real>(exec, m_loss_sum, m_losses) / m_batch;
}

/// The gradient of D is complete before that of G, which stands before it: so G's backward pass is the last.
template <class Exec, class Real>
DcganLosses Dcgan<Exec, Real>::gradient(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& images,
                                        const Buffer& latents, Real scale, bool add, const Buffer& g,
                                        const GradientReady& ready_from) {
  const Real of_mean = scale / Real(m_batch);
  const Buffer& d_logits = m_discriminator.d_output();
  DcganLosses losses{};
  const Buffer& logits = m_discriminator.forward(exec, x, m_generator.forward(exec, x, latents));
  losses.generator = logistic_loss(exec, logits, Source::data, of_mean, d_logits);
  m_discriminator.backward_to_images(exec, x, m_generator.d_output());
  losses.discriminator = logistic_loss(exec, logits, Source::generator, of_mean, d_logits);
  m_discriminator.backward(exec, x, add, g);

  m_discriminator.forward(exec, x, images);
  losses.discriminator += logistic_loss(exec, logits, Source::data, of_mean, d_logits);
  m_discriminator.backward(exec, x, true, g, ready_from);
  m_generator.backward(exec, x, add, g, ready_from);
  return losses;
}

template <class Exec, class Real>
double Dcgan<Exec, Real>::loss(const Exec& exec, const Vector<Exec, const Real>& x, const Buffer& images,
                               Source source) {
  return logistic_loss(exec, m_discriminator.infer(exec, x, images), source, 1, m_discriminator.d_output());
}

#define ONEBIT_INSTANTIATE(Exec, Real)                                                                             \
  template void draw_latents(const Exec&, std::uint64_t, std::uint64_t, std::uint64_t, const Vector<Exec, Real>&); \
  template class Dcgan<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
