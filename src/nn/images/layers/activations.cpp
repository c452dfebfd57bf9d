#include "nn/images/layers/activations.hpp"

#include "base/device/parallel.hpp"

namespace onebit::nn {

template <class Exec, class Real>
void Activations<Exec, Real>::leaky_relu(const Exec& exec, const Buffer& input, const Buffer& output) {
  for_each(
      exec, "OneBit::nn::leaky_relu", output.extent(0),
      KOKKOS_LAMBDA(std::size_t i) { output(i) = input(i) > 0 ? input(i) : Real(leaky_slope) * input(i); });
}

template <class Exec, class Real>
void Activations<Exec, Real>::leaky_relu_backward(const Exec& exec, const Buffer& input, const Buffer& d_output,
                                                  bool add, const Buffer& d_input) {
  for_each(
      exec, "OneBit::nn::leaky_relu_backward", d_input.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        d_input(i) = (input(i) > 0 ? Real(1) : Real(leaky_slope)) * d_output(i) + (add ? d_input(i) : Real(0));
      });
}

template <class Exec, class Real>
void Activations<Exec, Real>::tanh(const Exec& exec, const Buffer& input, const Buffer& output) {
  for_each(
      exec, "OneBit::nn::tanh", output.extent(0), KOKKOS_LAMBDA(std::size_t i) { output(i) = math::tanh(input(i)); });
}

template <class Exec, class Real>
void Activations<Exec, Real>::tanh_backward(const Exec& exec, const Buffer& output, const Buffer& d_output, bool add,
                                            const Buffer& d_input) {
  for_each(
      exec, "OneBit::nn::tanh_backward", d_input.extent(0), KOKKOS_LAMBDA(std::size_t i) {
        d_input(i) = (1 - output(i) * output(i)) * d_output(i) + (add ? d_input(i) : Real(0));
      });
}

#define ONEBIT_INSTANTIATE(Exec)            \
  template struct Activations<Exec, float>; \
  template struct Activations<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
