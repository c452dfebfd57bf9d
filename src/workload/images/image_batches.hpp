#pragma once
/// \file image_batches.hpp
/// What the workloads on images share: the samples of section `images`, and their batches on the device.

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "data/images/image_samples.hpp"
#include "nn/images/image_classifier.hpp"
#include "workload/rounds.hpp"
#include "workload/workload.hpp"

namespace onebit::workload {

/// Batches that the statistics of batch normalisations are taken from before a validation.
inline int calibration_batches(int batch) {
  constexpr int samples = 512;
  return (samples + batch - 1) / batch;
}
/// The step of these samples, and of all numbers that a validation draws; training begins at step 1.
inline constexpr std::uint64_t validation_step = 0;

/// Reads the files of section `images`. \throws InputError as data::ImageSamples, and for too few to validate with
inline data::ImageSamples read_samples(const config::Input& input, const Rounds& rounds, data::PixelScaling scaling) {
  const auto& in = input.images;
  data::ImageOptions options;
  options.training = in.training;
  options.validation = in.validation;
  options.crop = in.augment != Augment::none;
  options.flip = in.augment == Augment::crop_flip;
  options.scaling = scaling;
  data::ImageSamples samples = located(input.where("images.training"), [&] {
    return data::ImageSamples(options, static_cast<std::uint64_t>(input.run.seed));
  });
  rounds.check_validation(input, samples.validation_size(), "images.validation");
  return samples;
}

/// \param numbers that the networks keep of a batch
/// \param keys    that determine the size
inline Footprint images_footprint(const data::ImageSamples& samples, const TensorTable& tensors, double numbers,
                                  const std::vector<std::string>& keys) {
  Footprint footprint;
  footprint.tensors = tensors;
  footprint.bytes =
      sizeof(float) * numbers +
      static_cast<double>((samples.training_size() + samples.validation_size()) * samples.extents().size());
  footprint.keys = keys;
  return footprint;
}

/// Copies batches to the device: each replaces the one before.
template <class Exec>
class ImageBatches {
public:
  /// \param samples outlive this
  ImageBatches(int rank, const Rounds& rounds, const data::ImageSamples& samples)
      : m_rank(rank), m_rounds(rounds), m_samples(samples) {
    m_on_device.pixels =
        make_uninitialized<Exec, float>("OneBit::workload::pixels", samples.extents().size() * rounds.batch);
    m_on_device.classes = make_uninitialized<Exec, int>("OneBit::workload::classes", rounds.batch);
  }

  /// This rank's images of a round of a step.
  const nn::Images<Exec, float>& draw(const Exec& exec, std::uint64_t step, int round) {
    m_samples.draw(step, m_rounds.first_sample(m_rank, round), m_rounds.batch, m_on_host);
    return to_device(exec);
  }
  /// Batch k of those for calibration, the same on all ranks.
  const nn::Images<Exec, float>& draw_calibration(const Exec& exec, int k) {
    m_samples.draw(validation_step, static_cast<std::uint64_t>(k) * m_rounds.batch, m_rounds.batch, m_on_host);
    return to_device(exec);
  }
  const nn::Images<Exec, float>& draw_validation(const Exec& exec, int round) {
    m_samples.draw_validation(m_rounds.first_validation_sample(m_rank, round), m_rounds.batch, m_on_host);
    return to_device(exec);
  }

private:
  const nn::Images<Exec, float>& to_device(const Exec& exec) {
    copy_batch(exec, m_on_host.pixels, m_on_device.pixels);
    copy_batch(exec, m_on_host.labels, m_on_device.classes);
    return m_on_device;
  }

  int m_rank;
  Rounds m_rounds;
  const data::ImageSamples& m_samples;
  data::ImageBatch m_on_host;
  nn::Images<Exec, float> m_on_device;
};

}  // namespace onebit::workload
