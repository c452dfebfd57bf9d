#pragma once
/// \file initial_parameters.hpp
/// Parameters from the checkpoint of an earlier run, perhaps of another model (`checkpoint.initialize_from`).

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "base/kokkos.hpp"
#include "base/names.hpp"
#include "base/tensor_table.hpp"
#include "io/sealed/seal.hpp"
#include "train/checkpoint/checkpoint_archive.hpp"
#include "train/checkpoint/checkpoint_contents.hpp"

namespace onebit::train {

/// "encoder" of "encoder.0.attention.qkv.weight".
inline std::string component(const std::string& name) { return name.substr(0, name.find('.')); }

/// Whether tensor `to` can begin with values of `from`: with all, or for position embeddings with the first rows.
inline bool fits(const Tensor& from, const Tensor& to) {
  if (from.shape == to.shape) return true;
  return to.name == "embeddings.position.weight" && from.shape.size() == 2 && from.shape[1] == to.shape[1];
}

/// "WHAT: a, b"; empty without components.
inline std::string listed(const std::string& what, const std::set<std::string>& components) {
  return components.empty() ? "" : what + ": " + joined(components);
}

/// x ← parameters of a checkpoint, tensor by tensor. A component (the first part of its tensors' names) that the
/// checkpoint lacks keeps its values in x; one that this model lacks is left out: both are heads of different tasks. In
/// all other components, the two models must have the same tensors with the same shapes. Position embeddings are the
/// exception: as many rows are taken as both models have. Not collective.
/// \returns a line that says what was taken
/// \throws InputError
template <class Exec>
std::string read_parameters(const Exec& exec, const std::string& path, const TensorTable& tensors,
                            const Vector<Exec, float>& x) {
  const Region region("OneBit::train::read_parameters");
  if (is_sealed(path)) verify_seal(path);
  Restorer<Exec> restorer(exec, path, 0, 1);
  if (!restorer.reader().has("tensors")) {  // a file of another program: all parameters in order
    restorer.vector("parameters", x, false);
    return "parameters: of " + path;
  }
  const std::string values = restorer.reader().has("parameter_mean") ? "parameter_mean" : "parameters";
  std::map<std::string, Tensor> saved = saved_tensors(restorer.reader(), path);
  std::set<std::string> theirs, ours;  // components of the checkpoint's model, and of this one
  for (const auto& [name, tensor] : saved) theirs.insert(component(name));
  for (const Tensor& tensor : tensors.tensors()) ours.insert(component(tensor.name));

  const std::string remedy =
      "name a checkpoint with the same architecture, model.layers, hidden, feed_forward and tokeniser, or give this "
      "model those of the checkpoint's input";
  std::set<std::string> taken, anew, left_out;
  for (const Tensor& tensor : tensors.tensors()) {
    if (theirs.count(component(tensor.name)) == 0) {
      anew.insert(component(tensor.name));
      continue;
    }
    const auto found = saved.find(tensor.name);
    if (found == saved.end())
      throw InputError(path, "its model has no tensor '" + tensor.name + "', which this one has", remedy);
    const Tensor& from = found->second;
    if (!fits(from, tensor))
      throw InputError(path,
                       "its model's tensor '" + tensor.name + "' is " + shape_text(from.shape) +
                           ", but this one's is " + shape_text(tensor.shape),
                       remedy);
    const std::size_t count = std::min(from.size(), tensor.size());
    restorer.part(values, range(x, tensor.offset, count), {from.offset, from.offset + count});
    taken.insert(component(tensor.name));
    saved.erase(found);
  }
  for (const auto& [name, tensor] : saved) {
    if (ours.count(component(name)) > 0)
      throw InputError(path, "this model has no tensor '" + name + "', which the checkpoint's has", remedy);
    left_out.insert(component(name));
  }
  if (taken.empty()) throw InputError(path, "it has no tensor of this model", remedy);
  return (values == "parameters" ? "parameters: of " : "means of parameters: of ") + path + listed("", taken) +
         listed("; begin anew", anew) + listed("; left out", left_out);
}

}  // namespace onebit::train
