#pragma once
/// \file onebit_lion.hpp
/// Lion (Chen et al., *Symbolic Discovery of Optimization Algorithms*, 2023) whose momentum is averaged compressed:
/// "freeze the non-linear state, compress the linear one" where the non-linear part, the sign, has no state.

#include "optim/parts.hpp"

namespace onebit::optim {

/// `onebit_lion`: m_i = β2 m⁻ + (1−β2) g_i; m ← CA(m_i); c = m⁻ + (1−β1)/(1−β2) (m − m⁻), which is β1 m⁻ + (1−β1) g̃ with
/// the average gradient g̃ = (m − β2 m⁻)/(1−β2) that m stands for; x ← x − γ (sign(c) + λ x), sign(0) = 0.
template <class Exec>
class OnebitLion : public Algorithm<Exec> {
public:
  explicit OnebitLion(const Setup<Exec>& setup);

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override;

  void state(Archive<Exec>& archive) override;

private:
  Setup<Exec> m_setup;
  Vector<Exec, float> m_momentum;
  Vector<Exec, std::uint32_t> m_decays;
  comm::CompressedAllreduce<Exec> m_compressed_allreduce;
};

}  // namespace onebit::optim
