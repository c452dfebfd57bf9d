#pragma once
/// \file dcgan.hpp
/// A generative adversarial network of convolutions (1-bit Adam, Section 7.3). Its loss is that of the discriminator,
/// L_D; the gradient of the generator is that of L_G (nn/images/gan/dcgan.hpp).

#include "nn/images/gan/dcgan.hpp"
#include "nn/images/gan/random_features.hpp"
#include "workload/images/image_batches.hpp"

namespace onebit::workload {

/// Reads the files of images. \throws InputError as Dcgan
Footprint dcgan_footprint(const config::Input& input, int ranks);

/// Sample s of step t, an image of the data and the numbers z of a generated one, is the same on any rank. A validation
/// draws one z for each image of the data.
template <class Exec>
class Dcgan : public Workload<Exec> {
public:
  /// \throws InputError for files that cannot be read, images whose extents are no multiples of 4, or networks that do
  ///         not fit into memory
  Dcgan(const Exec& exec, const config::Input& input, const Share& share);

  const TensorTable& tensors() const override { return m_footprint.tensors; }
  double bytes() const override { return m_footprint.bytes; }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override;
  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientReady& ready_from) override;
  LossSum validation_loss(const Exec& exec, const Vector<Exec, float>& x,
                          const std::function<bool()>& goes_on) override;
  Picture picture(const Exec& exec, const Vector<Exec, float>& x) override;
  std::string samples() const override { return m_samples.summary(); }
  double tokens_per_step() const override { return m_rounds.samples_of_step(); }

private:
  using Buffer = Vector<Exec, float>;

  /// The numbers z of samples [first, first + batch) of a step.
  const Buffer& latents(const Exec& exec, std::uint64_t step, std::uint64_t first);
  void calibrate_generator(const Exec& exec, const Vector<Exec, float>& x);
  /// Images of z of samples [first, first + batch) of a validation.
  const Buffer& generate(const Exec& exec, const Vector<Exec, float>& x, std::uint64_t first);

  int m_rank;
  std::uint64_t m_seed;
  Rounds m_rounds;
  data::ImageSamples m_samples;
  nn::DcganNodes m_nodes;
  Footprint m_footprint;
  nn::Dcgan<Exec, float> m_model;
  nn::RandomFeatures<Exec> m_features;
  ImageBatches<Exec> m_batches;
  Buffer m_latents;
};

}  // namespace onebit::workload
