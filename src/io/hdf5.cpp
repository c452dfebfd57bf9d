/// \file hdf5.cpp
/// The error stack of the library is switched off; the messages here name the error in one sentence.

#include "io/hdf5.hpp"

#include <fcntl.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "base/error.hpp"
#include "base/system/activity.hpp"
#include "io/file.hpp"

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
  /// Closes it now. \returns false when that fails
  bool close() { return m_id < 0 || m_close(std::exchange(m_id, -1)) >= 0; }

private:
  hid_t m_id;
  herr_t (*m_close)(hid_t);
};

void silence_library() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

/// Why the library's last call failed.
struct LibraryError {
  std::string text;  ///< the library's innermost words
  int error = 0;     ///< an `errno`; 0 where the system did not fail
  bool of_lock = false;
};

LibraryError last_error() {
  LibraryError found;
  const auto look = [](unsigned, const H5E_error2_t* entry, void* to) -> herr_t {
    LibraryError& all = *static_cast<LibraryError*>(to);
    const std::string text = entry->desc != nullptr ? entry->desc : "";
    if (all.text.empty()) all.text = text;
    const std::size_t place = text.find("errno = ");
    if (place == std::string::npos || all.error != 0) return 0;
    all.error = std::atoi(text.c_str() + place + std::strlen("errno = "));
    all.of_lock = text.find("lock file") != std::string::npos;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, look, &found);
  return found;
}

/// The property with which a file is only read: without a lock, which some network file systems refuse. Files of OneBit
/// get their names when they are complete, so no lock is needed. HDF5_USE_FILE_LOCKING in the environment overrides it.
hid_t reads_without_lock() {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
#if H5_VERSION_GE(1, 12, 1) || (H5_VERSION_GE(1, 10, 7) && !H5_VERSION_GE(1, 12, 0))
  H5Pset_file_locking(access, false, true);
#endif
  return access;
}

}  // namespace

struct ArrayReader::Handle {
  Handle(const std::string& path)
      : access(reads_without_lock(), H5Pclose), file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access), H5Fclose) {}
  Id access, file;
};

