#pragma once
/// \file algorithm.hpp
/// What a training algorithm is: it turns each rank's gradient into the same update of the parameters on every rank.
/// docs/reference/algorithms.md says what each one computes.

#include <limits>
#include <memory>
#include <string>

#include "base/tensor_table.hpp"
#include "base/timer.hpp"
#include "comm/transport.hpp"
#include "config/input.hpp"
#include "optim/archive.hpp"

namespace onebit::optim {

/// What an algorithm is made from. The references outlive it.
template <class Exec>
struct Setup {
  const config::Input& input;
  const TensorTable& tensors;
  comm::Transport<Exec>& transport;
  int rank;
  int ranks;
};

/// What changes from step to step.
struct StepContext {
  long step = 1;                ///< t, from 1
  double lr = 0;                ///< γ of this step
  double mean_square_norm = 0;  ///< (1/n) Σ_i ‖g_i‖₂², the same on every rank
  bool averaged = false;        ///< g is the average over ranks; only where `averages_gradient` asks for it
};

/// "No such number": an empty cell of steps.csv.
inline constexpr double no_value = std::numeric_limits<double>::quiet_NaN();

/// What a step tells steps.csv, and whether the ranks may differ after it.
struct StepState {
  bool compressed = false;               ///< its exchange carried compressed vectors, or there was none
  bool synchronised = true;              ///< x is the same bits on every rank
  double variance_l1 = no_value;         ///< ‖v‖₁
  double variance_ratio = no_value;      ///< r_t, from t > Δ on
  double worker_residual_l2 = no_value;  ///< ‖δ_i‖₂ of this rank
  double server_residual_l2 = no_value;  ///< ‖δ̄_k‖₂ of this rank
  long frozen_at = 0;                    ///< the step that froze the variance, T_w; 0 before, and for T_w = 0
  const char* frozen_by = "";            ///< what made it T_w, as a message says it; set by the step that freezes
};

/// One algorithm with its state (momentum, variance, residuals).
template <class Exec>
class Algorithm {
public:
  virtual ~Algorithm() = default;

  /// Whether step `step`, the next one, begins with the dense average of the ranks' gradients, and with nothing else: it
  /// may then be made before, while the gradient is still computed.
  virtual bool averages_gradient(long step) const {
    (void)step;
    return false;
  }

  /// One update. Collective.
  /// \param x (d) parameters, the same bits on every rank before the first step, and after each one whose
  ///          StepState says so; the last step (train.steps) always does
  /// \param g (d) gradient of this rank's mean loss, or the average of all ranks'; overwritten
  virtual StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                         const StepContext& context, PhaseTimes& times) = 0;

  /// Saves or restores all that `step` goes by beside its arguments, so that the steps after it are the same bits as if
  /// the run had not stopped. Not collective. Vectors have the names `momentum`, `variance`, …;
  /// docs/guide/checkpoint.md lists them. \throws InputError for state that does not fit
  virtual void state(Archive<Exec>& archive) = 0;
};

/// Makes the algorithm that `optimizer.algorithm` names.
template <class Exec>
std::unique_ptr<Algorithm<Exec>> make_algorithm(const Setup<Exec>& setup);

/// Whether the algorithm of this name sends compressed vectors in any phase.
bool compresses(const std::string& algorithm);

/// Learning rate γ_t of step t ≥ 1: linear rise to the peak over W steps, then the chosen decay.
double learning_rate(const config::Input& input, long step);

}  // namespace onebit::optim
