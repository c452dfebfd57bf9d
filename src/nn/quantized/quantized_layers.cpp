#include "nn/quantized/quantized_layers.hpp"

#include "nn/quantized/binary_layers.hpp"
#include "nn/quantized/eight_bit_layers.hpp"

namespace onebit::nn {

template <class Exec, class Real>
std::unique_ptr<QuantizedLayers<Exec, Real>> make_quantized_layers(const Quantization& quantization, int rows,
                                                                   const std::vector<DenseExtents>& layers) {
  if (quantization.layer_bits == 8) return std::make_unique<EightBitLayers<Exec, Real>>(quantization, rows, layers);
  return std::make_unique<BinaryLayers<Exec, Real>>(quantization, rows, layers);
}

#define ONEBIT_INSTANTIATE_REAL(Exec, Real)                                                             \
  template std::unique_ptr<QuantizedLayers<Exec, Real>> make_quantized_layers(const Quantization&, int, \
                                                                              const std::vector<DenseExtents>&);
#define ONEBIT_INSTANTIATE(Exec) ONEBIT_INSTANTIATE_REAL(Exec, float) ONEBIT_INSTANTIATE_REAL(Exec, double)
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