namespace {

constexpr std::size_t too_many = std::numeric_limits<std::size_t>::max();

/// An existing dataset.
struct Dataset {
  Dataset(const std::string& path, hid_t file, const std::string& name)
      : id(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose),
        space(id.valid() ? H5Dget_space(id) : -1, H5Sclose),
        type(id.valid() ? H5Dget_type(id) : -1, H5Tclose) {
    if (space.valid() && H5Sget_simple_extent_ndims(space) >= 0) return;
    if (const LibraryError reason = last_error(); reason.error != 0) throw unreadable(path, reason.error);
    throw InputError(path, "there is no dataset '" + name + "' that can be read",
                     "see docs/reference/input.md and docs/guide/checkpoint.md for the datasets that this file must "
                     "have");
  }
  /// Reads all elements. \returns false when that fails
  bool read(hid_t memory_type, void* values) const {
    return H5Dread(id, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0;
  }
  std::vector<hsize_t> extents() const {
    std::vector<hsize_t> all(H5Sget_simple_extent_ndims(space));
    H5Sget_simple_extent_dims(space, all.data(), nullptr);
    return all;
  }
  /// Number of elements; `too_many` for more than `most`.
  std::size_t elements(std::size_t most) const {
    std::size_t product = 1;
    for (const hsize_t extent : extents()) {
      if (extent > 0 && product > most / extent) return too_many;
      product *= static_cast<std::size_t>(extent);
    }
    return product;
  }
  H5T_class_t kind() const { return H5Tget_class(type); }
  Id id, space, type;
};

/// What to throw after a dataset could not be read.
InputError unreadable_dataset(const std::string& path, const std::string& dataset, const std::string& wanted) {
  if (const LibraryError reason = last_error(); reason.error != 0) return unreadable(path, reason.error);
  return {path, "dataset '" + dataset + "' cannot be read as " + wanted + "; the file may be truncated",
          "check the file with h5dump, and write it again"};
}

}  // namespace

bool has_hdf5() { return true; }

ArrayReader::ArrayReader(const std::string& path) : m_path(path) {
  silence_library();
  const Descriptor descriptor(path, O_RDONLY | O_NONBLOCK);  // does not wait for the other end of a pipe
  struct stat status {};
  if (descriptor < 0 || ::fstat(descriptor, &status) != 0) throw unreadable(path, errno);
  if (S_ISDIR(status.st_mode)) throw unreadable(path, EISDIR);
  if (!S_ISREG(status.st_mode)) throw InputError(path, "this is not an ordinary file", "name a file");
  m_file = std::make_unique<Handle>(path);
  if (m_file->file.valid()) return;
  const LibraryError reason = last_error();
  if (reason.of_lock)
    throw InputError(path, std::string("the file cannot be locked: ") + std::strerror(reason.error),
                     "set HDF5_USE_FILE_LOCKING=FALSE in the environment: the file is only read");
  if (reason.error != 0) throw unreadable(path, reason.error);
  throw InputError(path, "this is not an HDF5 file, or it is truncated (" + excerpt(reason.text) + ")",
                   "compare it with where it came from, or write it again, e.g. with h5py");
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

std::vector<std::size_t> ArrayReader::stored_shape(const std::string& dataset) const {
  if (Dataset(m_path, m_file->file, dataset).elements(largest(1)) == too_many)
    throw InputError(m_path, "dataset '" + dataset + "' has more elements than the file has bytes",
                     "use another file; this one was not written by OneBit");
  return shape(dataset);
}

bool ArrayReader::holds_reals(const std::string& dataset) const {
  return Dataset(m_path, m_file->file, dataset).kind() == H5T_FLOAT;
}

void ArrayReader::read(const std::string& dataset, const std::vector<std::size_t>& offset,
                       const std::vector<std::size_t>& extent, float* values) const {
  const Dataset data(m_path, m_file->file, dataset);
  const std::vector<hsize_t> begin(offset.begin(), offset.end()), count(extent.begin(), extent.end());
  const std::vector<hsize_t> extents = data.extents();
  bool inside = extents.size() == begin.size() && extents.size() == count.size();
  for (std::size_t i = 0; inside && i < begin.size(); ++i) inside = begin[i] + count[i] <= extents[i];
  if (!inside || data.kind() != H5T_FLOAT) throw unreadable_dataset(m_path, dataset, "floating-point numbers");
  const Id memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose);
  H5Sselect_hyperslab(data.space, H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr);
  if (H5Dread(data.id, H5T_NATIVE_FLOAT, memory, data.space, H5P_DEFAULT, values) < 0)
    throw unreadable_dataset(m_path, dataset, "floating-point numbers");
}

std::vector<long long> ArrayReader::integers(const std::string& dataset) const {
  const Dataset data(m_path, m_file->file, dataset);
  const std::vector<hsize_t> extents = data.extents();
  const auto error = [&] { return unreadable_dataset(m_path, dataset, "a list of integers"); };
  if (extents.size() != 1 || data.elements(largest(1)) == too_many) throw error();
  if (data.kind() == H5T_ENUM) {  // h5py stores booleans as enumerations of one byte
    std::vector<signed char> bytes(extents[0]);
    if (H5Tget_size(data.type) != 1 || !data.read(data.type, bytes.data())) throw error();
    return {bytes.begin(), bytes.end()};
  }
  std::vector<long long> values(extents[0]);
  if (data.kind() != H5T_INTEGER || !data.read(H5T_NATIVE_LLONG, values.data())) throw error();
  return values;
}

std::vector<std::string> ArrayReader::texts(const std::string& dataset) const {
  const Dataset data(m_path, m_file->file, dataset);
  const std::vector<hsize_t> extents = data.extents();
  const auto error = [&] { return unreadable_dataset(m_path, dataset, "a list of texts"); };
  if (extents.size() != 1 || data.elements(largest(1)) == too_many || data.kind() != H5T_STRING) throw error();
  std::vector<std::string> values;
  if (H5Tis_variable_str(data.type) > 0) {
    std::vector<char*> pointers(extents[0], nullptr);
    if (!data.read(data.type, pointers.data())) throw error();
    for (const char* text : pointers) values.emplace_back(text ? text : "");
    H5Dvlen_reclaim(data.type, data.space, H5P_DEFAULT, pointers.data());
  } else {
    const std::size_t width = H5Tget_size(data.type);
    constexpr std::size_t longest = std::size_t{1} << 26;  // only a damaged or hostile file holds more
    if (width > longest || data.elements(longest / width) == too_many) throw error();
    std::string all(extents[0] * width, '\0');
    if (!data.read(data.type, all.data())) throw error();
    for (hsize_t i = 0; i < extents[0]; ++i) values.emplace_back(all.substr(i * width, width).c_str());
  }
  return values;
}

std::vector<double> ArrayReader::reals(const std::string& dataset) const {
  const Dataset data(m_path, m_file->file, dataset);
  const auto error = [&] { return unreadable_dataset(m_path, dataset, "floating-point numbers"); };
  const std::size_t length = data.elements(largest(sizeof(float)));
  if (data.kind() != H5T_FLOAT || length == too_many) throw error();
  std::vector<double> values(length);
  if (!data.read(H5T_NATIVE_DOUBLE, values.data())) throw error();
  return values;
}

std::string ArrayReader::text(const std::string& dataset) const {
  const Dataset data(m_path, m_file->file, dataset);
  const auto error = [&] { return unreadable_dataset(m_path, dataset, "a text"); };
  const std::size_t width = H5Tget_size(data.type);
  if (data.kind() != H5T_STRING || H5Tis_variable_str(data.type) > 0 || data.elements(1) != 1 || width > largest(1))
    throw error();
  std::string value(width, '\0');
  if (!data.read(data.type, value.data())) throw error();
  value.erase(value.find_last_not_of('\0') + 1);
  return value;
}

std::vector<std::string> ArrayReader::datasets() const {
  std::vector<std::string> names;
  const auto visit = [](hid_t group, const char* name, const H5L_info_t* link, void* found) -> herr_t {
    if (link->type != H5L_TYPE_HARD) return 0;
    const Id object(H5Oopen(group, name, H5P_DEFAULT), H5Oclose);
    if (object.valid() && H5Iget_type(object) == H5I_DATASET)
      static_cast<std::vector<std::string>*>(found)->emplace_back(name);
    return 0;
  };
  H5Lvisit(m_file->file, H5_INDEX_NAME, H5_ITER_INC, visit, &names);
  return names;
}

std::size_t ArrayReader::largest(std::size_t element_bytes) const {
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::file_size(m_path, unknown);
  return unknown ? 0 : static_cast<std::size_t>(bytes) / element_bytes;
}

namespace {

/// A file that keeps room on the disk for the metadata of `path`: HDF5 1.10 crashes when it cannot write them.
std::string ballast(const std::string& path) { return path + ".reserve"; }

constexpr off_t metadata_bytes = 1 << 16;

/// \throws RunError that names the file `written`, for which room is kept
void reserve(const std::string& path, const std::string& written) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  const int error = file >= 0 ? ::posix_fallocate(file, 0, metadata_bytes) : 0;
  if (file >= 0 && error == 0) return;
  const int reason = error != 0 ? error : errno;
  std::remove(path.c_str());
  throw unwritable(written, reason);
}

/// The least limit on the sizes of files among the ranks (RLIMIT_FSIZE), in bytes. Collective.
double size_limit(const Communicator& communicator) {
  struct rlimit limit {};
  const bool is_limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  const double mine = is_limited ? static_cast<double>(limit.rlim_cur) : std::numeric_limits<double>::infinity();
  const std::vector<double> all = communicator.gather(&mine, 1);
  return *std::min_element(all.begin(), all.end());
}

}  // namespace

