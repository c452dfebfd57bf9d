#include "nn/images/image_classifier.hpp"

namespace onebit::nn {
namespace {

/// scaled(i) ← factor · values(i)
template <class Exec, class Real>
struct Scale {
  Vector<Exec, Real> values, scaled;
  Real factor;
  KOKKOS_FUNCTION void operator()(std::size_t i) const { scaled(i) = factor * values(i); }
};

}  // namespace

template <class Exec, class Real>
ImageClassifier<Exec, Real>::ImageClassifier(const Exec& exec, const ImageNodes& nodes, int batch, int norm_samples,
                                             Product product)
    : m_network(exec, nodes, batch, norm_samples, std::move(product)),
      m_batch(batch),
      m_classes(nodes.last().channels),
      m_bias(nodes.head_bias()),
      m_losses(make_uninitialized<Exec, Real>("OneBit::nn::ImageClassifier::losses", batch)),
      m_scratch(make_uninitialized<Exec, Real>("OneBit::nn::ImageClassifier::scratch",
                                               std::size_t(row_block_count<Exec, false>(batch)) * m_classes)),
      m_loss_sum(batch) {}

template <class Exec, class Real>
double ImageClassifier<Exec, Real>::cross_entropy(const Exec& exec, const Vector<Exec, const Real>& x,
                                                  const Images<Exec, Real>& images, CrossEntropyOutput wanted) {
  Kernels::cross_entropy(exec, vector_at<Exec>(x, m_bias, m_classes), images.classes, wanted, logits(), m_losses);
  return sum_losses<Exec, Real>(exec, m_loss_sum, m_losses) / m_batch;
}

template <class Exec, class Real>
double ImageClassifier<Exec, Real>::loss(const Exec& exec, const Vector<Exec, const Real>& x,
                                         const Images<Exec, Real>& images) {
  m_logits = m_network.infer(exec, x, images.pixels);
  return cross_entropy(exec, x, images, CrossEntropyOutput::logits);
}

template <class Exec, class Real>
double ImageClassifier<Exec, Real>::accuracy(const Exec& exec, const Images<Exec, Real>& images) {
  Kernels::is_right(exec, images.classes, logits(), m_losses);
  return sum_losses<Exec, Real>(exec, m_loss_sum, m_losses) / m_batch;
}

template <class Exec, class Real>
double ImageClassifier<Exec, Real>::forward(const Exec& exec, const Vector<Exec, const Real>& x,
                                            const Images<Exec, Real>& images) {
  m_logits = m_network.forward(exec, x, images.pixels);
  return cross_entropy(exec, x, images, CrossEntropyOutput::gradient);
}

template <class Exec, class Real>
void ImageClassifier<Exec, Real>::backward(const Exec& exec, const Vector<Exec, const Real>& x, const QuantizerKey& key,
                                           Real scale, bool add, const Buffer& g, const GradientReady& ready_from) {
  const Real of_mean = scale / Real(m_batch);
  const auto d_bias = vector_at<Exec>(g, m_bias, m_classes);
  if (!add) Kokkos::deep_copy(exec, d_bias, Real(0));
  Kernels::add_bias_backward(exec, logits(), m_scratch, d_bias, of_mean);
  for_each(exec, "OneBit::nn::gradient_of_mean", m_logits.extent(0),
           Scale<Exec, Real>{m_logits, m_network.d_output(), of_mean});
  m_network.backward(exec, x, add, g, ready_from, key);
}

#define ONEBIT_INSTANTIATE(Exec, Real) template class ImageClassifier<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
