#pragma once
/// \file algorithm.hpp
/// The interface of a training algorithm, which turns the ranks' gradients into an update of the parameters.
/// docs/reference/algorithms.md says what each algorithm computes.

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
  comm::DenseAverage<Exec>& average;                 ///< of gradients and momenta
  comm::CompressedBuckets<Exec>* buckets = nullptr;  ///< of compressed momenta; nullptr for averages in one piece
};

/// What changes from step to step.
struct StepContext {
  long step = 1;                ///< t, from 1
  double lr = 0;                ///< γ of this step
  double mean_square_norm = 0;  ///< (1/n) Σ_i ‖g_i‖₂² to clip by (`optimizer.clip_norm`), the same on every rank
  bool averaged = false;        ///< g is already the average over ranks; only where `averages_gradient` is true
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

  /// True when step `step`, the next one, begins with the dense average of the gradients. The caller may then average
  /// them itself, while the backward pass still computes.
  virtual bool averages_gradient(long step) const {
    (void)step;
    return false;
  }

  /// Begins a step whose momenta are averaged in `Setup::buckets`. Instead of `step`, the caller averages each bucket
  /// with its part of g, which it may do while the backward pass still computes, calls `update_bucket` for each bucket
  /// that is averaged, and then `end_buckets`; or `take_back` if the ranks skip the step.
  /// \returns false if the step does not average in buckets; nothing has begun then
  virtual bool begin_buckets(const StepContext& context) {
    (void)context;
    return false;
  }
  /// x ← the step's update of the elements of bucket k, which is averaged. \param x (d) \param context as it began
  virtual void update_bucket(const Exec& exec, const Vector<Exec, float>& x, std::size_t k, const StepContext& context,
                             PhaseTimes& times) {
    (void)exec, (void)x, (void)k, (void)context, (void)times;
  }
  /// Ends the step.
  virtual StepState end_buckets(const Exec& exec) {
    (void)exec;
    return {};
  }
  /// Undoes all of the step. All of its buckets have been averaged, and none has updated x.
  virtual void take_back() {}

  /// One update. Collective.
  /// \param x (d) parameters; all ranks hold the same bits before the first step, and after each step whose StepState
  ///          is `synchronised`, as the last one (`train.steps`) is
  /// \param g (d) gradient of this rank's mean loss, or the average over ranks; overwritten
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