struct ArrayWriter::Handles {
  Handles(const Communicator& communicator, const std::string& path, std::size_t user_block)
      : access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose),
        creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose),
        most_bytes(size_limit(communicator) - metadata_bytes) {
    const Activity activity("OneBit::io::hdf5", waits_for_ranks);
    H5Pset_fapl_mpio(access, communicator.get(), MPI_INFO_NULL);
    if (user_block > 0) H5Pset_userblock(creation, user_block);
    file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access);
  }

  /// Closes the open dataset and creates another one, without fill values.
  void make(const std::string& name, hid_t type, hid_t space) {
    const Activity activity("OneBit::io::hdf5", waits_for_ranks);
    close_dataset();
    // The library crashes at the end of the program if it could not give a file its size.
    const double bytes =
        static_cast<double>(H5Tget_size(type)) * static_cast<double>(H5Sget_simple_extent_npoints(space));
    planned_bytes += bytes;
    if (planned_bytes > most_bytes) return fail(EFBIG);
    const Id links(H5Pcreate(H5P_LINK_CREATE), H5Pclose), properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(links, 1);
    H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
    H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
    errno = 0;
    data = H5Dcreate2(file, name.c_str(), type, space, links, properties, H5P_DEFAULT);
    if (data < 0) fail(errno);
  }
  void close_dataset() {
    errno = 0;
    if (data >= 0 && H5Dclose(data) < 0) fail(errno);
    data = -1;
  }
  /// \param error an `errno`; the first one counts
  void fail(int error) {
    if (reason == 0) reason = error;
    good = false;
  }

  Id access, creation;
  hid_t file = -1, data = -1;
  bool good = true;          ///< on this rank
  int reason = 0;            ///< an `errno`, where it is not and the system said why
  double most_bytes;         ///< of all datasets
  double planned_bytes = 0;  ///< of the datasets so far
};

