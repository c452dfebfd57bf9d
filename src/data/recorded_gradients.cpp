#include "data/recorded_gradients.hpp"

#include <vector>

#include "base/error.hpp"

namespace onebit::data {

RecordedGradients::RecordedGradients(const std::string& path, std::size_t ranks, std::size_t steps)
    : m_path(path), m_file(path) {
  const std::vector<std::size_t> shape = m_file.shape("gradients");
  if (shape.size() != 3 || shape[2] == 0)
    throw InputError(m_path, "dataset 'gradients' does not have the shape (steps, ranks, parameters)", "write it so");
  const std::string recorded = std::to_string(shape[1]);
  if (shape[1] != ranks)
    throw InputError(m_path, "dataset 'gradients' is for " + recorded + " ranks, but " + std::to_string(ranks) + " run",
                     "run with " + recorded + " ranks");
  if (shape[0] < steps)
    throw InputError(
        m_path,
        "dataset 'gradients' holds " + std::to_string(shape[0]) + " steps, but train.steps is " + std::to_string(steps),
        "lower train.steps");
  check_reals("gradients");
  m_parameters = shape[2];
  if (!m_file.has("initial")) return;
  if (m_file.shape("initial") != std::vector<std::size_t>{m_parameters})
    throw InputError(m_path, "dataset 'initial' does not have the shape (parameters)", "write it so, or leave it out");
  check_reals("initial");
}

void RecordedGradients::check_reals(const std::string& dataset) const {
  if (!m_file.holds_reals(dataset))
    throw InputError(m_path, "dataset '" + dataset + "' does not hold floating-point numbers",
                     "write it as float or double");
}

TensorTable RecordedGradients::tensors() const {
  TensorTable table;
  if (!m_file.has("tensors/names")) {
    table.add("parameters", {m_parameters}, true);
    return table;
  }
  const std::vector<std::size_t> shape = m_file.shape("tensors/names");
  bool consistent = shape.size() == 1 && shape[0] <= m_parameters && m_file.shape("tensors/sizes") == shape &&
                    m_file.shape("tensors/decays") == shape;
  if (consistent) {
    const auto names = m_file.texts("tensors/names");
    const auto sizes = m_file.integers("tensors/sizes"), decays = m_file.integers("tensors/decays");
    for (std::size_t i = 0; consistent && i < names.size(); ++i) {
      consistent = sizes[i] > 0 && static_cast<unsigned long long>(sizes[i]) <= m_parameters - table.size();
      if (consistent) table.add(names[i], {static_cast<std::size_t>(sizes[i])}, decays[i] != 0);
    }
  }
  if (!consistent || table.size() != m_parameters)
    throw InputError(m_path, "the tensor table does not add up to the " + std::to_string(m_parameters) + " parameters",
                     "give tensors/names, sizes and decays one entry a tensor, sizes > 0 that sum to the parameters");
  return table;
}

void RecordedGradients::read_initial(float* x) const {
  if (m_file.has("initial")) m_file.read("initial", {0}, {m_parameters}, x);
}

void RecordedGradients::read(std::size_t step, std::size_t rank, float* g) const {
  m_file.read("gradients", {step - 1, rank, 0}, {1, 1, m_parameters}, g);
}

}  // namespace onebit::data
