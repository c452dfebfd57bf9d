#pragma once
/// \file initial_variance.hpp
/// `freeze.from`: a run that starts with the variance of an earlier one.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "io/hdf5.hpp"
#include "io/sealed/seal.hpp"
#include "optim/algorithm.hpp"
#include "train/checkpoint/checkpoint_contents.hpp"

namespace onebit::train {

/// Updates that made the variance of a checkpoint since it was 0; infinite where the file does not say. If the earlier
/// run had another β2, they are the t for which β2ᵗ is the weight that its start has left.
inline double steps_of_variance(const ArrayReader& file, const std::string& path, double beta2) {
  constexpr double unknown = std::numeric_limits<double>::infinity();
  if (!file.has("state/variance_updates") || !file.has("input")) return unknown;
  const auto number = [&](const std::string& name) {
    const std::vector<double> values = file.has(name) ? file.reals(name) : std::vector<double>{0};
    if (values.size() != 1 || !(values[0] >= 0))
      throw InputError(path, "dataset '" + name + "' is not a number of steps", "name another checkpoint");
    return values[0];
  };
  const double steps = number("state/variance_updates") + number("state/earlier_steps");
  const double earlier_beta2 = config::parse(file.text("input"), path + ", its input", {}).optimizer.beta2;
  if (earlier_beta2 == beta2 || steps == 0) return steps;
  return beta2 > 0 && earlier_beta2 > 0 ? steps * std::log(earlier_beta2) / std::log(beta2) : unknown;
}

/// Restores the variance and its steps, and leaves all other state alone.
template <class Exec>
class VarianceRestorer final : public optim::Archive<Exec> {
public:
  /// \param length d
  VarianceRestorer(const Exec& exec, const std::string& path, double beta2, std::size_t length)
      : optim::Archive<Exec>(exec), m_path(path), m_beta2(beta2), m_length(length), m_file(path) {}

  bool restores() const override { return true; }
  const std::string& file() const override { return m_path; }

  void numbers(const std::string& name, std::vector<double>& values, bool) override {
    if (name == "state/earlier_steps") values = {steps_of_variance(m_file, m_path, m_beta2)};
  }

  void vector(const std::string& name, const Vector<Exec, float>& values, bool) override {
    part(name, values, {0, m_length});
  }

  void part(const std::string& name, const Vector<Exec, float>& values, optim::Part part) override {
    if (name != "variance") return;
    if (!m_file.has(name) || m_file.shape(name) != std::vector<std::size_t>{m_length})
      throw InputError(m_path, "there is no variance of " + std::to_string(m_length) + " parameters in it",
                       "name a checkpoint that a run of the same model with adam or onebit_adam left");
    const auto host = Kokkos::create_mirror_view(values);
    read_variance(m_file, m_path, part.begin, part.end - part.begin, host.data());
    Kokkos::deep_copy(values, host);
  }

private:
  std::string m_path;
  double m_beta2;
  std::size_t m_length;
  ArrayReader m_file;
};

/// Restores the variance of the checkpoint that `freeze.from` names, if it names one, and the number of steps that this
/// variance is the average of. All other state of the algorithm stays as it is.
/// \throws Error, with the place of the key, for a file without a variance of this model
template <class Exec>
void read_initial_variance(const Exec& exec, const config::Input& input, std::size_t length,
                           optim::Algorithm<Exec>& algorithm) {
  const std::string& path = input.freeze.from;
  if (path.empty()) return;
  located(input.where("freeze.from"), [&] {
    if (is_sealed(path)) verify_seal(path);
    VarianceRestorer<Exec> variance(exec, path, input.optimizer.beta2, length);
    algorithm.state(variance);
  });
}

}  // namespace onebit::train
