#include "nn/images/layers/convolution.hpp"

#include "nn/images/layers/fold.hpp"
#include "nn/images/layers/onednn_convolution.hpp"

namespace onebit::nn {
namespace {

/// Bytes of an unfolded block: about what a core, or a GPU, has of the last level of its caches, and enough rows for a
/// product to run at full speed.
template <class Exec>
constexpr std::size_t block_bytes = std::size_t{is_host<Exec> ? 4 : 64} << 20;

/// Rows [first · rows, (first + count) · rows) of a matrix.
template <class MatrixType>
MatrixType rows_of_images(const MatrixType& matrix, int first, int count, int rows) {
  const std::size_t columns = matrix.extent(1), begin = static_cast<std::size_t>(first) * rows * columns;
  return MatrixType(matrix.data() + begin, static_cast<std::size_t>(count) * rows, columns);
}

/// In full precision every gradient passes.
struct AllPass {
  KOKKOS_FORCEINLINE_FUNCTION bool operator()(int, int) const { return true; }
};

}  // namespace

template <class Exec, class Real>
int Convolution<Exec, Real>::block() const {
  const std::size_t bytes = sizeof(Real) * m_extents.output_pixels() * m_extents.columns();
  return static_cast<int>(std::clamp<std::size_t>(block_bytes<Exec> / bytes, 1, std::max(m_images, 1)));
}

template <class Exec, class Real>
std::size_t Convolution<Exec, Real>::scratch(Precision precision) const {
  if (m_extents.is_dense()) return 0;
  const std::size_t unfolded = static_cast<std::size_t>(block()) * m_extents.output_pixels() * m_extents.columns();
  if constexpr (onednn_convolves<Exec, Real>)
    if (onednn_convolves_in(precision))
      return std::max(unfolded, OneDnnConvolution<Exec>(m_extents, m_images, precision).scratch());
  return unfolded;
}

template <class Exec, class Real>
template <class Work>
void Convolution<Exec, Real>::for_each_block(const Work& work) const {
  const int length = block();
  for (int first = 0; first < m_images; first += length) work(first, std::min(length, m_images - first));
}

template <class Exec, class Real>
void Convolution<Exec, Real>::forward(const Exec& exec, Product& product, ConstMatrix input, const Factor& weight,
                                      const Buffer& scratch, Matrix output) const {
  if (m_extents.is_dense()) return Kernels::dense(exec, product, input, weight, output);
  if constexpr (onednn_convolves<Exec, Real>)
    if (onednn_convolves_in(product.precision()))
      return OneDnnConvolution<Exec>(m_extents, m_images, product.precision())
          .forward(exec, input, weight.matrix, scratch, output);
  for_each_block([&](int first, int count) {
    const Matrix copies(scratch.data(), count * m_extents.output_pixels(), m_extents.columns());
    unfold(exec, rows_of_images(input, first, count, m_extents.pixels()), copies);
    Kernels::dense(exec, product, copies, weight, rows_of_images(output, first, count, m_extents.output_pixels()));
  });
}

template <class Exec, class Real>
void Convolution<Exec, Real>::backward_weight(const Exec& exec, Product& product, ConstMatrix d_output,
                                              ConstMatrix input, const Buffer& scratch, bool add,
                                              Matrix d_weight) const {
  if (m_extents.is_dense()) return Kernels::dense_backward_weight(exec, product, d_output, input, add, d_weight);
  if constexpr (onednn_convolves<Exec, Real>) {
    const OneDnnConvolution<Exec> vendor(m_extents, m_images, product.precision());
    if (onednn_convolves_in(product.precision()) && vendor.has_backward_weight())
      return vendor.backward_weight(exec, d_output, input, scratch, add, d_weight);
  }
  for_each_block([&](int first, int count) {
    const Matrix copies(scratch.data(), count * m_extents.output_pixels(), m_extents.columns());
    unfold(exec, rows_of_images(input, first, count, m_extents.pixels()), copies);
    Kernels::dense_backward_weight(exec, product, rows_of_images(d_output, first, count, m_extents.output_pixels()),
                                   copies, add || first > 0, d_weight);
  });
}

template <class Exec, class Real>
void Convolution<Exec, Real>::backward_input(const Exec& exec, Product& product, ConstMatrix d_output,
                                             const Factor& weight, const Buffer& scratch, bool add,
                                             Matrix d_input) const {
  if (m_extents.is_dense()) return Kernels::dense_backward_input(exec, product, d_output, weight, add, d_input);
  if constexpr (onednn_convolves<Exec, Real>)
    if (onednn_convolves_in(product.precision()))
      return OneDnnConvolution<Exec>(m_extents, m_images, product.precision())
          .backward_input(exec, d_output, weight.matrix, scratch, add, d_input);
  for_each_block([&](int first, int count) {
    const Matrix d_copies(scratch.data(), count * m_extents.output_pixels(), m_extents.columns());
    Kernels::dense_backward_input(exec, product, rows_of_images(d_output, first, count, m_extents.output_pixels()),
                                  weight, false, d_copies);
    fold<Exec, Real>(exec, m_extents, d_copies, AllPass(), add,
                     rows_of_images(d_input, first, count, m_extents.pixels()));
  });
}

template <class Exec, class Real>
void Convolution<Exec, Real>::unfold(const Exec& exec, ConstMatrix input, Matrix unfolded) const {
  const ConvolutionExtents e = m_extents;
  const int width = e.output_width(), pixels = e.output_pixels(), of_row = e.kernel * e.channels;
  // A thread or a warp takes a row of the kernel, whose pixels lie side by side in the image and in the copy.
  for_each_row(
      exec, "OneBit::nn::unfold", unfolded.extent_int(0) * e.kernel,
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int part) {
        const int position = part / e.kernel, image = position / pixels;
        const int y = position % pixels / width * e.stride + part % e.kernel - e.padding;
        const int x = position % width * e.stride - e.padding;
        Real* const to = unfolded.data() + static_cast<std::size_t>(part) * of_row;
        if (y < 0 || y >= e.height) return team.for_each(of_row, [&](int j) { to[j] = 0; });
        const int left = (x < 0 ? -x : 0) * e.channels;
        const int right = (e.width - x < e.kernel ? e.width - x : e.kernel) * e.channels;
        const std::ptrdiff_t first = (static_cast<std::ptrdiff_t>(image * e.height + y) * e.width + x) * e.channels;
        const Real* const from = input.data();
        team.for_each(left, [&](int j) { to[j] = 0; });
        team.for_each(right - left, [&](int j) { to[left + j] = from[first + left + j]; });
        team.for_each(of_row - right, [&](int j) { to[right + j] = 0; });
      });
}

#define ONEBIT_INSTANTIATE(Exec, Real) template class Convolution<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
