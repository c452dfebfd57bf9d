#pragma once
/// \file sgd.hpp
/// Stochastic gradient descent and its communication-efficient relatives, which Tang et al., ICML 2021, compare 1-bit
/// Adam with (supplement, Section 10), and 1-bit SGD (Seide et al., Interspeech 2014). They differ in what is averaged
/// over ranks and in whether there is momentum.

#include <optional>

#include "optim/parts.hpp"

namespace onebit::optim {

/// What the ranks average.
enum class Averaged {
  gradient,             ///< densely
  compressed_gradient,  ///< by CA
  column_gradient,      ///< by CA with the compressor `column`
  compressed_momentum,  ///< by CA
  parameters            ///< densely, every τ steps (`optimizer.local_steps`), and the momentum with them
};

/// | algorithm | averaged | momentum |
/// |---|---|---|
/// | `sgd`, `momentum_sgd` | gradient | without, with |
/// | `double_squeeze` (Tang et al., ICML 2019) | compressed_gradient | without |
/// | `onebit_sgd` | column_gradient | with |
/// | `ef_momentum_sgd` (after Zheng et al., NeurIPS 2019) | compressed_momentum | with |
/// | `local_sgd` (Stich, ICLR 2019), `local_momentum_sgd` | parameters | without, with |
///
/// With ĝ the gradient as it is after an average: m ← β1 m + (1−β1) ĝ, or m = ĝ without momentum;
/// x ← x − γ (m + λ x).
template <class Exec>
class Sgd : public Algorithm<Exec> {
public:
  /// \param momentum true for `compressed_momentum`
  Sgd(const Setup<Exec>& setup, Averaged averaged, bool momentum);

  bool averages_gradient(long) const override { return m_averaged == Averaged::gradient; }
  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override;

  void state(Archive<Exec>& archive) override;

private:
  Setup<Exec> m_setup;
  Averaged m_averaged;
  bool m_has_momentum;
  AveragingSteps m_averaging;
  bool m_synchronised = true;  ///< the ranks have the same bits
  OrderedSum<Exec> m_sum;
  Vector<Exec, float> m_momentum;  ///< (d), or (0) without momentum
  Vector<Exec, std::uint32_t> m_decays;
  std::optional<comm::CompressedAllreduce<Exec>> m_compressed_allreduce;
  ResidualFactor m_residual_factor;
};

}  // namespace onebit::optim
