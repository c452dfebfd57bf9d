#include "workload/images/images.hpp"

#include "base/error.hpp"
#include "workload/transformer.hpp"

namespace onebit::workload {
namespace {

constexpr data::PixelScaling scaling = data::PixelScaling::standardize;

nn::ImageNodes make_nodes(const config::Input& input, const data::ImageSamples& samples) {
  const data::ImageExtents& extents = samples.extents();
  const nn::ImageShape shape{input.images.network,
                             static_cast<int>(extents.height),
                             static_cast<int>(extents.width),
                             static_cast<int>(extents.channels),
                             input.images.width,
                             static_cast<int>(samples.classes().size()),
                             quantization(input)};
  if (shape.network == Network::mixer && (shape.height % nn::mixer_patch != 0 || shape.width % nn::mixer_patch != 0))
    throw InputError(input.where("images.training"),
                     "its images have " + extents.words() + ", and a mixer cuts them into patches of 4 × 4 pixels",
                     "cut or pad the images to a height and a width that are multiples of 4, or choose another "
                     "images.network");
  return located(input.where("model.quantization.exclude"), [&] { return nn::ImageNodes(shape); });
}

Footprint footprint_of(const config::Input& input, const data::ImageSamples& samples, const nn::ImageNodes& nodes,
                       int batch) {
  located(input.where("train.batch"), [&] { nn::check_binary_convolutions(nodes, batch); });
  return images_footprint(samples, nodes.table(), nn::numbers_kept(nodes, batch),
                          {"images.width", "train.batch", "images.network"});
}

}  // namespace

Footprint images_footprint(const config::Input& input, int ranks) {
  const Rounds rounds(input, ranks);
  const data::ImageSamples samples = read_samples(input, rounds, scaling);
  return footprint_of(input, samples, make_nodes(input, samples), rounds.batch);
}

template <class Exec>
Images<Exec>::Images(const Exec& exec, const config::Input& input, const Share& share)
    : m_rank(share.rank),
      m_seed(input.run.seed),
      m_rounds(input, share.ranks),
      m_measures(input, share.rank),
      m_samples(read_samples(input, m_rounds, scaling)),
      m_nodes(make_nodes(input, m_samples)),
      m_footprint(check_memory(input, footprint_of(input, m_samples, m_nodes, m_rounds.batch), share)),
      m_model(exec, m_nodes, m_rounds.batch, input.images.norm_samples, make_product<Exec>(input)),
      m_batches(share.rank, m_rounds, m_samples) {}

template <class Exec>
void Images<Exec>::initialize(const Exec& exec, const Vector<Exec, float>& x) {
  nn::initialize<Exec, float>(exec, m_nodes, m_seed, x);
}

template <class Exec>
double Images<Exec>::gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                              PhaseTimes& times, const GradientReady& ready_from) {
  const Region region("OneBit::workload::images");
  Stopwatch watch;
  double loss = 0;
  for (int round = 0; round < m_rounds.of_step; ++round) {
    loss += m_model.forward(exec, x, m_batches.draw(exec, step, round));
    times.add(Phase::forward, watch.restart());
    const bool last = round + 1 == m_rounds.of_step;
    m_model.measure_quantizers(last ? m_measures(step) : nn::QuantizerMeasures::none);
    m_model.backward(exec, x, {m_seed, static_cast<std::uint64_t>(step), m_rounds.first_sample(m_rank, round)},
                     1.0f / static_cast<float>(m_rounds.of_step), round > 0, g, last ? ready_from : GradientReady());
    fence(exec, "OneBit::workload::images");
    times.add(Phase::backward, watch.restart());
  }
  return loss / m_rounds.of_step;
}

template <class Exec>
LossSum Images<Exec>::validation_loss(const Exec& exec, const Vector<Exec, float>& x,
                                      const std::function<bool()>& goes_on) {
  const Region region("OneBit::workload::validation");
  const int batch = m_rounds.batch;
  m_model.calibrate(exec, x, calibration_batches(batch), [&](int k) { return m_batches.draw_calibration(exec, k); });
  LossSum loss;
  double right = 0;
  for (int round = 0; round < m_rounds.of_validation; ++round) {
    const nn::Images<Exec, float>& images = m_batches.draw_validation(exec, round);
    loss.sum += batch * m_model.loss(exec, x, images);
    right += batch * m_model.accuracy(exec, images);
    loss.samples += batch;
    if (!goes_on()) return {};
  }
  loss.right = right;
  return loss;
}

#define ONEBIT_INSTANTIATE(Exec) template class Images<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
