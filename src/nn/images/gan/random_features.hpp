#pragma once
/// \file random_features.hpp
/// A distance of two sets of images without a network of its own: the squared maximum mean discrepancy (Gretton et al.,
/// JMLR 2012) with random features of a Gaussian kernel (Rahimi and Recht, NIPS 2007).
///
/// Images are compared by the means of their blocks of 4 × 4 pixels. The kernel of two images is exp(−2 r²), where r is
/// the root mean square of the differences of their blocks. A feature of an image with P such means p is
/// √(2/64) cos(w · p + b), w ~ N(0, 4/P), b ~ U(0, 2π), so that the product of two images' features, summed over 64 of
/// them, is the kernel up to an error of about 1/√64. The squared distance of two sets is that of their mean features.
/// All runs have the same features, whatever their seed is.

#include "nn/layers.hpp"

namespace onebit::nn {

/// Features of an image.
inline constexpr int random_feature_count = 64;
/// Height and width of the blocks.
inline constexpr int feature_block = 4;

/// For batches of one size. Instantiated for every backend.
template <class Exec>
class RandomFeatures {
public:
  /// \param height, width multiples of feature_block
  /// \param batch         B
  RandomFeatures(const Exec& exec, int height, int width, int channels, int batch);

  /// sums (random_feature_count) += factor · the sum of the features of B images.
  /// \param images (B·H·W·C), NHWC
  void add(const Exec& exec, const Vector<Exec, const float>& images, float factor, const Vector<Exec, float>& sums);

private:
  using Kernels = Layers<Exec, float>;

  int m_batch, m_size;
  linalg::MatrixProduct<Exec, float> m_product;
  Vector<Exec, float> m_weights;   ///< (features, H·W·C): w of each pixel's block, over the pixels of a block
  Vector<Exec, float> m_angles;    ///< (features) b
  Vector<Exec, float> m_products;  ///< (B, features)
  Vector<Exec, float> m_scratch;
};

}  // namespace onebit::nn
