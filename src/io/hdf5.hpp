#pragma once
/// \file hdf5.hpp
/// HDF5 files: gradients for replay, and checkpoints. In a build without HDF5 the constructors throw.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mpi.hpp"

namespace onebit {

/// Whether this build has parallel HDF5.
bool has_hdf5();

/// Reads an HDF5 file. Several ranks may open the same file. All members throw InputError, with the name of the file,
/// for a file or dataset that is missing, truncated or of the wrong type.
class ArrayReader {
public:
  explicit ArrayReader(const std::string& path);
  ~ArrayReader();
  ArrayReader(const ArrayReader&) = delete;
  ArrayReader& operator=(const ArrayReader&) = delete;

  bool has(const std::string& dataset) const;
  /// Extents of a dataset, slowest first.
  std::vector<std::size_t> shape(const std::string& dataset) const;
  /// The same, but refuses a dataset with more elements than the file has bytes.
  std::vector<std::size_t> stored_shape(const std::string& dataset) const;
  /// Whether a dataset holds floating-point numbers, which `read` needs.
  bool holds_reals(const std::string& dataset) const;
  /// Reads the block at `offset` of `extent` elements in each dimension, as float, row-major.
  void read(const std::string& dataset, const std::vector<std::size_t>& offset, const std::vector<std::size_t>& extent,
            float* values) const;
  // Whole datasets, which must not be longer than the file.

  /// Floating-point numbers.
  std::vector<double> reals(const std::string& dataset) const;
  /// Integers or booleans, of rank 1.
  std::vector<long long> integers(const std::string& dataset) const;
  /// Texts, of rank 1.
  std::vector<std::string> texts(const std::string& dataset) const;
  /// One text.
  std::string text(const std::string& dataset) const;

  /// Paths of all datasets in alphabetical order.
  std::vector<std::string> datasets() const;

private:
  /// The most elements of this size that fit into the file.
  std::size_t largest(std::size_t element_bytes) const;

  std::string m_path;
  struct Handle;
  std::unique_ptr<Handle> m_file;
};

/// Writes an HDF5 file with all ranks together (parallel HDF5). All members are collective except `write` and `place`.
/// Only the constructor and `close` throw: after an error a rank still takes part, because the library needs all ranks.
class ArrayWriter {
public:
  enum class Type { real32, real64 };

  /// Creates or overwrites a file.
  /// \param user_block bytes at the beginning of the file for the caller: 0 or a power of two ≥ 512
  /// \throws AgreedError
  ArrayWriter(const Communicator& communicator, const std::string& path, std::size_t user_block = 0);
  ~ArrayWriter();
  ArrayWriter(const ArrayWriter&) = delete;
  ArrayWriter& operator=(const ArrayWriter&) = delete;

  /// Creates a dataset and its groups. The following `write`s go to it.
  void dataset(const std::string& name, Type type, const std::vector<std::size_t>& shape);
  /// Writes the block at `offset` of `extent` elements in each dimension, row-major.
  void write(const std::vector<std::size_t>& offset, const std::vector<std::size_t>& extent, const double* values);
  /// Offset in bytes, in the file, of the elements of the dataset that was created last (row-major). Any thread of any
  /// rank may write them there once the file is closed.
  std::uint64_t place() const;
  /// Creates a dataset with rank 0's text.
  void text(const std::string& name, const std::string& text);
  /// Completes the file. \throws AgreedError when a part of it could not be written
  void close();

private:
  const Communicator& m_communicator;
  std::string m_path;
  struct Handles;
  std::unique_ptr<Handles> m_handles;
};

}  // namespace onebit
