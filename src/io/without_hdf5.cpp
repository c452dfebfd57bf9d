/// \file without_hdf5.cpp
/// In the place of hdf5.cpp in a build without parallel HDF5: no object of these classes is ever made. The program
/// refuses the keys that would make one earlier, where it can name them, but for the checkpoint that a signal asks for.

#include "io/hdf5.hpp"

#include "base/error.hpp"

namespace onebit {

bool has_hdf5() { return false; }

struct ArrayReader::Handle {};

ArrayReader::ArrayReader(const std::string& path) {
  throw InputError(path, "this build has no HDF5, which reads it", "build OneBit with parallel HDF5");
}
ArrayReader::~ArrayReader() = default;
bool ArrayReader::has(const std::string&) const { return {}; }
std::vector<std::size_t> ArrayReader::shape(const std::string&) const { return {}; }
std::vector<std::size_t> ArrayReader::stored_shape(const std::string&) const { return {}; }
bool ArrayReader::holds_reals(const std::string&) const { return {}; }
void ArrayReader::read(const std::string&, const std::vector<std::size_t>&, const std::vector<std::size_t>&,
                       float*) const {}
std::vector<double> ArrayReader::reals(const std::string&) const { return {}; }
std::vector<long long> ArrayReader::integers(const std::string&) const { return {}; }
std::vector<std::string> ArrayReader::texts(const std::string&) const { return {}; }
std::string ArrayReader::text(const std::string&) const { return {}; }
std::vector<std::string> ArrayReader::datasets() const { return {}; }

struct ArrayWriter::Handles {};

ArrayWriter::ArrayWriter(const Communicator& communicator, const std::string& path, std::size_t)
    : m_communicator(communicator) {
  throw AgreedError(ExitStatus::failed_run,
                    path + ": not written, because this build has no HDF5\n  remedy: build OneBit with parallel HDF5");
}
ArrayWriter::~ArrayWriter() = default;
void ArrayWriter::dataset(const std::string&, Type, const std::vector<std::size_t>&) {}
void ArrayWriter::write(const std::vector<std::size_t>&, const std::vector<std::size_t>&, const double*) {}
std::uint64_t ArrayWriter::place() const { return {}; }
void ArrayWriter::text(const std::string&, const std::string&) {}
void ArrayWriter::close() {}

}  // namespace onebit
