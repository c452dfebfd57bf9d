/// \file hdf5.cpp
/// See hdf5.hpp. The library's own error stack is switched off: what went wrong is said in one sentence here.

#include "base/hdf5.hpp"

#include <hdf5.h>

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace onebit {
namespace {

/// An HDF5 identifier with its closing function.
class Id {
public:
  Id(hid_t id, herr_t (*close)(hid_t)) : m_id(id), m_close(close) {}
  ~Id() { close(); }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  operator hid_t() const { return m_id; }
  bool valid() const { return m_id >= 0; }
  /// Closes it now; for a file, that is the last chance of a write to fail.
  bool close() { return m_id < 0 || m_close(std::exchange(m_id, -1)) >= 0; }

private:
  hid_t m_id;
  herr_t (*m_close)(hid_t);
};

void silence_library() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

}  // namespace

struct ArrayReader::Handle {
  Handle(const std::string& path) : file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose) {}
  Id file;
};

namespace {

/// A dataset that is known to exist, with its space.
struct Dataset {
  Dataset(const std::string& path, hid_t file, const std::string& name)
      : id(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose), space(id.valid() ? H5Dget_space(id) : -1, H5Sclose) {
    if (!space.valid() || H5Sget_simple_extent_ndims(space) < 0)
      throw InputError(path, "there is no dataset '" + name + "' that can be read",
                       "see docs/input.md for the datasets that this file must have");
  }
  std::vector<hsize_t> extents() const {
    std::vector<hsize_t> all(H5Sget_simple_extent_ndims(space));
    H5Sget_simple_extent_dims(space, all.data(), nullptr);
    return all;
  }
  Id id, space;
};

InputError unreadable(const std::string& path, const std::string& dataset, const std::string& wanted) {
  return {path, "dataset '" + dataset + "' cannot be read as " + wanted + "; the file may be truncated",
          "check the file with h5dump, and write it again"};
}

}  // namespace

ArrayReader::ArrayReader(const std::string& path) : m_path(path) {
  silence_library();
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) throw InputError(path, "this is a directory", "name a file in it");
  if (std::FILE* file = std::fopen(path.c_str(), "rb"))
    std::fclose(file);
  else
    throw InputError(path, "the file does not exist or may not be read", "check the name and the permissions");
  m_file = std::make_unique<Handle>(path);
  if (!m_file->file.valid())
    throw InputError(path, "this is not an HDF5 file, or it is truncated", "write it again, e.g. with h5py");
}

ArrayReader::~ArrayReader() = default;

bool ArrayReader::has(const std::string& dataset) const {
  // H5Lexists needs every parent to exist.
  for (std::size_t slash = dataset.find('/'); slash != std::string::npos; slash = dataset.find('/', slash + 1))
    if (H5Lexists(m_file->file, dataset.substr(0, slash).c_str(), H5P_DEFAULT) <= 0) return false;
  return H5Lexists(m_file->file, dataset.c_str(), H5P_DEFAULT) > 0;
}

std::vector<std::size_t> ArrayReader::shape(const std::string& dataset) const {
  const std::vector<hsize_t> extents = Dataset(m_path, m_file->file, dataset).extents();
  return {extents.begin(), extents.end()};
}

bool ArrayReader::holds_reals(const std::string& dataset) const {
  const Id type(H5Dget_type(Dataset(m_path, m_file->file, dataset).id), H5Tclose);
  return H5Tget_class(type) == H5T_FLOAT;
}

void ArrayReader::read(const std::string& dataset, const std::vector<std::size_t>& offset,
                       const std::vector<std::size_t>& extent, float* values) const {
  const Dataset data(m_path, m_file->file, dataset);
  const std::vector<hsize_t> begin(offset.begin(), offset.end()), count(extent.begin(), extent.end());
  const std::vector<hsize_t> extents = data.extents();
  bool inside = extents.size() == begin.size() && extents.size() == count.size();
  for (std::size_t i = 0; inside && i < begin.size(); ++i) inside = begin[i] + count[i] <= extents[i];
  const Id type(H5Dget_type(data.id), H5Tclose);
  if (!inside || H5Tget_class(type) != H5T_FLOAT) throw unreadable(m_path, dataset, "floating-point numbers");
  const Id memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose);
  H5Sselect_hyperslab(data.space, H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr);
  if (H5Dread(data.id, H5T_NATIVE_FLOAT, memory, data.space, H5P_DEFAULT, values) < 0)
    throw unreadable(m_path, dataset, "floating-point numbers");
}

std::vector<long long> ArrayReader::integers(const std::string& dataset) const {
  const Dataset data(m_path, m_file->file, dataset);
  const std::vector<hsize_t> extents = data.extents();
  const Id type(H5Dget_type(data.id), H5Tclose);
  const H5T_class_t kind = H5Tget_class(type);
  // Booleans of h5py are enumerations over a byte.
  if (extents.size() != 1 || (kind != H5T_INTEGER && kind != H5T_ENUM))
    throw unreadable(m_path, dataset, "a list of integers");
  if (kind == H5T_ENUM) {
    std::vector<signed char> bytes(extents[0]);
    if (H5Tget_size(type) != 1 || H5Dread(data.id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) < 0)
      throw unreadable(m_path, dataset, "a list of integers");
    return {bytes.begin(), bytes.end()};
  }
  std::vector<long long> values(extents[0]);
  if (H5Dread(data.id, H5T_NATIVE_LLONG, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
    throw unreadable(m_path, dataset, "a list of integers");
  return values;
}

std::vector<std::string> ArrayReader::texts(const std::string& dataset) const {
  const Dataset data(m_path, m_file->file, dataset);
  const std::vector<hsize_t> extents = data.extents();
  const Id type(H5Dget_type(data.id), H5Tclose);
  if (extents.size() != 1 || H5Tget_class(type) != H5T_STRING) throw unreadable(m_path, dataset, "a list of texts");
  std::vector<std::string> values;
  if (H5Tis_variable_str(type) > 0) {
    std::vector<char*> pointers(extents[0], nullptr);
    if (H5Dread(data.id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, pointers.data()) < 0)
      throw unreadable(m_path, dataset, "a list of texts");
    for (const char* text : pointers) values.emplace_back(text ? text : "");
    H5Dvlen_reclaim(type, data.space, H5P_DEFAULT, pointers.data());
  } else {
    const std::size_t width = H5Tget_size(type);
    if (width > 65536) throw unreadable(m_path, dataset, "a list of texts");  // a damaged file: no name is so long
    std::string all(extents[0] * width, '\0');
    if (H5Dread(data.id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()) < 0)
      throw unreadable(m_path, dataset, "a list of texts");
    for (hsize_t i = 0; i < extents[0]; ++i) values.emplace_back(all.substr(i * width, width).c_str());
  }
  return values;
}

void write_arrays(const std::string& path, const std::vector<NamedArray>& arrays) {
  silence_library();
  const std::string partial = path + ".partial";
  Id file(H5Fcreate(partial.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
  bool written = file.valid();
  for (const auto& [name, values] : arrays) {
    if (!written) break;
    const hsize_t extent = values.size();
    const Id space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    Id data(H5Dcreate2(file, name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Dclose);
    written = data.valid() && H5Dwrite(data, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0;
    written = data.close() && written;
  }
  if (file.valid()) {
    written = written && H5Fflush(file, H5F_SCOPE_LOCAL) >= 0;
    written = file.close() && written;
  }
  if (!written || std::rename(partial.c_str(), path.c_str()) != 0) {
    std::remove(partial.c_str());
    throw RunError(path, "the file could not be written", "check the directory, its permissions and the free space");
  }
}

}  // namespace onebit
