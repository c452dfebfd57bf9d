#include "nn/images/layers/binary_convolution.hpp"

#include <algorithm>
#include <cstring>

#include "linalg/packing.hpp"
#include "nn/images/layers/fold.hpp"

namespace onebit::nn {
namespace {

/// The codes of an unfolded input: 1 where the sign of a pixel is +1, and 0 for −1 and outside of the image.
struct UnfoldedSigns {
  const std::uint32_t* pixels;  ///< (images·H·W, C) bits
  std::size_t stride;           ///< words between pixels
  ConvolutionExtents e;
  int width, positions;  ///< of the output: W', H'·W'

  UnfoldedSigns(const std::uint32_t* pixels_, std::size_t stride_, const ConvolutionExtents& extents)
      : pixels(pixels_),
        stride(stride_),
        e(extents),
        width(extents.output_width()),
        positions(extents.output_pixels()) {}

  /// What an output position reads first: a pixel, which may lie outside of the image.
  struct Corner {
    int image, y, x;
  };
  KOKKOS_FORCEINLINE_FUNCTION Corner corner(int row) const {
    return {row / positions, row % positions / width * e.stride - e.padding, row % width * e.stride - e.padding};
  }
  /// The words of the pixel (ky, kx) of the kernel; null outside of the image.
  KOKKOS_FORCEINLINE_FUNCTION const std::uint32_t* words(const Corner& corner, int ky, int kx) const {
    const int y = corner.y + ky, x = corner.x + kx;
    if (y < 0 || y >= e.height || x < 0 || x >= e.width) return nullptr;
    return pixels + (static_cast<std::size_t>(corner.image * e.height + y) * e.width + x) * stride;
  }

  KOKKOS_FORCEINLINE_FUNCTION unsigned operator()(int row, int column) const {
    const int tap = column / e.channels, c = column % e.channels;
    const std::uint32_t* const pixel = words(corner(row), tap / e.kernel, tap % e.kernel);
    return pixel ? pixel[c / linalg::word_bits] >> c % linalg::word_bits & 1u : 0u;
  }

  /// The bits of 64 columns on the host, in runs of the neighbouring channels of a pixel.
  void bits(int row, int column, std::uint64_t* planes) const {
    constexpr int most = 64;
    const Corner from = corner(row);
    const int tap = column / e.channels;
    int ky = tap / e.kernel, kx = tap % e.kernel, c = column % e.channels;
    std::uint64_t result = 0;
    for (int filled = 0; filled < most;) {
      const int run = std::min({most - filled, e.channels - c, most - c % most});
      if (const std::uint32_t* const pixel = words(from, ky, kx)) {
        std::uint64_t some;
        std::memcpy(&some, pixel + c / most * (most / linalg::word_bits), sizeof some);
        some >>= c % most;
        if (run < most) some &= (std::uint64_t{1} << run) - 1;
        result |= some << filled;
      }
      filled += run;
      c += run;
      if (c < e.channels) continue;
      c = 0;
      if (++kx < e.kernel) continue;
      kx = 0;
      ++ky;
    }
    planes[0] = result;
  }
};

/// Where |x| < 1 at a pixel.
template <class Real>
struct InsidePixel {
  const Real* input;
  int channels;

  KOKKOS_FORCEINLINE_FUNCTION bool operator()(int pixel, int c) const {
    return is_inside(input[static_cast<std::size_t>(pixel) * channels + c]);
  }
};

template <class Exec, class Real>
std::vector<DenseExtents> unfolded_layers(const Quantization& quantization, int images,
                                          const std::vector<ConvolutionExtents>& convolutions) {
  std::vector<DenseExtents> layers;
  for (const ConvolutionExtents& e : convolutions) {
    DenseExtents layer;
    if (e.outputs > 0) {
      const int positions = e.output_pixels();
      layer.inputs = e.columns();
      layer.outputs = e.outputs;
      layer.rows = images * positions;
      layer.rows_per_group = quantization.group == RowGroup::image ? positions : 1;
      layer.rows_per_block = Convolution<Exec, Real>(e, images).block() * positions;
    }
    layers.push_back(layer);
  }
  return layers;
}

}  // namespace

template <class Exec, class Real>
BinaryConvolutions<Exec, Real>::BinaryConvolutions(const Quantization& quantization, int images,
                                                   const std::vector<ConvolutionExtents>& convolutions)
    : m_images(images),
      m_convolutions(convolutions),
      m_layers(quantization, unfolded_layers<Exec, Real>(quantization, images, convolutions)) {
  std::size_t words = 0;
  for (const ConvolutionExtents& e : convolutions)
    if (e.outputs > 0)
      words = std::max(words, static_cast<std::size_t>(images) * e.pixels() * linalg::stride_of(e.channels));
  m_pixels = make_uninitialized<Exec, std::uint32_t>("OneBit::nn::BinaryConvolutions::pixels", words);
}

template <class Exec, class Real>
linalg::BitMatrix<Exec> BinaryConvolutions<Exec, Real>::pixels(const ConvolutionExtents& e) const {
  linalg::BitMatrix<Exec> bits;
  bits.rows = m_images * e.pixels();
  bits.columns = e.channels;
  bits.words = onebit::Matrix<Exec, std::uint32_t>(m_pixels.data(), bits.rows, linalg::stride_of(e.channels));
  return bits;
}

template <class Exec, class Real>
void BinaryConvolutions<Exec, Real>::forward(const Exec& exec, int number, ConstMatrix input,
                                             const Parameters& parameters, Matrix output) {
  const Region region("OneBit::nn::binary_convolution_forward");
  const ConvolutionExtents& e = m_convolutions[number];
  const linalg::BitMatrix<Exec> signs = pixels(e);
  const KeptBits<Exec>& kept = m_layers.kept(number);
  linalg::pack_signs<Exec, Real>(exec, input, &signs, nullptr);
  linalg::pack(exec, "OneBit::nn::unfold_signs", kept.input.rows, kept.input.columns,
               UnfoldedSigns(signs.words.data(), signs.words.extent(1), e), {kept.input}, {kept.input_columns});
  m_layers.multiply(exec, number, parameters, output);
}

template <class Exec, class Real>
void BinaryConvolutions<Exec, Real>::backward_input(const Exec& exec, const QuantizerKey& key, Product& product,
                                                    ConstMatrix d_output, ConstMatrix input,
                                                    const Parameters& parameters, bool add, Matrix d_input) {
  const ConvolutionExtents& e = m_convolutions[key.layer];
  m_layers.backward_unfolded(exec, key, product, d_output, parameters, [&](int first, ConstMatrix d_unfolded) {
    const int pixels = d_unfolded.extent_int(0) / e.output_pixels() * e.pixels();
    const std::size_t begin = static_cast<std::size_t>(first / e.output_pixels()) * e.pixels() * e.channels;
    fold<Exec, Real>(exec, e, d_unfolded, InsidePixel<Real>{input.data() + begin, e.channels}, add,
                     Matrix(d_input.data() + begin, pixels, e.channels));
  });
}

#define ONEBIT_INSTANTIATE(Exec, Real) template class BinaryConvolutions<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
