#pragma once
/// \file nodes.hpp
/// A network of images as a list of nodes, each of which reads nodes before it. networks.cpp has the networks.

#include <cstdint>
#include <string>
#include <vector>

#include "base/choices.hpp"
#include "base/kokkos.hpp"
#include "base/tensor_table.hpp"
#include "nn/images/layers/convolution.hpp"
#include "nn/quantized/quantization.hpp"

namespace onebit::nn {

/// Height and width of the patches that an MLP-Mixer cuts images into.
inline constexpr int mixer_patch = 4;

/// A network, and the images that it classifies.
struct ImageShape {
  Network network;
  int height, width, channels;  ///< of an image; height and width of a mixer's are multiples of `mixer_patch`
  int first_outputs;            ///< channels of the first convolution; the paper's networks have 64
  int classes;
  /// Of the convolutions, but not of the first one and of ResNet's shortcuts (Gao et al. 2024, Appendix D.2).
  Quantization quantization{};
};

enum class NodeKind {
  images,       ///< the input; node 0
  convolution,  ///< without a bias, which the node after it has
  norm,         ///< a batch normalisation, to which the output of another node may be added before its ReLU
  maximum,      ///< of 2 × 2 pixels
  mean,         ///< over all pixels of an image
  dense,        ///< a dense layer without a bias: each number of the output reads all numbers of an image
  transposed,   ///< a transposed convolution without a bias: the backward pass of a convolution's input
  leaky_relu,   ///< (Maas et al. 2013)
  tanh,
  bias,        ///< of each channel, plus the output of another node
  bias_gelu,   ///< a bias of each channel, and a GELU
  layer_norm,  ///< a layer normalisation of the channels of each pixel
  exchanged    ///< pixels and channels change places, plus the output of another node
};

/// A node. Its output is a matrix (B·H·W, C).
struct Node {
  NodeKind kind;
  int from = 0, addend = 0;                 ///< nodes that it reads; nothing is added where `addend` is 0
  int height = 0, width = 0, channels = 0;  ///< H, W, C of its output
  bool relu = false;                        ///< whether a norm's output goes through a ReLU
  ConvolutionExtents convolution{};         ///< of a convolution, or of that whose backward pass a transposed one is
  std::size_t weight = 0;                   ///< first element of a matrix, or of a normalisation's weight
  std::size_t bias = 0;                     ///< first element of a bias
  std::size_t gamma = 0;                    ///< of a 1-bit convolution's Γ
  int number = 0;                           ///< of a norm among all norms, of a convolution among all convolutions
  bool quantized = false;                   ///< whether a convolution has one bit
  std::size_t weights = 0;                  ///< elements of the matrix of a convolution or a dense layer
  double deviation = 0;                     ///< standard deviation of their initial values

  /// Numbers of an image: H·W·C.
  int size() const { return height * width * channels; }
  /// Whether the weight is a matrix.
  bool has_matrix() const { return weights > 0; }
};

/// What an output position of a convolution reads: k × k pixels, s pixels further on for the next one, in images with p
/// pixels of zeros on each side.
struct Window {
  int kernel, stride, padding;
};

/// The nodes in the order of the forward pass, and the parameters in the same order. The last node of a network that
/// classifies gives the logits without their bias (classes), which is the last tensor.
class ImageNodes {
public:
  /// A network that classifies. \throws InputError if an excluded pattern matches no convolution
  explicit ImageNodes(const ImageShape& shape);
  /// The images alone, to which nodes are added.
  /// \param before tensors of the flat buffer that stand before this network's, if it is not the first
  ImageNodes(int height, int width, int channels, TensorTable before = {});

  const std::vector<Node>& nodes() const { return m_nodes; }
  const Node& last() const { return m_nodes.back(); }
  /// The tensors, behind those that stand before them.
  const TensorTable& table() const { return m_table; }
  /// First element of the parameters.
  std::size_t begin() const { return m_begin; }
  int norms() const { return m_norms; }
  const Quantization& quantization() const { return m_quantization; }
  /// Of all convolutions, by their number.
  const std::vector<std::string>& convolution_names() const { return m_convolution_names; }
  std::size_t head_bias() const { return m_head_bias; }

  // What networks are made of. Each adds a node and returns its number; `name` is that of its parameters.
  //
  // Norms, biases and GELUs are not the last node, and each alone reads its `from`. An `addend` is a node that no later
  // one reads; 0 if nothing is added.

  /// \param quantizable whether `quantization` may give it one bit; those that read the images stay in float
  int convolution(const std::string& name, int from, int outputs, const Window& window, bool quantizable = true);
  /// A dense layer of each patch of so many pixels' height and width, a convolution, with a dense layer's initial
  /// values.
  int patch_dense(const std::string& name, int from, int outputs, int patch);
  int norm(const std::string& name, int from, bool relu, int addend = 0);
  int maximum(int from);
  int mean(int from);
  int dense(const std::string& name, int from, int outputs) { return dense(name, from, 1, 1, outputs); }
  /// A dense layer that makes images of H rows, W columns and C channels.
  int dense(const std::string& name, int from, int height, int width, int channels);
  /// Images of twice the height and width. \param kernel even
  int transposed(const std::string& name, int from, int outputs, int kernel);
  int leaky_relu(int from) { return add(like(NodeKind::leaky_relu, from)); }
  int tanh(int from) { return add(like(NodeKind::tanh, from)); }
  int bias(const std::string& name, int from, int addend = 0);
  int bias_gelu(const std::string& name, int from) { return add_biased(name, like(NodeKind::bias_gelu, from)); }
  int layer_norm(const std::string& name, int from);
  /// Images of C × 1 pixels and P channels of those of P pixels and C channels.
  int exchanged(int from, int addend = 0);

  /// All matrices get initial values with this standard deviation, in place of those of `initialize`.
  void set_deviation(double deviation);

private:
  /// A node whose output has the extents of node `from`, which it reads.
  Node like(NodeKind kind, int from) const;
  int add(const Node& node);
  /// Adds a node with a bias.
  int add_biased(const std::string& name, Node node);
  std::size_t add_vector(const std::string& name, int length) {
    return m_table.add(name, {static_cast<std::size_t>(length)}, false);
  }
  /// Adds a node with a matrix (rows, columns).
  int add_matrix(const std::string& name, int rows, int columns, Node node);

  TensorTable m_table;
  Quantization m_quantization;
  std::vector<Node> m_nodes;
  std::vector<std::string> m_convolution_names;
  int m_norms = 0;
  std::size_t m_begin = 0, m_head_bias = 0;
};

/// The weights of convolutions from N(0, 2 / (k² D)), which keeps the size of gradients through ReLUs (He et al., ICCV
/// 2015, Section 2.2), and those of transposed ones from N(0, 2 s² / (k² inputs)) for the same reason; those of dense
/// layers from N(0, 1/inputs); normalisations 1 and 0; Γ of 1-bit convolutions of K inputs K^−½, so that outputs of
/// random signs have variance 1; biases 0. Element i depends on the seed and on i alone.
///
/// \param x elements [begin, end of the table) are written
template <class Exec, class Real>
void initialize(const Exec& exec, const ImageNodes& nodes, std::uint64_t seed, const Vector<Exec, Real>& x);

}  // namespace onebit::nn
