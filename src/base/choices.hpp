#pragma once
/// \file choices.hpp
/// What an input chooses by a name (docs/reference/input.md): one enum for each choice, for all folders, and the names
/// of its values in their order. tests/integration/floors_test.py checks that the names fit and that no enum has a
/// twin.

#include <array>
#include <cstddef>
#include <string>

namespace onebit {

enum class Backend { serial, openmp, cuda, hip };
constexpr auto names(Backend) { return std::array{"serial", "openmp", "cuda", "hip"}; }
constexpr bool is_gpu(Backend backend) { return backend == Backend::cuda || backend == Backend::hip; }

enum class WorkloadKind { transformer, classification, spans, images, dcgan, quadratic, replay, synthetic };
constexpr auto names(WorkloadKind) {
  return std::array{"transformer", "classification", "spans", "images", "dcgan", "quadratic", "replay", "synthetic"};
}

enum class Architecture { bert, gpt };
constexpr auto names(Architecture) { return std::array{"bert", "gpt"}; }

/// Networks that classify images.
enum class Network { resnet18, vgg16, mixer };
constexpr auto names(Network) { return std::array{"resnet18", "vgg16", "mixer"}; }

/// What becomes of an image before it is trained with.
enum class Augment { none, crop, crop_flip };
constexpr auto names(Augment) { return std::array{"none", "crop", "crop_flip"}; }

enum class Pooling { position, mean };
constexpr auto names(Pooling) { return std::array{"position", "mean"}; }

/// Of the factors in a matrix product. `tf32` (10 bits of mantissa) is a format of NVIDIA's tensor cores. A run
/// replaces `automatic` by another (workload/precision.hpp).
enum class Precision { fp32, tf32, bf16, automatic };
constexpr auto names(Precision) { return std::array{"fp32", "tf32", "bf16", "auto"}; }

/// What 1-bit dense layers quantise besides weights and activations (docs/reference/algorithms/onebit_layers.md):
/// nothing, the gradient of the output by rows for both products, by rows for one and by columns for the other, or so
/// with pruning.
enum class QuantizationKind { none, qat, psq, scq, fqt };
constexpr auto names(QuantizationKind) { return std::array{"none", "qat", "psq", "scq", "fqt"}; }

/// How `fqt` chooses the groups that it keeps.
enum class Pruning { bernoulli, systematic, topk };
constexpr auto names(Pruning) { return std::array{"bernoulli", "systematic", "topk"}; }

/// The rows of a convolution's gradient that are quantised together: those of an image, or of a position alone.
enum class RowGroup { image, position };
constexpr auto names(RowGroup) { return std::array{"image", "position"}; }

enum class TokenizerKind { bytes, characters, sentencepiece };
constexpr auto names(TokenizerKind) { return std::array{"bytes", "characters", "sentencepiece"}; }

enum class Decay { constant, exponential, linear, cosine, step, averaging };
constexpr auto names(Decay) { return std::array{"constant", "exponential", "linear", "cosine", "step", "averaging"}; }

/// `none` averages densely; compress/codecs.hpp has the codecs of the others.
enum class CompressorKind { none, sign, sign_ternary, column, nbit, fp8 };
constexpr auto names(CompressorKind) { return std::array{"none", "sign", "sign_ternary", "column", "nbit", "fp8"}; }

/// Magnitude of a group: mean of the absolute values, or root mean square.
enum class Scale { l1, l2 };
constexpr auto names(Scale) { return std::array{"l1", "l2"}; }

/// The two values of a column: the means of its negative and of its other elements, or a quarter and three quarters of
/// the way from its least to its greatest element.
enum class Reconstruction { mean, range };
constexpr auto names(Reconstruction) { return std::array{"mean", "range"}; }

/// What becomes of the signs of all ranks: the sign of their sum, or their mean.
enum class Vote { majority, average };
constexpr auto names(Vote) { return std::array{"majority", "average"}; }

enum class TransportKind { automatic, host, device, nccl };
constexpr auto names(TransportKind) { return std::array{"auto", "host", "device", "nccl"}; }

enum class Collective { flat, hierarchical, automatic };
constexpr auto names(Collective) { return std::array{"flat", "hierarchical", "auto"}; }

enum class ExchangeKind { collective, pairwise, grid };
constexpr auto names(ExchangeKind) { return std::array{"collective", "pairwise", "grid"}; }

/// How a dense average travels.
enum class DenseType { fp32, bf16, fp16 };
constexpr auto names(DenseType) { return std::array{"fp32", "bf16", "fp16"}; }

enum class OnNonfinite { abort, skip };
constexpr auto names(OnNonfinite) { return std::array{"abort", "skip"}; }

/// Which step's gradient norm clips the gradients of a step that compresses.
enum class ClipNorm { this_step, last_step };
constexpr auto names(ClipNorm) { return std::array{"this_step", "last_step"}; }

enum class Fault { none, nan, desync, hang };
constexpr auto names(Fault) { return std::array{"none", "nan", "desync", "hang"}; }

/// The name of a choice.
template <class Choice, class = decltype(names(Choice()))>
std::string to_string(Choice choice) {
  return names(choice)[static_cast<std::size_t>(choice)];
}

}  // namespace onebit
