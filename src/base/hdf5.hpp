#pragma once
/// \file hdf5.hpp
/// Array files (HDF5): gradients for replay, parameters that a run leaves behind.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace onebit {

/// An HDF5 file that is read. Every rank may open the same one.
/// All members throw InputError, with the file's name, for a file or dataset that is missing, truncated or of another
/// kind than asked for.
class ArrayReader {
public:
  explicit ArrayReader(const std::string& path);
  ~ArrayReader();
  ArrayReader(const ArrayReader&) = delete;
  ArrayReader& operator=(const ArrayReader&) = delete;

  bool has(const std::string& dataset) const;
  /// Extents of a dataset, slowest first.
  std::vector<std::size_t> shape(const std::string& dataset) const;
  /// True for a dataset of floating-point numbers, which `read` can read.
  bool holds_reals(const std::string& dataset) const;
  /// Reads the block at `offset` of `extent` elements in each dimension, as float, row-major.
  void read(const std::string& dataset, const std::vector<std::size_t>& offset, const std::vector<std::size_t>& extent,
            float* values) const;
  /// A whole rank-1 dataset of integers, or of texts.
  std::vector<long long> integers(const std::string& dataset) const;
  std::vector<std::string> texts(const std::string& dataset) const;

private:
  std::string m_path;
  struct Handle;
  std::unique_ptr<Handle> m_file;
};

/// Name and elements of a rank-1 float dataset.
using NamedArray = std::pair<std::string, std::vector<float>>;

/// Writes datasets to a new file: under a temporary name, renamed when it is complete.
/// \throws RunError
void write_arrays(const std::string& path, const std::vector<NamedArray>& arrays);

}  // namespace onebit
