#pragma once
/// \file nn_fixture.hpp
/// What PyTorch computed of a small network (tests/reference/make_fixtures.py, make_image_fixtures.py).

#include <string>
#include <vector>

#include "../source_directory.hpp"
#include "base/tensor_table.hpp"
#include "io/hdf5.hpp"
#include "nn_support.hpp"

namespace onebit::test {

/// A file of fixtures.
class Fixture {
public:
  explicit Fixture(const std::string& name)
      : m_file(source_directory() + "/tests/reference/fixtures/" + name + ".h5") {}

  std::vector<float> reals(const std::string& dataset) const {
    const std::vector<std::size_t> shape = m_file.shape(dataset);
    std::size_t size = 1;
    for (const std::size_t extent : shape) size *= extent;
    std::vector<float> values(size);
    m_file.read(dataset, std::vector<std::size_t>(shape.size(), 0), shape, values.data());
    return values;
  }
  std::vector<int> integers(const std::string& dataset) const {
    const std::vector<long long> values = m_file.integers(dataset);
    return {values.begin(), values.end()};
  }
  /// All parameters of the table, flat.
  std::vector<float> parameters(const TensorTable& table) const {
    std::vector<float> x;
    for (const Tensor& tensor : table.tensors()) {
      const std::vector<float> values = reals("parameters/" + tensor.name);
      EXPECT_EQ(values.size(), tensor.size()) << tensor.name;
      x.insert(x.end(), values.begin(), values.end());
    }
    return x;
  }
  /// Each tensor's part of a flat gradient is within `tolerance`, relative to its norm.
  void expect_gradients(const TensorTable& table, const std::vector<float>& gradient, double tolerance) const {
    for (const Tensor& tensor : table.tensors()) {
      const auto begin = gradient.begin() + tensor.offset;
      const std::vector<float> part(begin, begin + tensor.size());
      EXPECT_LE(relative_error(part, reals("gradients/" + tensor.name)), tolerance) << tensor.name;
    }
  }

private:
  ArrayReader m_file;
};

}  // namespace onebit::test
