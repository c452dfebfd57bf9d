#pragma once
/// \file checks.hpp
/// Checks of an input for the commands that do not train, and the keys that have no effect.

#include <string>
#include <vector>

#include "config/input.hpp"

namespace onebit::config {

/// Whether the workload trains on labelled texts.
inline bool has_labelled_texts(const Input& input) {
  return input.workload.kind == WorkloadKind::classification || input.workload.kind == WorkloadKind::spans;
}

/// Whether it trains a model of section `model`.
inline bool has_model(const Input& input) {
  return input.workload.kind == WorkloadKind::transformer || has_labelled_texts(input);
}

/// Whether it has images of section `images`.
inline bool has_images(const Input& input) {
  return input.workload.kind == WorkloadKind::images || input.workload.kind == WorkloadKind::dcgan;
}

/// Whether it has batch normalisations, of which an MLP-Mixer has none.
inline bool has_batch_norms(const Input& input) {
  return has_images(input) && (input.workload.kind == WorkloadKind::dcgan || input.images.network != Network::mixer);
}

/// Whether it has layers that `model.quantization` may quantise: those of a transformer, or convolutions of a
/// classifier.
inline bool has_quantizable_layers(const Input& input) {
  return has_model(input) || input.workload.kind == WorkloadKind::images;
}

/// Whether it draws samples and computes their gradient in rounds, and validates with others.
inline bool has_batches(const Input& input) { return has_model(input) || has_images(input); }

/// Refuses an empty `run.output`.
/// \throws InputError
void check_output(const Input& input);

/// The same, and refuses values of section `bench` that are allowed each by itself but not together.
/// \throws InputError
void check_bench(const Input& input);

/// A message for each key that was given and has no effect on a run of this input, because of its algorithm, workload,
/// compressor or another key. A key that is needed elsewhere, in section `bench`, is none of them.
std::vector<std::string> without_effect(const Input& input);

}  // namespace onebit::config
