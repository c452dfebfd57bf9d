#pragma once
/// \file quantization.hpp
/// How the dense layers of a transformer's layers, and the convolutions of a network of images, are trained with few
/// bits.

#include <limits>
#include <string>
#include <vector>

#include "base/choices.hpp"
#include "nn/quantizer/quantizer_error.hpp"

namespace onebit::nn {

/// Weights and activations are quantised in every kind but `none`. The kinds differ in the gradient of the output.
struct Quantization {
  QuantizationKind kind = QuantizationKind::none;
  int bits = 4;                           ///< b of a gradient's element: 1, 2, 4 or 8; `qat` does not quantise it
  Pruning pruning = Pruning::systematic;  ///< of `fqt`, which keeps 1/b of the groups
  /// Layers in full precision, by patterns of their names; of a transformer also "first" and "last", which are the
  /// dense layers of its first or last layer.
  std::vector<std::string> excluded{};
  int layer_bits = 1;                ///< of weights and activations: 1, or 8 for `qat` and `psq` of dense layers
  long gradients_after = 0;          ///< the last step whose gradients are not quantised
  RowGroup group = RowGroup::image;  ///< of the rows of a convolution's gradient
};

/// Whether one of the patterns matches the name of a layer.
bool matches_any(const std::vector<std::string>& patterns, const std::string& name);

/// Refuses a pattern that matches the name of no layer. \param kind of the layers, for the message
/// \throws InputError
void check_patterns(const std::vector<std::string>& patterns, const std::vector<std::string>& names,
                    const std::string& kind);

/// What a backward pass measures of its quantisers. It reads the gradients again for that.
enum class QuantizerMeasures {
  none,
  errors,  ///< QuantizationState::error
  groups,  ///< that, and QuantizationState::gradients
};

/// The groups of one quantised gradient G of a layer, and the error of their quantiser.
struct GradientGroups {
  int number = 0;     ///< of the layer, in the order of the forward pass
  std::string layer;  ///< its name
  GroupAxis axis = GroupAxis::rows;
  int bits = 0, groups = 0, kept = 0;
  int elements = 0;  ///< of a group
  QuantizerError error;
  double drawn_error = 0;      ///< ‖Q − G‖² of this draw
  std::vector<double> ranges;  ///< R of the groups, ascending, without those that hold NaN or infinity
};

/// Means over all quantised gradients of a backward pass; NaN without any.
struct QuantizationState {
  double bits = std::numeric_limits<double>::quiet_NaN();          ///< of an element, with those that were pruned
  double pruned_share = std::numeric_limits<double>::quiet_NaN();  ///< of the groups
  double error = std::numeric_limits<double>::quiet_NaN();  ///< Σ E‖Q − G‖² / Σ ‖G‖²; NaN where it was not measured
  std::vector<GradientGroups> gradients;                    ///< each of them, with QuantizerMeasures::groups
};

}  // namespace onebit::nn
