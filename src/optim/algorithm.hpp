#pragma once
/// \file algorithm.hpp
/// What a training algorithm is: it turns each rank's gradient into the same update of the parameters on every rank.
/// docs/algorithms.md says what each one computes.

#include <memory>
#include <string>

#include "base/tensor_table.hpp"
#include "base/timer.hpp"
#include "comm/transport.hpp"
#include "config/input.hpp"

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
};

/// What a step tells steps.csv; a NaN is an empty cell.
struct StepState {
  bool compressed = false;        ///< this step's exchange carried compressed vectors
  double variance_l1 = 0;         ///< ‖v‖₁
  double variance_ratio = 0;      ///< r_t, NaN while t ≤ Δ
  double worker_residual_l2 = 0;  ///< ‖δ_i‖₂ of this rank
  double server_residual_l2 = 0;  ///< ‖δ̄_k‖₂ of this rank
  long frozen_at = 0;             ///< T_w once it is known, else 0
};

/// One algorithm with its state (momentum, variance, residuals).
template <class Exec>
class Algorithm {
public:
  virtual ~Algorithm() = default;

  /// One update. Collective.
  /// \param x (d) parameters, the same bits on every rank before and after
  /// \param g (d) gradient of this rank's mean loss; overwritten
  virtual StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                         const StepContext& context, PhaseTimes& times) = 0;
};

/// Makes the algorithm that `optimizer.algorithm` names.
template <class Exec>
std::unique_ptr<Algorithm<Exec>> make_algorithm(const Setup<Exec>& setup);

/// Learning rate γ_t of step t ≥ 1: linear rise to the peak over W steps, then the chosen decay.
double learning_rate(const config::Input& input, long step);

}  // namespace onebit::optim
