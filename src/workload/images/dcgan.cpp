#include "workload/images/dcgan.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "workload/transformer.hpp"

namespace onebit::workload {
namespace {

constexpr data::PixelScaling scaling = data::PixelScaling::symmetric;  // that of the generator's tanh
constexpr int picture_side = 8;                                        // generated images in a row, and rows

nn::DcganNodes make_nodes(const config::Input& input, const data::ImageSamples& samples) {
  const data::ImageExtents& extents = samples.extents();
  const nn::DcganShape shape{static_cast<int>(extents.height), static_cast<int>(extents.width),
                             static_cast<int>(extents.channels), input.images.width};
  if (nn::halvings(shape.height, shape.width) == 0)
    throw InputError(input.where("images.training"),
                     "its images have " + extents.words() +
                         ", and a generator doubles the height and the width of a smaller image twice",
                     "cut or pad the images to a height and a width that are multiples of 4");
  return nn::DcganNodes(shape);
}

Footprint footprint_of(const data::ImageSamples& samples, const nn::DcganNodes& nodes, int batch) {
  return images_footprint(samples, nodes.table(),
                          nn::numbers_kept(nodes.generator, batch) + nn::numbers_kept(nodes.discriminator, batch),
                          {"images.width", "train.batch"});
}

/// Byte p of a pixel, whose value is p / 127.5 − 1.
std::uint8_t byte_of(float value) {
  return static_cast<std::uint8_t>(std::lround(std::clamp(127.5f * (value + 1), 0.0f, 255.0f)));
}

/// The image's place is `number` from the upper left corner, row by row.
void put(const float* image, const data::ImageExtents& extents, int number, Picture& picture) {
  const std::size_t top = number / picture_side * extents.height, left = number % picture_side * extents.width;
  for (std::size_t y = 0; y < extents.height; ++y)
    for (std::size_t x = 0; x < extents.width; ++x)
      for (std::size_t c = 0; c < picture.channels; ++c)
        picture.bytes[((top + y) * picture.width + left + x) * picture.channels + c] =
            byte_of(image[(y * extents.width + x) * extents.channels + c]);
}

}  // namespace

Footprint dcgan_footprint(const config::Input& input, int ranks) {
  const Rounds rounds(input, ranks);
  const data::ImageSamples samples = read_samples(input, rounds, scaling);
  return footprint_of(samples, make_nodes(input, samples), rounds.batch);
}

template <class Exec>
Dcgan<Exec>::Dcgan(const Exec& exec, const config::Input& input, const Share& share)
    : m_rank(share.rank),
      m_seed(input.run.seed),
      m_rounds(input, share.ranks),
      m_samples(read_samples(input, m_rounds, scaling)),
      m_nodes(make_nodes(input, m_samples)),
      m_footprint(check_memory(input, footprint_of(m_samples, m_nodes, m_rounds.batch), share)),
      m_model(exec, m_nodes, m_rounds.batch, input.images.norm_samples, make_product<Exec>(input),
              make_product<Exec>(input)),
      m_features(exec, static_cast<int>(m_samples.extents().height), static_cast<int>(m_samples.extents().width),
                 static_cast<int>(m_samples.extents().channels), m_rounds.batch),
      m_batches(share.rank, m_rounds, m_samples),
      m_latents(make_uninitialized<Exec, float>("OneBit::workload::latents",
                                                std::size_t{nn::latent_size} * m_rounds.batch)) {}

template <class Exec>
void Dcgan<Exec>::initialize(const Exec& exec, const Vector<Exec, float>& x) {
  nn::initialize<Exec, float>(exec, m_nodes.generator, m_seed, x);
  nn::initialize<Exec, float>(exec, m_nodes.discriminator, m_seed, x);
}

/// The passes of the two networks alternate: all of them count as the backward pass.
template <class Exec>
double Dcgan<Exec>::gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                             PhaseTimes& times, const GradientReady& ready_from) {
  const Region region("OneBit::workload::dcgan");
  const Stopwatch watch;
  double loss = 0;
  for (int round = 0; round < m_rounds.of_step; ++round) {
    const bool last = round + 1 == m_rounds.of_step;
    const nn::Images<Exec, float>& images = m_batches.draw(exec, step, round);
    loss +=
        m_model
            .gradient(exec, x, images.pixels, latents(exec, step, m_rounds.first_sample(m_rank, round)),
                      1.0f / static_cast<float>(m_rounds.of_step), round > 0, g, last ? ready_from : GradientReady())
            .discriminator;
  }
  fence(exec, "OneBit::workload::dcgan");
  times.add(Phase::backward, watch.seconds());
  return loss / m_rounds.of_step;
}

