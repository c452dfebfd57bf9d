#include "train/checkpoint/variance_change.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "base/error.hpp"
#include "base/quantile.hpp"
#include "io/hdf5.hpp"
#include "io/sealed/seal.hpp"
#include "train/checkpoint/checkpoint_contents.hpp"

namespace onebit::train {
namespace {

/// A checkpoint whose replicas share one variance.
class VarianceFile {
public:
  /// \param path of a verified checkpoint
  explicit VarianceFile(const std::string& path) : m_path(path), m_file(path) {
    tensors = saved_tensors(m_file, path);
    std::size_t length = 0;
    for (const auto& [name, tensor] : tensors) length += tensor.size();
    if (!m_file.has("variance") || m_file.shape("variance") != std::vector<std::size_t>{length})
      throw InputError(path, "it has no variance that all ranks share",
                       "name checkpoints of adam, or of another algorithm with one variance");
    step = whole_number(m_file, path, "step");
  }

  std::vector<float> variance(const Tensor& tensor) const {
    std::vector<float> values(tensor.size());
    read_variance(m_file, m_path, tensor.offset, values.size(), values.data());
    return values;
  }

  std::map<std::string, Tensor> tensors;
  long step;

private:
  std::string m_path;
  ArrayReader m_file;
};

void check_same_model(const VarianceFile& before, const VarianceFile& after, const std::string& path) {
  const auto same = [](const auto& one, const auto& other) {
    return one.first == other.first && one.second.shape == other.second.shape;
  };
  if (before.tensors.size() != after.tensors.size() ||
      !std::equal(before.tensors.begin(), before.tensors.end(), after.tensors.begin(), same))
    throw InputError(path, "its model has other tensors than the first checkpoint's",
                     "name two checkpoints of one run");
}

/// A line of the table. \param later_l1 ‖v'‖₁ of all tensors
std::string line_of(const VarianceChange& change, double later_l1) {
  char numbers[96];
  std::snprintf(numbers, sizeof numbers, "%12zu %8.1f %% %9.3f %9.3f %9.3f %9.3f  ", change.elements,
                100 * change.later_l1 / later_l1, change.ratio(), change.least, change.median, change.greatest);
  return numbers + change.name + "\n";
}

}  // namespace

double VarianceChange::stability() const { return std::min(ratio(), 1 / ratio()); }

VarianceChange variance_change(const std::string& name, const std::vector<float>& before,
                               const std::vector<float>& after) {
  VarianceChange change{name, before.size()};
  std::vector<double> factors;
  for (std::size_t i = 0; i < before.size(); ++i) {
    change.l1 += before[i];
    change.later_l1 += after[i];
    if (before[i] > 0) factors.push_back(std::sqrt(after[i] / before[i]));
  }
  if (factors.empty()) return change;
  std::sort(factors.begin(), factors.end());
  change.least = quantile(factors, 0.05);
  change.median = quantile(factors, 0.5);
  change.greatest = quantile(factors, 0.95);
  return change;
}

std::string describe_variance_change(const std::string& earlier, const std::string& later) {
  for (const std::string& path : {earlier, later}) verify_seal(path);
  const VarianceFile before(earlier), after(later);
  check_same_model(before, after, later);
  std::map<std::size_t, Tensor> in_order;  // by offset
  for (const auto& [name, tensor] : before.tensors) in_order.emplace(tensor.offset, tensor);

  VarianceChange all;
  std::vector<VarianceChange> changes;
  for (const auto& [offset, tensor] : in_order) {
    const Tensor& same = after.tensors.at(tensor.name);
    VarianceChange change = variance_change(tensor.name, before.variance(tensor), after.variance(same));
    all.l1 += change.l1;
    all.later_l1 += change.later_l1;
    if (change.l1 > 0 || change.later_l1 > 0) changes.push_back(std::move(change));
  }
  if (changes.empty()) throw InputError(later, "no gradient has reached its variance", "name later checkpoints");

  char title[192];
  std::snprintf(title, sizeof title, "v of step %ld beside v of step %ld\n%12s %10s %9s %9s %9s %9s  %s\n", after.step,
                before.step, "elements", "of |v|_1", "r", "5 %", "50 %", "95 %", "tensor");
  std::string text = title;
  for (const VarianceChange& change : changes) text += line_of(change, all.later_l1);

  const auto less_settled = [](const VarianceChange& one, const VarianceChange& other) {
    return one.stability() < other.stability();
  };
  std::sort(changes.begin(), changes.end(), less_settled);
  char summary[160];
  std::snprintf(summary, sizeof summary,
                "min(r, 1/r): %.3f of all elements together, %.3f of the median tensor, %.3f of ", all.stability(),
                changes[changes.size() / 2].stability(), changes.front().stability());
  return text + summary + changes.front().name + "\n";
}

}  // namespace onebit::train
