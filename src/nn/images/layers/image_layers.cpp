#include "nn/images/layers/image_layers.hpp"

#include "base/device/parallel.hpp"

namespace onebit::nn {

template <class Exec, class Real>
void ImageLayers<Exec, Real>::maximum(const Exec& exec, int height, int width, ConstMatrix input, Matrix output) {
  const int rows = height / 2, row_length = width / 2, columns = output.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::maximum", output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const int image = r / (rows * row_length), y = 2 * (r / row_length % rows), x = 2 * (r % row_length);
        const int first = (image * height + y) * width + x;
        team.for_each(
            columns,
            [&](int j) {
              Real greatest = input(first, j);
              for (int k = 1; k < 4; ++k) {
                const Real value = input(first + k / 2 * width + k % 2, j);
                greatest = greatest >= value ? greatest : value;  // a NaN that comes later is kept
              }
              return greatest;
            },
            [&](int j, Real value) { output(r, j) = value; });
      });
}

template <class Exec, class Real>
void ImageLayers<Exec, Real>::maximum_backward(const Exec& exec, int height, int width, ConstMatrix input,
                                               ConstMatrix d_output, bool add, Matrix d_input) {
  const int rows = height / 2, row_length = width / 2, columns = d_output.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::maximum_backward", d_input.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const int image = r / (height * width), y = r / width % height, x = r % width;
        const bool has_window = y / 2 < rows && x / 2 < row_length;
        const int window = (image * rows + y / 2) * row_length + x / 2;
        const int first = (image * height + y / 2 * 2) * width + x / 2 * 2;
        team.for_each(
            columns,
            [&](int j) {
              Real d = 0;
              if (has_window) {
                int best = first;
                for (int k = 1; k < 4; ++k) {
                  const int pixel = first + k / 2 * width + k % 2;
                  if (!(input(best, j) >= input(pixel, j))) best = pixel;
                }
                if (best == r) d = d_output(window, j);
              }
              return d + (add ? d_input(r, j) : Real(0));
            },
            [&](int j, Real value) { d_input(r, j) = value; });
      });
}

template <class Exec, class Real>
void ImageLayers<Exec, Real>::exchange(const Exec& exec, ConstMatrix input, ConstMatrix addend, Matrix output) {
  const int channels = input.extent_int(1), pixels = output.extent_int(1);
  const bool adds = addend.extent(0) > 0;
  for_each_row(
      exec, "OneBit::nn::exchange", output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const int first = r / channels * pixels, c = r % channels;
        team.for_each(
            pixels,
            [&](int p) {
              const Real value = input(first + p, c);
              return adds ? value + addend(r, p) : value;
            },
            [&](int p, Real value) { output(r, p) = value; });
      });
}

template <class Exec, class Real>
void ImageLayers<Exec, Real>::leaky_relu(const Exec& exec, const Buffer& input, const Buffer& output) {
  for_each(
      exec, "OneBit::nn::leaky_relu", output.extent(0),
      KOKKOS_LAMBDA(std::size_t i) { output(i) = input(i) > 0 ? input(i) : Real(leaky_slope) * input(i); });
}

template <class Exec, class Real>
void ImageLayers<Exec, Real>::leaky_relu_backward(const Exec& exec, const Buffer& input, const Buffer& d_output,
                                                  bool add, const Buffer& d_input) {
  for_each(
      exec, "OneBit::nn::leaky_relu_backward", d_input.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        d_input(i) = (input(i) > 0 ? Real(1) : Real(leaky_slope)) * d_output(i) + (add ? d_input(i) : Real(0));
      });
}

template <class Exec, class Real>
void ImageLayers<Exec, Real>::tanh(const Exec& exec, const Buffer& input, const Buffer& output) {
  for_each(
      exec, "OneBit::nn::tanh", output.extent(0), KOKKOS_LAMBDA(std::size_t i) { output(i) = math::tanh(input(i)); });
}

template <class Exec, class Real>
void ImageLayers<Exec, Real>::tanh_backward(const Exec& exec, const Buffer& output, const Buffer& d_output, bool add,
                                            const Buffer& d_input) {
  for_each(
      exec, "OneBit::nn::tanh_backward", d_input.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        d_input(i) = (1 - output(i) * output(i)) * d_output(i) + (add ? d_input(i) : Real(0));
      });
}

#define ONEBIT_INSTANTIATE(Exec, Real) template struct ImageLayers<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