ArrayWriter::ArrayWriter(const Communicator& communicator, const std::string& path, std::size_t user_block)
    : m_communicator(communicator), m_path(path) {
  silence_library();
  communicator.on_root([&] { reserve(ballast(path), path); });
  errno = 0;
  m_handles = std::make_unique<Handles>(communicator, path, user_block);
  communicator.collectively([&] {
    if (m_handles->file < 0) throw unwritable(path, errno);
  });
}

// A file that was not closed stays open: closing is collective, and the other ranks may not get here.
ArrayWriter::~ArrayWriter() = default;

void ArrayWriter::dataset(const std::string& name, Type type, const std::vector<std::size_t>& shape) {
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Id space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose);
  m_handles->make(name, type == Type::real32 ? H5T_IEEE_F32LE : H5T_IEEE_F64LE, space);
}

void ArrayWriter::write(const std::vector<std::size_t>& offset, const std::vector<std::size_t>& extent,
                        const double* values) {
  if (m_handles->data < 0) return;
  const std::vector<hsize_t> begin(offset.begin(), offset.end()), count(extent.begin(), extent.end());
  const Id space(H5Dget_space(m_handles->data), H5Sclose);
  const Id memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr), H5Sclose);
  const bool selected = H5Sselect_hyperslab(space, H5S_SELECT_SET, begin.data(), nullptr, count.data(), nullptr) >= 0;
  errno = 0;
  const bool written = H5Dwrite(m_handles->data, H5T_NATIVE_DOUBLE, memory, space, H5P_DEFAULT, values) >= 0;
  if (!selected || !written) m_handles->fail(errno);
}

std::uint64_t ArrayWriter::place() const {
  const haddr_t place = m_handles->data >= 0 ? H5Dget_offset(m_handles->data) : HADDR_UNDEF;
  if (place == HADDR_UNDEF) m_handles->fail(0);
  return place;
}

void ArrayWriter::text(const std::string& name, const std::string& text) {
  const bool root = m_communicator.rank() == 0;
  const std::uint64_t length = m_communicator.sum(root ? static_cast<std::uint64_t>(text.size()) : 0);
  const Id space(H5Screate(H5S_SCALAR), H5Sclose), type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, length > 0 ? length : 1);
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  m_handles->make(name, type, space);
  errno = 0;
  if (root && m_handles->data >= 0 && H5Dwrite(m_handles->data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.c_str()) < 0)
    m_handles->fail(errno);
}

void ArrayWriter::close() {
  const Activity activity("OneBit::io::hdf5", waits_for_ranks);
  m_handles->close_dataset();
  const bool root = m_communicator.rank() == 0;
  const bool failed = m_communicator.sum(std::uint64_t{!m_handles->good}) > 0;
  if (failed && root) {
    // Frees room on the disk for the metadata, without which the library crashes.
    std::error_code ignored;
    std::filesystem::resize_file(m_path, 0, ignored);
    std::filesystem::remove(ballast(m_path), ignored);
  }
  m_communicator.barrier();
  errno = 0;
  if (H5Fclose(m_handles->file) < 0) m_handles->fail(errno);
  if (!failed && root) std::remove(ballast(m_path).c_str());
  m_communicator.collectively([&] {
    if (!m_handles->good || failed) throw unwritable(m_path, m_handles->reason);
  });
}

}  // namespace onebit
