/// \file layer_shapes.cpp
/// The layers of VGG-16 (Simonyan and Zisserman 2015, configuration D), of ResNet-18 (He et al. 2016) and of BERT-Base.

#include "bench/layers.hpp"

#include <algorithm>

namespace onebit::bench {
namespace {

/// A convolution of square kernels.
LayerShape convolution(const std::string& name, int count, int width, int kernel, int from, int to) {
  return {name, count, width * width, from * kernel * kernel, to};
}

int halved(int pixels) { return std::max((pixels + 1) / 2, 1); }

/// Stages of convolutions, with a pooling after each. All but the first convolutions of a stage have one shape.
std::vector<LayerShape> vgg16(int pixels) {
  struct Stage {
    int convolutions, channels;
  };
  std::vector<LayerShape> shapes;
  int from = 3, number = 1, width = pixels;
  for (const Stage& stage : {Stage{2, 64}, Stage{2, 128}, Stage{3, 256}, Stage{3, 512}, Stage{3, 512}}) {
    const std::string name = "conv" + std::to_string(number++) + "_";
    const int to = stage.channels, first = from == to ? 0 : 1;
    if (first > 0) shapes.push_back(convolution(name + "1", 1, width, 3, from, to));
    shapes.push_back(convolution(name + std::to_string(first + 1), stage.convolutions - first, width, 3, to, to));
    from = to;
    width = std::max(width / 2, 1);
  }
  return shapes;
}

/// A convolution and a pooling, which quarter the image, or a convolution of 3 × 3 pixels, which does not; then stages
/// of two blocks. But for the first stage, the first convolution of a stage halves the image, and so does a convolution
/// of one pixel beside it.
std::vector<LayerShape> resnet18(int pixels, bool small) {
  int width = small ? pixels : halved(pixels);
  std::vector<LayerShape> shapes = {convolution("conv1", 1, width, small ? 3 : 7, 3, 64)};
  if (!small) width = halved(width);
  shapes.push_back(convolution("stage1", 4, width, 3, 64, 64));
  for (int number = 2, from = 64; number <= 4; ++number, from *= 2) {
    const std::string name = "stage" + std::to_string(number);
    width = halved(width);
    shapes.push_back(convolution(name + "_first", 1, width, 3, from, 2 * from));
    shapes.push_back(convolution(name + "_shortcut", 1, width, 1, from, 2 * from));
    shapes.push_back(convolution(name, 3, width, 3, 2 * from, 2 * from));
  }
  return shapes;
}

/// 12 layers of 768 channels, 128 tokens a sample.
std::vector<LayerShape> bert_base() {
  constexpr int layers = 12, tokens = 128, hidden = 768;
  return {{"qkv", layers, tokens, hidden, 3 * hidden},
          {"attention_output", layers, tokens, hidden, hidden},
          {"feed_forward_in", layers, tokens, hidden, 4 * hidden},
          {"feed_forward_out", layers, tokens, 4 * hidden, hidden}};
}

}  // namespace

std::vector<LayerShape> layer_shapes(const std::string& network, int pixels) {
  if (network == "bert_base") return bert_base();
  return network == "vgg16" ? vgg16(pixels) : resnet18(pixels, network == "resnet18_small");
}

bool has_images(const std::string& network) { return network != "bert_base"; }

}  // namespace onebit::bench
