/// \file make_replay.cpp
/// Writes gradients for the workload `replay`, right and broken ones, so that tests need no HDF5 of their own.
///
///   make_replay FILE STEPS RANKS PARAMETERS SEED [VARIANT]
///
/// Element i of a stream of numbers, by the finaliser of SplitMix64 (Steele, Lea and Flood 2014), modulo 2^64:
///   z = SEED * 0x9E3779B97F4A7C15 + i
///   z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;  z = (z ^ z >> 27) * 0x94D049BB133111EB;  z = z ^ z >> 31
///   value(i) = (z >> 40) / 2^23 - 1,  in [-1, 1) and exact in single precision
/// `gradients` (s, r, p) is value((s * RANKS + r) * PARAMETERS + p), s from 0; `initial` (p) is value(2^62 + p). The
/// tensors are "first", a third of the parameters rounded up, which decays, and "second", the rest, which does not.

#include <hdf5.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace {

const char* const usage =
    "usage: make_replay FILE STEPS RANKS PARAMETERS SEED [VARIANT]\n"
    "right variants:\n"
    "  complete         gradients, initial and tensor table (the default)\n"
    "  gradients        no initial, no tensor table\n"
    "  double           gradients in double precision\n"
    "  checksums        gradients in one chunk a step and rank, each with a checksum\n"
    "broken variants of 'complete':\n"
    "  other_name       gradients are called 'gradient'\n"
    "  group            'gradients' is a group\n"
    "  scalar           gradients are one number\n"
    "  two_dimensions   gradients have the shape (steps, parameters)\n"
    "  no_parameters    gradients have the shape (steps, ranks, 0)\n"
    "  integers         gradients are integers\n"
    "  huge             gradients for 10^13 parameters, of which none is stored; nothing else\n"
    "  nan              the last rank's gradient of step 2 holds a NaN in 'second'\n"
    "  large            the same with 1e20, whose square is infinite in float\n"
    "  initial_length   initial is one too long\n"
    "  initial_integers initial holds integers\n"
    "  table_sum        the tensors' sizes add up to one too many\n"
    "  table_negative   a size is negative\n"
    "  table_lengths    a name is missing\n"
    "  table_reals      sizes are reals\n"
    "  table_names      names are integers\n"
    "  table_incomplete there are no sizes\n";

[[noreturn]] void fail(const char* message) {
  std::fprintf(stderr, "make_replay: %s\n", message);
  std::exit(2);
}

/// The result of an HDF5 call that must succeed.
template <class Result>
Result checked(Result result) {
  if (result < 0) fail("HDF5 failed, see above");
  return result;
}

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return z ^ z >> 31;
}

float value(std::uint64_t seed, std::uint64_t i) {
  return static_cast<float>(mix(seed * 0x9E3779B97F4A7C15ull + i) >> 40) * 0x1p-23f - 1.0f;
}

std::vector<float> values(std::uint64_t seed, std::uint64_t first, std::size_t count) {
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = value(seed, first + i);
  return all;
}

void write(hid_t file, const std::string& name, const std::vector<hsize_t>& extents, hid_t stored, hid_t given,
           const void* data, hid_t creation = H5P_DEFAULT) {
  const int dimensions = static_cast<int>(extents.size());
  const hid_t space =
      checked(extents.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(dimensions, extents.data(), nullptr));
  const hid_t set = checked(H5Dcreate2(file, name.c_str(), stored, space, H5P_DEFAULT, creation, H5P_DEFAULT));
  if (data) checked(H5Dwrite(set, given, H5S_ALL, H5S_ALL, H5P_DEFAULT, data));
  checked(H5Dclose(set));
  checked(H5Sclose(space));
}

void write_reals(hid_t file, const std::string& name, const std::vector<hsize_t>& extents,
                 const std::vector<float>& data, hid_t stored = H5T_IEEE_F32LE, hid_t creation = H5P_DEFAULT) {
  write(file, name, extents, stored, H5T_NATIVE_FLOAT, data.data(), creation);
}

void write_integers(hid_t file, const std::string& name, const std::vector<long long>& data) {
  write(file, name, {data.size()}, H5T_STD_I64LE, H5T_NATIVE_LLONG, data.data());
}

