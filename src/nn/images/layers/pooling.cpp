#include "nn/images/layers/pooling.hpp"

namespace onebit::nn {

template <class Exec, class Real>
void Pooling<Exec, Real>::maximum(const Exec& exec, int height, int width, ConstMatrix input, Matrix output) {
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
void Pooling<Exec, Real>::maximum_backward(const Exec& exec, int height, int width, ConstMatrix input,
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

#define ONEBIT_INSTANTIATE(Exec)        \
  template struct Pooling<Exec, float>; \
  template struct Pooling<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
