#pragma once
/// \file image_samples.hpp
/// Batches of labelled images, for classification and for generators.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/images/image_files.hpp"
#include "data/samples.hpp"

namespace onebit::data {

/// What becomes of a byte p of a pixel.
enum class PixelScaling {
  standardize,  ///< (p / 255 − mean) / standard deviation, both of its channel over the training set
  symmetric     ///< p / 127.5 − 1, in [−1, 1] as the tanh of a generator, whose images may all be of one class
};

/// What images to draw, and how.
struct ImageOptions {
  std::vector<std::string> training;    ///< files, as of `read_images`
  std::vector<std::string> validation;  ///< should have no image in common with `training`, which is not checked
  bool crop = false;  ///< training images are cut out at random after `crop_padding` pixels are put on each side
  bool flip = false;  ///< training images are mirrored, left for right, with probability 1/2
  PixelScaling scaling = PixelScaling::standardize;
};

/// Pixels put on each side of an image before it is cropped to its size. They are black: 0 before the scaling.
inline constexpr int crop_padding = 4;

/// B images of H rows, W columns and C channels.
struct ImageBatch {
  std::vector<float> pixels;  ///< (B, H, W, C)
  std::vector<int> labels;    ///< (B) classes
};

/// Draws images by counter: image s of step t, with its crop and its flip, is a function of (seed, t, s). The sets stay
/// in memory as bytes.
class ImageSamples final {
public:
  /// \throws InputError as `read_images`, when the training set has one class and may not, and when the validation
  ///         set has other extents or a label that the training set lacks
  ImageSamples(const ImageOptions& options, std::uint64_t seed);

  /// "10 classes; 50000 images of 32 x 32 pixels of 3 channels to train on, 10000 to validate with"
  std::string summary() const;
  const ImageExtents& extents() const { return m_training.extents; }
  /// Labels of the classes: class k is the k-th of the training set's labels in increasing order.
  const std::vector<int>& classes() const { return m_classes; }
  std::size_t training_size() const { return m_training.labels.size(); }
  std::size_t validation_size() const { return m_validation.labels.size(); }

  /// Draws images [first_sample, first_sample + count) of step `step`, uniformly with replacement.
  void draw(std::uint64_t step, std::uint64_t first_sample, int count, ImageBatch& batch) const;
  /// Draws images [first_sample, first_sample + count) of the validation, each at most once, as they are. For every n,
  /// images [0, n) are spread evenly over the set. \throws InputError when there are fewer images
  void draw_validation(std::uint64_t first_sample, int count, ImageBatch& batch) const;

private:
  /// A drawn image: pixel (y, x) is that at (y + down, x + right) of image `index` of its set, from the right-hand side
  /// if `is_flipped`.
  struct View {
    std::size_t index;
    int down = 0, right = 0;
    bool is_flipped = false;
  };
  void set_values(PixelScaling scaling);
  View viewed(const Philox4& random) const;
  template <class ViewOf>
  void fill(const LabelledImages& set, int count, const ViewOf& view_of, ImageBatch& batch) const;
  void copy(const std::uint8_t* image, const View& view, float* pixels) const;

  bool m_crop, m_flip;
  std::uint64_t m_seed;
  LabelledImages m_training, m_validation;  ///< with classes in place of labels
  std::vector<int> m_classes;
  std::array<std::array<float, 256>, most_channels> m_values{};  ///< what becomes of each byte of each channel
  ValidationOrder m_validation_order;
};

}  // namespace onebit::data
