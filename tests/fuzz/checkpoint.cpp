/// \file checkpoint.cpp
/// Fuzzes the checkpoint reader: either with any bytes as a file, which the seal keeps from HDF5, or with a sealed HDF5
/// file whose datasets are missing, of other types, shapes (as large as HDF5 can say) and contents than a run writes.

#include "train/checkpoint/checkpoint.hpp"

#include <fuzzer/FuzzedDataProvider.h>
#include <hdf5.h>

#include <memory>
#include <vector>

#include "fuzz.hpp"
#include "io/sealed/seal.hpp"
#include "optim/archive.hpp"
#include "train/checkpoint/initial_parameters.hpp"
#include "train/checkpoint/variance_change.hpp"

namespace {

using namespace onebit;
using Exec = Kokkos::Serial;

constexpr std::size_t parameters = 5;

/// An algorithm with one of each kind of state.
class Stateful final : public optim::Algorithm<Exec> {
public:
  optim::StepState step(const Exec&, const Vector<Exec, float>&, const Vector<Exec, float>&, const optim::StepContext&,
                        PhaseTimes&) override {
    return {};
  }
  void state(optim::Archive<Exec>& archive) override {
    archive.vector("momentum", m_momentum);
    archive.number("state/compresses", m_compresses);
    archive.number("state/next_average", m_next);
    archive.numbers("state/variance_norms", m_norms);
    if (m_compresses) archive.part("worker_residual", m_residual, {1, 4, 1, 2});
  }

private:
  Vector<Exec, float> m_momentum{"momentum", parameters}, m_residual{"residual", 3};
  bool m_compresses = false;
  long m_next = 0;
  std::vector<double> m_norms;
};

/// Writes one dataset: as a run does where `bytes` say so, else in any way.
class HostileFile {
public:
  HostileFile(const std::string& path, FuzzedDataProvider& bytes) : m_bytes(bytes) {
    const hid_t properties = H5Pcreate(H5P_FILE_CREATE);
    H5Pset_userblock(properties, seal_bytes);
    m_file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, properties, H5P_DEFAULT);
    H5Pclose(properties);
  }
  ~HostileFile() { H5Fclose(m_file); }

  void reals(const std::string& name, std::vector<hsize_t> shape, const std::vector<double>& values) {
    if (is_hostile()) return hostile(name);
    make(name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, shape, values.data());
  }
  void text(const std::string& name, const std::string& text) {
    if (is_hostile()) return hostile(name);
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, text.size());
    make(name, type, type, {}, text.data());
    H5Tclose(type);
  }

