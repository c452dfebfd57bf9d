#pragma once
/// \file compressed_adam.hpp
/// Adam whose variance is not frozen while what the ranks average is compressed: the shortcuts that Tang et al., ICML
/// 2021, show to fail (Section 3.2 and Figure 1; supplement, Section 10, Figures 12 and 13).

#include <optional>

#include "comm/quantized_average.hpp"
#include "optim/parts.hpp"
#include "optim/variance_monitor.hpp"

namespace onebit::optim {

/// Where the variance comes from.
enum class VarianceFrom {
  compressed_gradient,  ///< the average that all ranks have of the gradient: `adam_1bit_naive`
  quantized_average,    ///< every rank's own gradient, averaged in each step in a few bits: `adam_nbit_variance`
  own_gradient          ///< the same, averaged densely every τ steps: `adam_lazy_variance`
};

/// `compressed_gradient`: ĝ = CA(g_i); m ← β1 m + (1−β1) ĝ; v ← β2 v + (1−β2) ĝ².
/// The others: m_i = β1 m + (1−β1) g_i; m ← CA(m_i); v_i = β2 v + (1−β2) g_i², where `quantized_average` sets v to the
/// average of the quantised v_i (`optimizer.variance_bits`), and `own_gradient` leaves each rank its v_i.
/// Then x ← x − γ (m / (√v + η) + λ x), after which `own_gradient` averages x and v every τ (`optimizer.local_steps`)
/// steps; in between the ranks' x differ.
template <class Exec>
class CompressedAdam : public Algorithm<Exec> {
public:
  CompressedAdam(const Setup<Exec>& setup, VarianceFrom variance_from);

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override;

  void state(Archive<Exec>& archive) override;

private:
  Setup<Exec> m_setup;
  VarianceFrom m_variance_from;
  VarianceMonitor m_monitor;  ///< for r_t alone
  AveragingSteps m_averaging;
  bool m_synchronised = true;  ///< the ranks have the same bits
  OrderedSum<Exec> m_sum;
  Vector<Exec, float> m_momentum, m_variance;
  Vector<Exec, std::uint32_t> m_decays;
  comm::CompressedAllreduce<Exec> m_compressed_allreduce;
  std::optional<comm::QuantizedAverage<Exec>> m_quantized_average;
};

}  // namespace onebit::optim
