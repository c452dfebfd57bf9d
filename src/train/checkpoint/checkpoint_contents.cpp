#include "train/checkpoint/checkpoint_contents.hpp"

#include <cmath>
#include <sstream>

#include "base/error.hpp"

namespace onebit::train {

long whole_number(const ArrayReader& file, const std::string& path, const std::string& name) {
  const std::vector<double> values = file.reals(name);
  if (values.size() != 1 || !(values[0] >= 0 && values[0] <= 9007199254740992.0))
    throw InputError(path, "dataset '" + name + "' is not a whole number", "use another checkpoint");
  return static_cast<long>(values[0]);
}

void read_variance(const ArrayReader& file, const std::string& path, std::size_t begin, std::size_t count, float* v) {
  file.read("variance", {begin}, {count}, v);
  for (std::size_t i = 0; i < count; ++i)
    if (!(v[i] >= 0 && std::isfinite(v[i])))
      throw InputError(path, "element " + std::to_string(begin + i) + " of its variance is negative or not finite",
                       "name another checkpoint");
}

std::map<std::string, Tensor> saved_tensors(const ArrayReader& file, const std::string& path) {
  const std::vector<std::size_t> shape = file.stored_shape("parameters");
  const std::size_t length = shape.empty() ? 0 : shape.back();
  const InputError unusable(path, "dataset 'tensors' does not describe dataset 'parameters'", "use another checkpoint");
  std::map<std::string, Tensor> tensors;
  std::size_t offset = 0;
  std::istringstream lines(file.text("tensors"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Tensor tensor;
    words >> tensor.name;
    std::size_t left = length - offset;  // the product of the extents may not be greater
    for (std::size_t extent = 0; words >> extent; left /= extent) {
      if (extent == 0 || extent > left) throw unusable;
      tensor.shape.push_back(extent);
    }
    if (!words.eof() || tensor.shape.empty()) throw unusable;
    tensor.offset = offset;
    offset += tensor.size();
    if (!tensors.emplace(tensor.name, tensor).second) throw unusable;
  }
  if (offset != length) throw unusable;
  return tensors;
}

}  // namespace onebit::train
