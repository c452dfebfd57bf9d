#pragma once
/// \file initial_parameters.hpp
/// Parameters from the checkpoint of an earlier run, perhaps of another model (`checkpoint.initialize_from`).

#include <string>

#include "base/kokkos.hpp"
#include "base/tensor_table.hpp"

namespace onebit::train {

/// x ← parameters of a checkpoint, tensor by tensor. A component (the first part of its tensors' names) that the
/// checkpoint lacks keeps its values in x; one that this model lacks is left out: both are heads of different tasks. In
/// all other components, the two models must have the same tensors with the same shapes. Position embeddings are the
/// exception: as many rows are taken as both models have. Not collective.
/// \returns a line that says what was taken
/// \throws InputError
template <class Exec>
std::string read_parameters(const Exec& exec, const std::string& path, const TensorTable& tensors,
                            const Vector<Exec, float>& x);

}  // namespace onebit::train
