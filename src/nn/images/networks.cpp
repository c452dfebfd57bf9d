/// \file networks.cpp
/// The networks of images, as lists of nodes.

#include <algorithm>
#include <array>

#include "nn/images/nodes.hpp"

namespace onebit::nn {
namespace {

/// A convolution of 3 × 3 pixels, its norm and a ReLU, before which the output of node `addend` is added if it is not
/// 0. \returns the last node
///
/// Where it pools, a 1-bit convolution does so before the norm (Rastegari et al., ECCV 2016, Section 3.2): the maximum
/// of four numbers behind a ReLU is positive for most pixels, so that most signs would be equal.
int convolution_norm(ImageNodes& nodes, const std::string& name, const std::string& number, int from, int outputs,
                     int stride, int addend = 0, bool pools = false) {
  const bool pools_first = nodes.quantization().kind != QuantizationKind::none;
  int node = nodes.convolution(name + "conv" + number, from, outputs, 3, stride);
  if (pools && pools_first) node = nodes.maximum(node);
  node = nodes.norm(name + "bn" + number, node, true, addend);
  return pools && !pools_first ? nodes.maximum(node) : node;
}

/// A convolution of one pixel and its norm, where a block of ResNet halves the images.
int shortcut_norm(ImageNodes& nodes, const std::string& name, int from, int outputs, int stride) {
  const int convolution = nodes.convolution(name + "downsample.conv", from, outputs, 1, stride);
  return nodes.norm(name + "downsample.bn", convolution, false);
}

/// ResNet-18 (He et al., CVPR 2016, Table 1) with a first convolution of 3 × 3 pixels and no pooling after it, as for
/// images of 32 pixels (their Section 4.2). Names are torchvision's.
void add_resnet18(ImageNodes& nodes, int first_outputs) {
  int from = convolution_norm(nodes, "", "1", 0, first_outputs, 1);
  for (int stage = 0; stage < 4; ++stage)
    for (int block = 0; block < 2; ++block) {
      const std::string name = "layer" + std::to_string(stage + 1) + "." + std::to_string(block) + ".";
      const int outputs = first_outputs << stage, stride = stage > 0 && block == 0 ? 2 : 1;
      const int shortcut = stride == 1 ? from : shortcut_norm(nodes, name, from, outputs, stride);
      const int first = convolution_norm(nodes, name, "1", from, outputs, stride);
      from = convolution_norm(nodes, name, "2", first, outputs, 1, shortcut);
    }
  nodes.mean(from);
}

/// VGG-16 (Simonyan and Zisserman, ICLR 2015, Table 1, D) with batch normalisation. One dense layer reads the mean of
/// the last pixels in place of three, as for images of 32 pixels, and where one pixel is left nothing is pooled.
void add_vgg16(ImageNodes& nodes, int first_outputs) {
  constexpr std::array convolutions{2, 2, 3, 3, 3};
  int from = 0, number = 1;
  for (std::size_t stage = 0; stage < convolutions.size(); ++stage) {
    const int outputs = first_outputs << std::min<std::size_t>(stage, 3);
    for (int k = 1; k <= convolutions[stage]; ++k, ++number) {
      const bool pools = k == convolutions[stage] && nodes.last().height > 1 && nodes.last().width > 1;
      from = convolution_norm(nodes, "features.", std::to_string(number), from, outputs, 1, 0, pools);
    }
  }
  nodes.mean(from);
}

}  // namespace

ImageNodes::ImageNodes(const ImageShape& shape) : ImageNodes(shape.height, shape.width, shape.channels) {
  m_quantization = shape.quantization;
  shape.network == Network::vgg16 ? add_vgg16(*this, shape.first_outputs) : add_resnet18(*this, shape.first_outputs);
  check_patterns(m_quantization.excluded, m_convolution_names, "convolution");
  dense("fc", static_cast<int>(m_nodes.size()) - 1, shape.classes);
  m_head_bias = m_table.add("fc.bias", {static_cast<std::size_t>(shape.classes)}, false);
}

}  // namespace onebit::nn