void write_texts(hid_t file, const std::string& name, const std::vector<const char*>& data) {
  const hid_t type = checked(H5Tcopy(H5T_C_S1));
  checked(H5Tset_size(type, H5T_VARIABLE));
  write(file, name, {data.size()}, type, type, data.data());
  checked(H5Tclose(type));
}

std::uint64_t number(const char* text) {
  char* end = nullptr;
  const unsigned long long read = std::strtoull(text, &end, 10);
  if (*text == '\0' || *end != '\0') fail(usage);
  return read;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6 || argc > 7) fail(usage);
  const std::uint64_t steps = number(argv[2]), ranks = number(argv[3]), parameters = number(argv[4]),
                      seed = number(argv[5]);
  const std::string variant = argc > 6 ? argv[6] : "complete";
  if (parameters < 2) fail("two tensors need at least 2 parameters");
  if (std::string(usage).find("\n  " + variant + " ") == std::string::npos) fail(usage);

  const hid_t file = checked(H5Fcreate(argv[1], H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  std::vector<float> gradients = values(seed, 0, steps * ranks * parameters);
  const std::vector<long long> rounded(gradients.begin(), gradients.end());
  if (variant == "nan" || variant == "large")
    gradients.at((2 * ranks - 1) * parameters + parameters - 1) =
        variant == "nan" ? std::numeric_limits<float>::quiet_NaN() : 1e20f;
  const std::vector<hsize_t> extents = {steps, ranks, parameters}, chunk = {1, 1, parameters};
  const hid_t chunks = checked(H5Pcreate(H5P_DATASET_CREATE));
  checked(H5Pset_chunk(chunks, 3, chunk.data()));

  if (variant == "other_name") {
    write_reals(file, "gradient", extents, gradients);
  } else if (variant == "group") {
    checked(H5Gclose(checked(H5Gcreate2(file, "gradients", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT))));
  } else if (variant == "scalar") {
    write_reals(file, "gradients", {}, gradients);
  } else if (variant == "two_dimensions") {
    write_reals(file, "gradients", {steps, parameters}, gradients);
  } else if (variant == "no_parameters") {
    write(file, "gradients", {steps, ranks, 0}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, nullptr);
  } else if (variant == "integers") {
    write(file, "gradients", extents, H5T_STD_I64LE, H5T_NATIVE_LLONG, rounded.data());
  } else if (variant == "huge") {
    write(file, "gradients", {steps, ranks, 10000000000000}, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, nullptr, chunks);
  } else if (variant == "double") {
    write_reals(file, "gradients", extents, gradients, H5T_IEEE_F64LE);
  } else if (variant == "checksums") {
    checked(H5Pset_fletcher32(chunks));
    write_reals(file, "gradients", extents, gradients, H5T_IEEE_F32LE, chunks);
  } else {
    write_reals(file, "gradients", extents, gradients);
  }
  checked(H5Pclose(chunks));

  if (variant != "gradients" && variant != "huge") {
    const std::uint64_t length = parameters + (variant == "initial_length");
    const std::vector<float> initial = values(seed, std::uint64_t{1} << 62, length);
    if (variant == "initial_integers")
      write_integers(file, "initial", {initial.begin(), initial.end()});
    else
      write_reals(file, "initial", {length}, initial);

    const auto first = static_cast<long long>((parameters + 2) / 3);
    std::vector<long long> sizes = {first, static_cast<long long>(parameters) - first};
    if (variant == "table_sum") ++sizes[1];
    if (variant == "table_negative") sizes[0] = -sizes[0];
    checked(H5Gclose(checked(H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT))));
    if (variant == "table_names")
      write_integers(file, "tensors/names", {1, 2});
    else if (variant == "table_lengths")
      write_texts(file, "tensors/names", {"first"});
    else
      write_texts(file, "tensors/names", {"first", "second"});
    if (variant == "table_reals")
      write_reals(file, "tensors/sizes", {2}, {static_cast<float>(sizes[0]), static_cast<float>(sizes[1])});
    else if (variant != "table_incomplete")
      write_integers(file, "tensors/sizes", sizes);
    write_integers(file, "tensors/decays", {1, 0});
  }
  checked(H5Fclose(file));
  return 0;
}
