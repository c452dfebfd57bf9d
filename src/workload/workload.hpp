#pragma once
/// \file workload.hpp
/// A workload computes a loss and its gradient for one rank's samples. It knows no optimiser.

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/device/memory.hpp"
#include "base/kokkos.hpp"
#include "base/tensor_table.hpp"
#include "base/timer.hpp"
#include "config/input.hpp"
#include "nn/quantized/quantization.hpp"

namespace onebit::workload {

/// This rank's share of the batch and of the memory.
struct Share {
  int rank = 0;
  int ranks = 1;
  double memory = std::numeric_limits<double>::infinity();  ///< bytes that this rank may take
  /// What the rest of the run takes: parameters, gradient, optimiser, messages. Empty: nothing.
  std::function<PhaseBytes(const TensorTable&)> run_bytes = {};
};

/// What a workload takes of a rank's memory.
struct Footprint {
  TensorTable tensors;
  double bytes = 0;               ///< beside parameters and gradient
  std::vector<std::string> keys;  ///< of the input that determine the size, the likeliest fault first
};

/// That of the workload that `workload.kind` names. Reads the files that the size depends on (a corpus's vocabulary),
/// and allocates nothing of the model's size. \throws InputError as make_workload
Footprint footprint(const config::Input& input, int ranks);

/// This footprint, of a run that fits into a rank's memory in both of its phases. \throws InputError if it does not
Footprint check_memory(const config::Input& input, Footprint footprint, const Share& share);

/// A loss summed over samples, so that ranks can add up theirs.
struct LossSum {
  double sum = 0;
  double samples = 0;
  double right = std::numeric_limits<double>::quiet_NaN();  ///< Σ of each sample's fraction of right predictions
  double f1 = std::numeric_limits<double>::quiet_NaN();     ///< Σ of the F1 of each sample's answer, for spans
  /// Σ of the features of each generated sample less those of one of the data; empty where none are generated. The
  /// square of the mean's norm is a distance (nn/images/gan/random_features.hpp).
  std::vector<double> features = {};
};

/// A picture of generated samples.
struct Picture {
  std::size_t height = 0, width = 0;
  std::size_t channels = 0;         ///< 1: grey; 3: red, green and blue
  std::vector<std::uint8_t> bytes;  ///< (height, width, channels); empty without a picture
};

/// See the top of the file.
template <class Exec>
class Workload {
public:
  virtual ~Workload() = default;

  /// The parameters' tensors.
  virtual const TensorTable& tensors() const = 0;
  /// Bytes that it takes beside parameters and gradient, as its Footprint says.
  virtual double bytes() const { return 0; }
  /// x ← initial parameters, the same on every rank. \param x (d)
  virtual void initialize(const Exec& exec, const Vector<Exec, float>& x) = 0;
  /// g ← gradient of the mean loss of this rank's samples of step t ≥ 1. \param x, g (d)
  /// \param ready_from may be called with b once elements [b, d) of g are complete, the same b on every rank; may be
  ///                   empty
  /// \returns the mean loss
  virtual double gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                          PhaseTimes& times, const GradientReady& ready_from) = 0;
  /// Loss of this rank's validation samples, which are the same in each call; no samples if the workload has none.
  /// \param goes_on called after each batch, equally often on all ranks; when it returns false, the loss is not wanted
  ///                any more
  virtual LossSum validation_loss(const Exec& /*exec*/, const Vector<Exec, float>& /*x*/,
                                  const std::function<bool()>& /*goes_on*/) {
    return {};
  }
  /// Samples that the parameters generate; none for a workload that generates nothing. \param x (d)
  virtual Picture picture(const Exec& /*exec*/, const Vector<Exec, float>& /*x*/) { return {}; }
  /// What was found in the files of samples, in words; empty where there are none.
  virtual std::string samples() const { return ""; }
  /// Tokens (samples, for a workload without tokens) of one step over all ranks.
  virtual double tokens_per_step() const = 0;
  /// Of this rank's last gradient. The error is measured in steps that validate or record groups.
  virtual nn::QuantizationState quantization() const { return {}; }
  /// Steps so far whose computation took longer than `workload.compute_time_ms`.
  virtual long compute_overruns() const { return 0; }
};

/// Makes the workload that `workload.kind` names: Timed if `workload.compute_time_ms` is set, and Faulty if section
/// `faults` names this rank. Not collective: each rank reads the files.
/// \throws InputError for files that are missing or do not fit
template <class Exec>
std::unique_ptr<Workload<Exec>> make_workload(const Exec& exec, const config::Input& input, const Share& share);

}  // namespace onebit::workload
