#pragma once
/// \file recorded_gradients.hpp
/// Gradients of another implementation, from an HDF5 file. Datasets: `gradients` (steps, ranks, parameters); optionally
/// `initial` (parameters) and the tensor table `tensors/names`, `tensors/sizes` and `tensors/decays`, with one entry
/// for each tensor, in order.

#include <cstddef>
#include <string>

#include "base/tensor_table.hpp"
#include "io/hdf5.hpp"

namespace onebit::data {

/// Keeps the file open and checks it before a run begins.
class RecordedGradients {
public:
  /// \throws InputError for a file with other shapes or types, for other ranks or fewer steps
  RecordedGradients(const std::string& path, std::size_t ranks, std::size_t steps);

  /// d, the elements of a gradient.
  std::size_t parameters() const { return m_parameters; }
  /// The file's tensor table; one tensor if it has none. \throws InputError unless it covers all parameters
  TensorTable tensors() const;
  /// \param x (d) is left as it is if the file has no `initial` \throws InputError if it cannot be read
  void read_initial(float* x) const;
  /// g ← the gradient of a step, from 1, and a rank, from 0. \param g (d) \throws InputError if it cannot be read
  void read(std::size_t step, std::size_t rank, float* g) const;

private:
  void check_reals(const std::string& dataset) const;

  std::string m_path;
  ArrayReader m_file;
  std::size_t m_parameters = 0;
};

}  // namespace onebit::data