template <class Exec>
auto Dcgan<Exec>::latents(const Exec& exec, std::uint64_t step, std::uint64_t first) -> const Buffer& {
  nn::draw_latents<Exec, float>(exec, m_seed, step, first, m_latents);
  return m_latents;
}

template <class Exec>
void Dcgan<Exec>::calibrate_generator(const Exec& exec, const Vector<Exec, float>& x) {
  const int batch = m_rounds.batch;
  m_model.calibrate_generator(exec, x, calibration_batches(batch), [&](int k) {
    return latents(exec, validation_step, static_cast<std::uint64_t>(k) * batch);
  });
}

template <class Exec>
auto Dcgan<Exec>::generate(const Exec& exec, const Vector<Exec, float>& x, std::uint64_t first) -> const Buffer& {
  return m_model.generate(exec, x, latents(exec, validation_step, first));
}

/// In training the discriminator's statistics are those of images of one source, so here, too, it has those of the data
/// for images of the data, and those of generated images for generated ones.
template <class Exec>
LossSum Dcgan<Exec>::validation_loss(const Exec& exec, const Vector<Exec, float>& x,
                                     const std::function<bool()>& goes_on) {
  const Region region("OneBit::workload::validation");
  const int batch = m_rounds.batch, batches = calibration_batches(batch);
  const Buffer features("OneBit::workload::features", nn::random_feature_count);
  LossSum loss;
  m_model.calibrate_discriminator(exec, x, batches, [&](int k) { return m_batches.draw_calibration(exec, k).pixels; });
  for (int round = 0; round < m_rounds.of_validation; ++round) {
    const Buffer& images = m_batches.draw_validation(exec, round).pixels;
    loss.sum += batch * m_model.loss(exec, x, images, nn::Source::data);
    m_features.add(exec, images, -1, features);
    loss.samples += batch;
    if (!goes_on()) return {};
  }
  calibrate_generator(exec, x);
  m_model.calibrate_discriminator(exec, x, batches,
                                  [&](int k) { return generate(exec, x, static_cast<std::uint64_t>(k) * batch); });
  for (int round = 0; round < m_rounds.of_validation; ++round) {
    const Buffer& images = generate(exec, x, m_rounds.first_validation_sample(m_rank, round));
    loss.sum += batch * m_model.loss(exec, x, images, nn::Source::generator);
    m_features.add(exec, images, 1, features);
    if (!goes_on()) return {};
  }
  const auto on_host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), features);
  loss.features.assign(on_host.data(), on_host.data() + on_host.extent(0));
  return loss;
}

template <class Exec>
Picture Dcgan<Exec>::picture(const Exec& exec, const Vector<Exec, float>& x) {
  const data::ImageExtents& extents = m_samples.extents();
  // Of one channel it is grey; two have no colours, and a fourth one is opacity.
  Picture picture{picture_side * extents.height, picture_side * extents.width, extents.channels < 3 ? 1u : 3u, {}};
  picture.bytes.resize(picture.height * picture.width * picture.channels);
  calibrate_generator(exec, x);
  constexpr int count = picture_side * picture_side;
  for (int first = 0; first < count; first += m_rounds.batch) {
    const auto images = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), generate(exec, x, first));
    for (int image = first; image < std::min(count, first + m_rounds.batch); ++image)
      put(images.data() + (image - first) * extents.size(), extents, image, picture);
  }
  return picture;
}

#define ONEBIT_INSTANTIATE(Exec) template class Dcgan<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