private:
  bool is_hostile() { return m_bytes.ConsumeIntegralInRange(0, 7) == 7; }

  void hostile(const std::string& name) {
    static constexpr hsize_t extents[] = {0, 1, 2, 3, 4, 5, 6, 44, 1u << 20, hsize_t{1} << 40, hsize_t{1} << 62};
    if (m_bytes.ConsumeBool()) return;  // missing
    std::vector<hsize_t> shape(m_bytes.ConsumeIntegralInRange(0, 3));
    hsize_t elements = 1;
    for (hsize_t& extent : shape) elements *= extent = m_bytes.PickValueInArray(extents);
    const auto contents = m_bytes.ConsumeBytes<unsigned char>(m_bytes.ConsumeIntegralInRange(0, 400));
    hid_t type = -1;
    switch (m_bytes.ConsumeIntegralInRange(0, 4)) {
      case 0:
        type = H5Tcopy(H5T_IEEE_F64LE);
        break;
      case 1:
        type = H5Tcopy(H5T_IEEE_F32LE);
        break;
      case 2:
        type = H5Tcopy(H5T_STD_I64LE);
        break;
      case 3:  // a text of any length
        type = H5Tcopy(H5T_C_S1);
        H5Tset_size(type, m_bytes.PickValueInArray<std::size_t>({1, 7, 400, H5T_VARIABLE}));
        break;
      case 4:  // a structure
        type = H5Tcreate(H5T_COMPOUND, 16);
        H5Tinsert(type, "a", 8, H5T_IEEE_F64LE);
        break;
    }
    // HDF5 gives storage to a dataset when it is written, so an enormous one costs nothing.
    const std::size_t needed = elements * H5Tget_size(type);
    const bool written = H5Tis_variable_str(type) == 0 && elements <= 400 && contents.size() >= needed;
    make(name, type, type, shape, written ? contents.data() : nullptr);
    H5Tclose(type);
  }

  void make(const std::string& name, hid_t type, hid_t memory, const std::vector<hsize_t>& shape, const void* values) {
    const hid_t links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_create_intermediate_group(links, 1);
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t data = H5Dcreate2(m_file, name.c_str(), type, space, links, H5P_DEFAULT, H5P_DEFAULT);
    if (data >= 0) {
      if (values != nullptr) H5Dwrite(data, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
      H5Dclose(data);
    }
    H5Sclose(space);
    H5Pclose(links);
  }

  FuzzedDataProvider& m_bytes;
  hid_t m_file;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static int argc = 0;
  static char** argv = nullptr;
  static const MpiSession mpi(argc, argv);
  static const Communicator world;
  static const KokkosSession kokkos(1, -1);
  static const bool silent = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  const Exec exec;
  config::Input input;
  input.run.output = fuzz::scratch();
  input.checkpoint.restart = fuzz::scratch() / "checkpoint.h5";
  const std::string& path = input.checkpoint.restart;

  FuzzedDataProvider bytes(data, size);
  if (!silent || bytes.ConsumeIntegralInRange(0, 7) == 0) {
    fuzz::write_file(path, bytes.ConsumeRemainingBytesAsString());
  } else {
    {
      HostileFile file(path, bytes);
      file.reals("ranks", {1}, {2});
      file.text("input", config::resolved(input));
      file.text("steps.csv", "step,phase\n");
      file.text("build", "fuzz");
      file.reals("step", {1}, {3});
      for (const char* name : {"compressed", "synchronised", "variance_l1", "variance_ratio", "worker_residual_l2",
                               "server_residual_l2", "frozen_at"})
        file.reals(std::string("last/") + name, {1}, {1});
      file.reals("parameters", {parameters}, {1, 2, 3, 4, 5});
      file.reals("momentum", {parameters}, {1, 2, 3, 4, 5});
      file.reals("variance", {parameters}, {1, 2, 3, 4, 5});
      file.reals("state/compresses", {1}, {1});
      file.reals("state/next_average", {1}, {4});
      file.reals("state/variance_norms", {3}, {1, 2, 3});
      file.reals("worker_residual", {2, parameters}, std::vector<double>(2 * parameters, 0.5));
      constexpr hsize_t sums = 40;
      file.reals("results/sums", {2, sums}, std::vector<double>(2 * sums, 1.0));
      file.text("tensors", "embeddings.position.weight 2 2\nhead.bias 1\n");
    }
    write_seal(path, checksum_rest(path, {}));
  }

  const Vector<Exec, float> x("x", parameters);
  fuzz::refuses_or_reads([&] { train::describe_checkpoint(path); });
  fuzz::refuses_or_reads([&] { train::describe_variance_change(path, path); });
  TensorTable tensors;
  tensors.add("embeddings.position.weight", {2, 2}, true);
  tensors.add("classifier.bias", {1}, false);
  fuzz::refuses_or_reads([&] { train::read_parameters(exec, path, tensors, x); });
  fuzz::refuses_or_reads([&] {
    const train::Checkpoints checkpoints(input, world);
    Stateful algorithm;
    train::Results results(world, input.run.output);
    train::Run<Exec> run{input, tensors, x, algorithm, results};
    checkpoints.restore(exec, run);
  });
  return 0;
}
