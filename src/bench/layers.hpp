#pragma once
/// \file layers.hpp
/// The dense layers that `onebit bench layers` measures. A convolution is the product of its output pixels as rows, the
/// inputs under its kernel as terms, and its output channels as columns.

#include <functional>
#include <string>
#include <vector>

#include "bench/kernels/kernel.hpp"

namespace onebit::bench {

/// Layers of one shape in a network.
struct LayerShape {
  std::string name;     ///< of the first of them
  int count;            ///< how many the network has
  int rows;             ///< of a sample: output pixels or tokens
  int inputs, outputs;  ///< K and D
};

/// Whether its samples are images. Those of `bert_base` are texts of 128 tokens.
bool has_images(const std::string& network);
/// The convolutions of `vgg16`, `resnet18` or `resnet18_small`, or the dense layers of `bert_base`, without the
/// classifier.
/// \param pixels width and height of the image
std::vector<LayerShape> layer_shapes(const std::string& network, int pixels);

/// Calls `measure` with the kernels of one layer of N rows. Each is a forward pass and both gradients.
template <class Exec>
void layer_kernels(const Exec& exec, int rows, const LayerShape& shape,
                   const std::function<void(const std::vector<Kernel>&)>& measure);

}  // namespace onebit::bench
