#pragma once
/// \file images.hpp
/// Classification of images by a convolutional network.

#include "nn/images/image_classifier.hpp"
#include "workload/images/image_batches.hpp"
#include "workload/quantization.hpp"

namespace onebit::workload {

/// Reads the files of images. \throws InputError as Images
Footprint images_footprint(const config::Input& input, int ranks);

/// Sample s of step t is the same on any rank. Before a validation each rank takes the statistics of batch
/// normalisations from the same training samples, so they need no exchange.
template <class Exec>
class Images : public Workload<Exec> {
public:
  Images(const Exec& exec, const config::Input& input, const Share& share);

  const TensorTable& tensors() const override { return m_footprint.tensors; }
  double bytes() const override { return m_footprint.bytes; }
  void initialize(const Exec& exec, const Vector<Exec, float>& x) override;
  double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                  PhaseTimes& times, const GradientReady& ready_from) override;
  LossSum validation_loss(const Exec& exec, const Vector<Exec, float>& x,
                          const std::function<bool()>& goes_on) override;
  std::string samples() const override { return m_samples.summary(); }
  nn::QuantizationState quantization() const override { return m_model.quantization(); }
  double tokens_per_step() const override { return m_rounds.samples_of_step(); }

private:
  int m_rank;
  std::uint64_t m_seed;
  Rounds m_rounds;
  MeasuredSteps m_measures;
  data::ImageSamples m_samples;
  nn::ImageNodes m_nodes;
  Footprint m_footprint;
  nn::ImageClassifier<Exec, float> m_model;
  ImageBatches<Exec> m_batches;
};

}  // namespace onebit::workload
