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
  int node = nodes.convolution(name + "conv" + number, from, outputs, {3, stride, 1});
  if (pools && pools_first) node = nodes.maximum(node);
  node = nodes.norm(name + "bn" + number, node, true, addend);
  return pools && !pools_first ? nodes.maximum(node) : node;
}

/// A convolution of one pixel and its norm, where a block of ResNet halves the images. It stays in float.
int shortcut_norm(ImageNodes& nodes, const std::string& name, int from, int outputs, int stride) {
  const int convolution = nodes.convolution(name + "downsample.conv", from, outputs, {1, stride, 0}, false);
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

/// Two dense layers of each pixel with a GELU between them, the second one without a bias.
/// \returns the last node
int two_dense(ImageNodes& nodes, const std::string& name, int from, int hidden, int outputs) {
  const int first = nodes.patch_dense(name + "fc1", from, hidden, 1);
  return nodes.patch_dense(name + "fc2", nodes.bias_gelu(name + "fc1", first), outputs, 1);
}

/// MLP-Mixer (Tolstikhin et al., NeurIPS 2021, Figure 1 and Section 2) on patches of 4 × 4 pixels, as for images of 32
/// pixels, with four blocks. The hidden layers have the paper's sizes, D_S = C/2 and D_C = 4 C, of C channels of a
/// patch. Names are timm's. The second dense layer over patches has no bias: it would move all channels of a patch by
/// the same number, which the next normalisation takes away.
void add_mixer(ImageNodes& nodes, int channels) {
  constexpr int blocks = 4;
  int from = nodes.bias("stem.proj", nodes.patch_dense("stem.proj", 0, channels, mixer_patch));
  const int patches = nodes.last().height * nodes.last().width;
  for (int block = 0; block < blocks; ++block) {
    const std::string name = "blocks." + std::to_string(block) + ".";
    // A dense layer over patches is one over channels while the two have changed places.
    int branch = nodes.exchanged(nodes.layer_norm(name + "norm1", from));
    branch = two_dense(nodes, name + "mlp_tokens.", branch, (channels + 1) / 2, patches);
    from = nodes.exchanged(branch, from);
    branch = nodes.layer_norm(name + "norm2", from);
    branch = two_dense(nodes, name + "mlp_channels.", branch, 4 * channels, channels);
    from = nodes.bias(name + "mlp_channels.fc2", branch, from);
  }
  nodes.mean(nodes.layer_norm("norm", from));
}

}  // namespace

ImageNodes::ImageNodes(const ImageShape& shape) : ImageNodes(shape.height, shape.width, shape.channels) {
  m_quantization = shape.quantization;
  const auto add_body = shape.network == Network::resnet18 ? add_resnet18
                        : shape.network == Network::vgg16  ? add_vgg16
                                                           : add_mixer;
  add_body(*this, shape.first_outputs);
  check_patterns(m_quantization.excluded, m_convolution_names, "convolution");
  const std::string head = shape.network == Network::mixer ? "head" : "fc";
  dense(head, static_cast<int>(m_nodes.size()) - 1, shape.classes);
  m_head_bias = add_vector(head + ".bias", shape.classes);
}

}  // namespace onebit::nn
