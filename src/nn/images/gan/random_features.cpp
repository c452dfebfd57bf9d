#include "nn/images/gan/random_features.hpp"

#include "base/random.hpp"
#include "nn/flat_vectors.hpp"

namespace onebit::nn {
namespace {

constexpr std::uint64_t seed = 0;  // of all runs

/// Row k of the weights ← w_k of each pixel's block, divided by the pixels of a block; angles(k) ← b_k.
template <class Exec>
struct DrawFeatures {
  std::uint64_t key;
  int height, width, channels;
  Vector<Exec, float> weights, angles;

  KOKKOS_FUNCTION void operator()(std::size_t i) const {
    const int size = height * width * channels, k = static_cast<int>(i) / size, number = static_cast<int>(i) % size;
    const int c = number % channels, x = number / channels % width, y = number / (channels * width);
    const int blocks = size / (feature_block * feature_block);
    const int block = (y / feature_block * (width / feature_block) + x / feature_block) * channels + c;
    const Philox4 random = philox(key, block, k), of_angle = philox(key, blocks, k);
    const float deviation = math::sqrt(4.0f / static_cast<float>(blocks));
    weights(i) = deviation / (feature_block * feature_block) * normal(random.word[0], random.word[1]);
    if (number == 0) angles(k) = 6.283185307179586f * uniform(of_angle.word[0]);
  }
};

}  // namespace

template <class Exec>
RandomFeatures<Exec>::RandomFeatures(const Exec& exec, int height, int width, int channels, int batch)
    : m_batch(batch),
      m_size(height * width * channels),
      m_weights("OneBit::nn::RandomFeatures::weights", std::size_t{random_feature_count} * m_size),
      m_angles("OneBit::nn::RandomFeatures::angles", random_feature_count),
      m_products("OneBit::nn::RandomFeatures::products", static_cast<std::size_t>(batch) * random_feature_count),
      m_scratch("OneBit::nn::RandomFeatures::scratch",
                static_cast<std::size_t>(row_block_count<Exec, false>(batch)) * random_feature_count) {
  for_each(exec, "OneBit::nn::draw_features", m_weights.extent(0),
           DrawFeatures<Exec>{stream_key(seed, Stream::features), height, width, channels, m_weights, m_angles});
}

template <class Exec>
void RandomFeatures<Exec>::add(const Exec& exec, const Vector<Exec, const float>& images, float factor,
                               const Vector<Exec, float>& sums) {
  const auto products = matrix_at<Exec>(m_products, 0, m_batch, random_feature_count);
  Kernels::dense(exec, m_product, matrix_at<Exec>(images, 0, m_batch, m_size),
                 matrix_at<Exec>(m_weights, 0, random_feature_count, m_size), products);
  const Vector<Exec, float> angles = m_angles;
  const float amplitude = math::sqrt(2.0f / random_feature_count);
  sum_columns(
      exec, "OneBit::nn::features", m_batch, random_feature_count,
      KOKKOS_LAMBDA(int r, int k) { return amplitude * math::cos(products(r, k) + angles(k)); },
      KOKKOS_LAMBDA(int, int, float feature) { return feature; }, VectorRef<Exec, float>(m_scratch),
      VectorRef<Exec, float>(sums), factor);
}

#define ONEBIT_INSTANTIATE(Exec) template class RandomFeatures<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
