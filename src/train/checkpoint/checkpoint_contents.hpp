#pragma once
/// \file checkpoint_contents.hpp
/// What the datasets of a checkpoint say. Not collective.

#include <map>
#include <string>

#include "base/tensor_table.hpp"
#include "io/hdf5.hpp"

namespace onebit::train {

/// A dataset that is one whole number from 0 on. \throws InputError if it is not
long whole_number(const ArrayReader& file, const std::string& path, const std::string& name);

/// Reads `count` elements of dataset `variance`, v, from element `begin` on.
/// \throws InputError if one is negative or not finite
void read_variance(const ArrayReader& file, const std::string& path, std::size_t begin, std::size_t count, float* v);

/// The tensors of a checkpoint's model, by name, with their places in its flat vectors.
/// \throws InputError if they do not make up its parameters
std::map<std::string, Tensor> saved_tensors(const ArrayReader& file, const std::string& path);

}  // namespace onebit::train
