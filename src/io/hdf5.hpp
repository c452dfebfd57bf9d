#pragma once
/// \file hdf5.hpp
/// Array files (HDF5): gradients for replay, checkpoints.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/mpi.hpp"

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
  /// The same of a dataset that is stored as it is: one with more elements than the file has room for is refused.
  std::vector<std::size_t> stored_shape(const std::string& dataset) const;
  /// True for a dataset of floating-point numbers, which `read` can read.
  bool holds_reals(const std::string& dataset) const;
  /// Reads the block at `offset` of `extent` elements in each dimension, as float, row-major.
  void read(const std::string& dataset, const std::vector<std::size_t>& offset, const std::vector<std::size_t>& extent,
            float* values) const;
  /// A whole dataset of floating-point numbers, which may not be longer than the file.
  std::vector<double> reals(const std::string& dataset) const;
  /// A whole rank-1 dataset of integers, or of texts, which may not be longer than the file.
  std::vector<long long> integers(const std::string& dataset) const;
  std::vector<std::string> texts(const std::string& dataset) const;
  /// A dataset that is one text, which may not be longer than the file.
  std::string text(const std::string& dataset) const;
  /// Names of all datasets, with those of their groups in front of them, in alphabetical order.
  std::vector<std::string> datasets() const;

private:
  /// Elements of so many bytes that the file has room for.
  std::size_t largest(std::size_t element) const;

  std::string m_path;
  struct Handle;
  std::unique_ptr<Handle> m_file;
};

/// An HDF5 file that all ranks write together (parallel HDF5). Every member is collective but `write`. Until `close`
/// nothing throws but the constructor: a rank that failed takes part in what follows, as the library needs all of them.
class ArrayWriter {
public:
  enum class Type { real32, real64 };

  /// \param path       a new file, or one that is overwritten
  /// \param user_block bytes at the begin of the file that are left to the caller: 0, or a power of two ≥ 512
  /// \throws AgreedError
  ArrayWriter(const Communicator& communicator, const std::string& path, std::size_t user_block = 0);
  ~ArrayWriter();
  ArrayWriter(const ArrayWriter&) = delete;
  ArrayWriter& operator=(const ArrayWriter&) = delete;

  /// Makes a dataset, and the groups that its name needs; the `write`s that follow go to it.
  void dataset(const std::string& name, Type type, const std::vector<std::size_t>& shape);
  /// Writes the block at `offset` of `extent` elements in each dimension, row-major. Not collective.
  void write(const std::vector<std::size_t>& offset, const std::vector<std::size_t>& extent, const float* values);
  void write(const std::vector<std::size_t>& offset, const std::vector<std::size_t>& extent, const double* values);
  /// The byte of the file at which the elements of the dataset that was made last begin, row-major: once the file is
  /// closed they may be written there, whatever thread and rank it is. Not collective.
  std::uint64_t place() const;
  /// Writes rank 0's text as a dataset.
  void text(const std::string& name, const std::string& text);
  /// Completes the file. \throws AgreedError when anything could not be written
  void close();

private:
  void write(const std::vector<std::size_t>& offset, const std::vector<std::size_t>& extent, const void* values,
             Type type);

  const Communicator& m_communicator;
  std::string m_path;
  struct Handles;
  std::unique_ptr<Handles> m_handles;
};

}  // namespace onebit
