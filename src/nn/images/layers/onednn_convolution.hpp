#pragma once
/// \file onednn_convolution.hpp
/// Convolutions on the host by oneDNN, which gives a core groups of images. The groups depend on the extents alone, so
/// results do not depend on the number of threads.

#include <algorithm>
#include <type_traits>

#include "base/choices.hpp"
#include "base/kokkos.hpp"
#include "linalg/blas.hpp"
#include "linalg/tiles.hpp"
#include "linalg/vendor/onednn.hpp"
#include "linalg/vendor/onednn_convolution.hpp"

namespace onebit::nn {

/// Whether OneDnnConvolution is for this backend and this type.
template <class Exec, class Real>
inline constexpr bool onednn_convolves = is_host<Exec>&& std::is_same_v<Real, float>;

/// Whether it is there with products in this precision.
inline bool onednn_convolves_in(Precision precision) {
  return precision == Precision::bf16 ? linalg::onednn_has_bfloat16()
                                      : precision == Precision::fp32 && linalg::onednn_is_faster();
}

/// Of B images; nn/images/layers/convolution.hpp has the extents of all arguments.
template <class Exec>
class OneDnnConvolution {
public:
  using Matrix = MatrixRef<Exec, float>;
  using ConstMatrix = MatrixRef<Exec, const float>;
  using Buffer = Vector<Exec, float>;

  OneDnnConvolution(const linalg::ConvolutionExtents& extents, int images, Precision precision)
      : m_extents(extents), m_images(images), m_rounded(precision == Precision::bf16) {}

  /// Elements of the scratch memory that each of the following takes.
  std::size_t scratch() const {
    const linalg::SingleThreadedBlas single_threaded;
    std::size_t most = has_backward_weight() ? partial_gradients() * weights() : 0;
    for (const auto pass : {linalg::ConvolutionPass::forward, linalg::ConvolutionPass::backward_input})
      most = std::max(most, linalg::onednn_arranged_length(pass, group(images_of_group())));
    return most;
  }

  void forward(const Exec& exec, ConstMatrix input, ConstMatrix weight, const Buffer& scratch, Matrix output) const {
    const int count = images_of_group();
    const linalg::ImageConvolution part = group(count);
    const float *const from = input.data(), *const arranged = scratch.data();
    float* const to = output.data();
    const std::size_t step_in = in_elements(count), step_out = out_elements(count);
    arrange(linalg::ConvolutionPass::forward, weight, scratch);
    for_each_group(exec, "OneBit::nn::convolution", count, [=](int number) {
      linalg::onednn_convolution(part, from + number * step_in, arranged, to + number * step_out);
    });
  }

  void backward_input(const Exec& exec, ConstMatrix d_output, ConstMatrix weight, const Buffer& scratch, bool add,
                      Matrix d_input) const {
    const int count = images_of_group();
    const linalg::ImageConvolution part = group(count);
    const float *const from = d_output.data(), *const arranged = scratch.data();
    float* const to = d_input.data();
    const std::size_t step_in = in_elements(count), step_out = out_elements(count);
    arrange(linalg::ConvolutionPass::backward_input, weight, scratch);
    for_each_group(exec, "OneBit::nn::convolution_input", count, [=](int number) {
      linalg::onednn_convolution_input(part, from + number * step_out, arranged, add, to + number * step_in);
    });
  }

  /// Whether it has the following: its partial gradients need less memory than the unfolded images would.
  bool has_backward_weight() const {
    return static_cast<std::size_t>(partial_gradients()) * m_extents.outputs <=
           static_cast<std::size_t>(m_images) * m_extents.output_pixels();
  }

  /// Each group has a gradient of its own, and their sum is taken in order.
  void backward_weight(const Exec& exec, ConstMatrix d_output, ConstMatrix input, const Buffer& scratch, bool add,
                       Matrix d_weight) const {
    const int groups = partial_gradients(), count = m_images / groups;
    const linalg::ImageConvolution part = group(count);
    const float *const from = input.data(), *const gradient = d_output.data();
    float* const partial = scratch.data();
    const std::size_t step_in = in_elements(count), step_out = out_elements(count), length = weights();
    for_each_group(exec, "OneBit::nn::convolution_weight", count, [=](int number) {
      linalg::onednn_convolution_weight(part, gradient + number * step_out, from + number * step_in,
                                        partial + number * length);
    });
    linalg::add_ranges<Exec, float>(exec, m_extents.outputs, m_extents.columns(), groups, partial, add ? 1.0f : 0.0f,
                                    {d_weight.data(), d_weight.extent(1)});
  }

private:
  linalg::ImageConvolution group(int images) const { return {m_extents, images, m_rounded}; }
  std::size_t weights() const { return static_cast<std::size_t>(m_extents.outputs) * m_extents.columns(); }
  std::size_t in_elements(int images) const {
    return static_cast<std::size_t>(images) * m_extents.pixels() * m_extents.channels;
  }
  std::size_t out_elements(int images) const {
    return static_cast<std::size_t>(images) * m_extents.output_pixels() * m_extents.outputs;
  }

  /// The largest divisor of B up to `limit`.
  int divisor(int limit) const {
    int found = std::clamp(limit, 1, m_images);
    while (m_images % found != 0) --found;
    return found;
  }
  /// About a millisecond's work of a core, if that gives eight groups.
  int images_of_group() const {
    const double multiply_adds = m_rounded ? 2.4e8 : 6e7;
    const double of_image = static_cast<double>(m_extents.output_pixels()) * weights();
    return divisor(std::min(m_images / 8, static_cast<int>(multiply_adds / of_image) + 1));
  }
  int partial_gradients() const { return divisor(8); }

  void arrange(linalg::ConvolutionPass pass, ConstMatrix weight, const Buffer& scratch) const {
    const linalg::SingleThreadedBlas single_threaded;
    linalg::onednn_arrange(pass, group(images_of_group()), weight.data(), scratch.data());
  }

  /// Calls work(number of the group) for groups of `count` images, on any threads.
  template <class Work>
  void for_each_group(const Exec& exec, const char* label, int count, const Work& work) const {
    const linalg::SingleThreadedBlas single_threaded;
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Kokkos::Schedule<Kokkos::Dynamic>>(exec, 0, m_images / count),
                         work);
  }

  linalg::ConvolutionExtents m_extents;
  int m_images;    ///< B
  bool m_rounded;  ///< the factors, to bfloat16
};

}  // namespace onebit::nn
