#pragma once
/// \file algorithm.hpp
/// The interface of a training algorithm, which turns the ranks' gradients into an update of the parameters.
/// docs/reference/algorithms/README.md says what each algorithm computes.

#include <limits>
#include <memory>
#include <string>

#include "base/tensor_table.hpp"
#include "base/timer.hpp"
#include "comm/dense_average.hpp"
#include "comm/overlap/compressed_buckets.hpp"
#include "config/input.hpp"
#include "optim/archive.hpp"

namespace onebit::optim {

/// What an algorithm is made from. The references must outlive it.
template <class Exec>
struct Setup {
  const config::Input& input;
  const TensorTable& tensors;
  comm::Transport<Exec>& transport;
  comm::DenseAverage<Exec>& average;  ///< of gradients and momenta
  /// What averages beside the backward pass: gradients densely, momenta compressed. nullptr: nothing does.
  comm::BucketAverage<Exec>* gradient_buckets = nullptr;
  comm::CompressedBuckets<Exec>* momentum_buckets = nullptr;
};

/// What changes from step to step.
struct StepContext {
  long step = 1;                ///< t, from 1
  double lr = 0;                ///< γ of this step
  double mean_square_norm = 0;  ///< (1/n) Σ_i ‖g_i‖₂² to clip by (`optimizer.clip_norm`), the same on every rank
  bool averaged = false;        ///< what `Algorithm::begin` gave has averaged all buckets
};

/// An empty cell of steps.csv.
inline constexpr double no_value = std::numeric_limits<double>::quiet_NaN();

/// What a step reports.
struct StepState {
  bool compressed = false;               ///< it exchanged compressed vectors, or nothing
  bool synchronised = true;              ///< x is the same bits on every rank
  double variance_l1 = no_value;         ///< ‖v‖₁
  double variance_ratio = no_value;      ///< r_t, which exists for t > Δ
  double worker_residual_l2 = no_value;  ///< ‖δ_i‖₂ of this rank
  double server_residual_l2 = no_value;  ///< ‖δ̄_k‖₂ of this rank
  long frozen_at = 0;                    ///< T_w, the step that froze the variance; 0 before it, and for T_w = 0
  const char* frozen_by = "";            ///< what chose T_w, for the message of the step that freezes
};

/// One algorithm with its state (momentum, variance, residuals).
template <class Exec>
class Algorithm {
public:
  virtual ~Algorithm() = default;

  /// Begins step t, before its gradient is there.
  /// \returns what averages the buckets of g as they become complete; all are averaged before `step`, or `roll_back`
  ///          undoes the step. nullptr: `step` does all that the ranks exchange
  virtual comm::BucketAverage<Exec>* begin(const StepContext& context) {
    (void)context;
    return nullptr;
  }
  /// Undoes `begin` and the average of the buckets, because the ranks skip the step.
  virtual void roll_back() {}

  /// One update. Collective.
  /// \param x (d) parameters; all ranks hold the same bits before the first step, and after each step whose StepState
  ///          is `synchronised`, as the last one (`train.steps`) is
  /// \param g (d) gradient of this rank's mean loss, or what the buckets' average left of it; overwritten
  virtual StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                         const StepContext& context, PhaseTimes& times) = 0;

  /// Saves or restores all that `step` depends on beside its arguments, so that a restart changes no bit. Not
  /// collective. docs/guide/checkpoint.md lists the names. \throws InputError for state that does not fit
  virtual void state(Archive<Exec>& archive) = 0;
};

/// Makes the algorithm that `optimizer.algorithm` names.
template <class Exec>
std::unique_ptr<Algorithm<Exec>> make_algorithm(const Setup<Exec>& setup);

/// Learning rate γ_t of step t ≥ 1: a linear warm-up to the peak over W steps, then the chosen decay.
double learning_rate(const config::Input& input, long step);

}  // namespace onebit::optim
