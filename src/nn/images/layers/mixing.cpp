#include "nn/images/layers/mixing.hpp"

namespace onebit::nn {

template <class Exec, class Real>
void Mixing<Exec, Real>::add_bias(const Exec& exec, VectorRef<Exec, const Real> bias, ConstMatrix input,
                                  ConstMatrix addend, Matrix output) {
  const int columns = output.extent_int(1);
  const bool adds = addend.extent(0) > 0;
  for_each_row(
      exec, "OneBit::nn::add_bias", output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(
            columns,
            [&](int j) {
              const Real sum = input(r, j) + bias(j);
              return adds ? sum + addend(r, j) : sum;
            },
            [&](int j, Real sum) { output(r, j) = sum; });
      });
}

template <class Exec, class Real>
void Mixing<Exec, Real>::exchange(const Exec& exec, ConstMatrix input, ConstMatrix addend, Matrix output) {
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

#define ONEBIT_INSTANTIATE(Exec)       \
  template struct Mixing<Exec, float>; \
  template struct Mixing<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
