#include "data/images/image_samples.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "base/random.hpp"
#include "data/file_bytes.hpp"

namespace onebit::data {
namespace {

/// All labels in increasing order.
std::vector<int> labels_of(const LabelledImages& set, bool may_be_one) {
  std::vector<int> labels(set.labels.begin(), set.labels.end());
  std::sort(labels.begin(), labels.end());
  labels.erase(std::unique(labels.begin(), labels.end()), labels.end());
  if (labels.size() < 2 && !may_be_one)
    throw InputError(joined_names(set.label_files, "labels"),
                     "all images have the label " + std::to_string(labels.front()),
                     "give images of at least two classes");
  return labels;
}

/// Puts classes in place of labels.
void classify(const std::vector<int>& classes, LabelledImages& set) {
  for (std::size_t i = 0; i < set.labels.size(); ++i) {
    const int label = set.labels[i];
    const auto found = std::lower_bound(classes.begin(), classes.end(), label);
    if (found == classes.end() || *found != label) {
      const auto file = std::upper_bound(set.ends.begin(), set.ends.end(), i) - set.ends.begin();
      throw InputError(set.label_files[static_cast<std::size_t>(file)],
                       "no image of the training set has the label " + std::to_string(label),
                       "correct the label, or leave out its images");
    }
    set.labels[i] = static_cast<std::uint8_t>(found - classes.begin());
  }
}

/// How often each byte occurs in a channel.
std::array<std::uint64_t, 256> occurrences(const LabelledImages& set, std::size_t channel) {
  std::array<std::uint64_t, 256> counts{};
  for (std::size_t i = channel; i < set.pixels.size(); i += set.extents.channels) ++counts[set.pixels[i]];
  return counts;
}

/// Mean and standard deviation of the bytes of a channel.
struct Moments {
  double mean, deviation;
};

/// Sums over the 256 values and not over the images, so that hardly anything is rounded.
Moments moments(const std::array<std::uint64_t, 256>& counts) {
  double pixels = 0, sum = 0, squares = 0;
  for (std::size_t p = 0; p < counts.size(); ++p) {
    pixels += static_cast<double>(counts[p]);
    sum += static_cast<double>(counts[p] * p);
  }
  const double mean = sum / pixels;
  for (std::size_t p = 0; p < counts.size(); ++p) {
    const double difference = static_cast<double>(p) - mean;
    squares += static_cast<double>(counts[p]) * difference * difference;
  }
  return {mean, std::sqrt(squares / pixels)};
}

}  // namespace

ImageSamples::ImageSamples(const ImageOptions& options, std::uint64_t seed)
    : m_crop(options.crop),
      m_flip(options.flip),
      m_seed(seed),
      m_training(read_images(options.training)),
      m_validation(read_images(options.validation)),
      m_classes(labels_of(m_training, options.scaling == PixelScaling::symmetric)),
      m_validation_order(joined_names(options.validation, "images"), validation_size()) {
  if (!(m_validation.extents == m_training.extents))
    throw InputError(options.validation.front(),
                     "its images have " + m_validation.extents.words() + ", but those to train on have " +
                         m_training.extents.words(),
                     "name training and validation files whose images are of one size");
  classify(m_classes, m_training);
  classify(m_classes, m_validation);
  set_values(options.scaling);
}

/// The mean and the deviation of bytes are 255 times those of p / 255. Where all bytes of a channel are the same, they
/// become 0.
void ImageSamples::set_values(PixelScaling scaling) {
  for (std::size_t c = 0; c < extents().channels; ++c) {
    Moments of_channel{127.5, 127.5};
    if (scaling == PixelScaling::standardize) of_channel = moments(occurrences(m_training, c));
    const double divisor = of_channel.deviation > 0 ? of_channel.deviation : 1;
    for (std::size_t p = 0; p < m_values[c].size(); ++p)
      m_values[c][p] = static_cast<float>((static_cast<double>(p) - of_channel.mean) / divisor);
  }
}

std::string ImageSamples::summary() const {
  return std::to_string(m_classes.size()) + (m_classes.size() == 1 ? " class; " : " classes; ") +
         std::to_string(training_size()) + " images of " + extents().words() + " to train on, " +
         std::to_string(validation_size()) + " to validate with";
}

void ImageSamples::copy(const std::uint8_t* image, const View& view, float* pixels) const {
  const auto height = static_cast<std::ptrdiff_t>(extents().height);
  const auto width = static_cast<std::ptrdiff_t>(extents().width);
  const auto channels = static_cast<std::ptrdiff_t>(extents().channels);
  for (std::ptrdiff_t row = 0; row < height; ++row)
    for (std::ptrdiff_t column = 0; column < width; ++column) {
      const std::ptrdiff_t y = row + view.down, x = (view.is_flipped ? width - 1 - column : column) + view.right;
      const bool is_inside = 0 <= y && y < height && 0 <= x && x < width;
      for (std::ptrdiff_t c = 0; c < channels; ++c)
        *pixels++ = m_values[static_cast<std::size_t>(c)][is_inside ? image[(y * width + x) * channels + c] : 0];
    }
}

template <class ViewOf>
void ImageSamples::fill(const LabelledImages& set, int count, const ViewOf& view_of, ImageBatch& batch) const {
  const auto samples = static_cast<std::size_t>(count);
  const std::size_t size = extents().size();
  batch.pixels.resize(samples * size);
  batch.labels.resize(samples);
  for (std::size_t sample = 0; sample < samples; ++sample) {
    const View view = view_of(sample);
    copy(set.pixels.data() + view.index * size, view, batch.pixels.data() + sample * size);
    batch.labels[sample] = set.labels[view.index];
  }
}

ImageSamples::View ImageSamples::viewed(const Philox4& random) const {
  constexpr int places = 2 * crop_padding + 1;  // of the crop, in each direction
  View view{drawn_sample(random, training_size())};
  if (m_crop) {
    const auto place = static_cast<int>(random.word[2] % (places * places));
    view.down = place / places - crop_padding;
    view.right = place % places - crop_padding;
  }
  view.is_flipped = m_flip && random.word[3] % 2 == 1;
  return view;
}

void ImageSamples::draw(std::uint64_t step, std::uint64_t first_sample, int count, ImageBatch& batch) const {
  const std::uint64_t key = stream_key(m_seed, Stream::data);
  fill(
      m_training, count, [&](std::size_t sample) { return viewed(philox(key, step, first_sample + sample)); }, batch);
}

void ImageSamples::draw_validation(std::uint64_t first_sample, int count, ImageBatch& batch) const {
  m_validation_order.check(first_sample, count);
  fill(
      m_validation, count, [&](std::size_t sample) { return View{m_validation_order[first_sample + sample]}; }, batch);
}

}  // namespace onebit::data
