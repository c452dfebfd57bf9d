#pragma once
/// \file sgd.hpp
/// Stochastic gradient descent, its relatives that communicate less, with which Tang et al., ICML 2021, compare 1-bit
/// Adam (supplement, Section 10), and 1-bit SGD (Seide et al., Interspeech 2014).

#include <cmath>
#include <optional>

#include "optim/adam_update.hpp"
#include "optim/compression.hpp"
#include "optim/others/averaging_steps.hpp"
#include "optim/rates/residual_factor.hpp"

namespace onebit::optim {

/// What the ranks average.
enum class Averaged {
  gradient,             ///< densely
  compressed_gradient,  ///< by CA
  column_gradient,      ///< by CA with the compressor `column`
  compressed_momentum,  ///< by CA
  parameters            ///< densely, with the momentum, every τ steps (`optimizer.local_steps`)
};

/// | algorithm | averaged | momentum |
/// |---|---|---|
/// | `sgd`, `momentum_sgd` | gradient | without, with |
/// | `double_squeeze` (Tang et al., ICML 2019) | compressed_gradient | without |
/// | `onebit_sgd` | column_gradient | with |
/// | `ef_momentum_sgd` (after Zheng et al., NeurIPS 2019) | compressed_momentum | with |
/// | `local_sgd` (Stich, ICLR 2019), `local_momentum_sgd` | parameters | without, with |
///
/// ĝ is the gradient after its average, if there is one. With momentum m ← β1 m + (1−β1) ĝ, else m = ĝ; then
/// x ← x − f γ (m + λ x).
template <class Exec>
class Sgd : public Algorithm<Exec> {
public:
  /// \param momentum true for `compressed_momentum`
  Sgd(const Setup<Exec>& setup, Averaged averaged, bool momentum)
      : m_setup(setup),
        m_averaged(averaged),
        m_has_momentum(momentum),
        m_averaging(setup.input),
        m_sum(setup.tensors.size()),
        m_momentum("OneBit::optim::momentum", momentum ? setup.tensors.size() : 0),
        m_rates(setup.input, setup.tensors),
        m_residual_factor(setup.input) {
    if (averaged == Averaged::gradient || averaged == Averaged::parameters) return;
    config::Input input = setup.input;
    CompressorKind& compressor = input.compression.compressor;
    if (averaged == Averaged::column_gradient && compressor != CompressorKind::none)
      compressor = CompressorKind::column;
    m_compressed_average.emplace(Setup<Exec>{input, setup.tensors, setup.transport, setup.average});
  }

  comm::BucketAverage<Exec>* begin(const StepContext& /*context*/) override {
    return m_averaged == Averaged::gradient ? m_setup.gradient_buckets : nullptr;
  }

  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override {
    const Region region("OneBit::optim::sgd");
    const bool dense = m_averaged == Averaged::gradient;
    if (dense && !context.averaged) m_setup.average(exec, g, times);

    Stopwatch watch;
    const double norm = dense ? norm_to_clip(exec, m_setup.input, m_sum, g) : std::sqrt(context.mean_square_norm);
    scale(exec, clip_factor(m_setup.input, norm), g);
    const auto exchange = [&](const Vector<Exec, float>& vector) {
      times.add(Phase::compress, watch.seconds());
      (*m_compressed_average)(exec, vector, times, m_residual_factor(context.lr));
      watch.restart();
    };
    if (m_compressed_average && m_averaged != Averaged::compressed_momentum) exchange(g);
    if (m_has_momentum) {
      update_momentum(exec, make_adam_update(m_setup.input, context, 0, 0, 0), g, m_momentum);  // g is clipped already
      fence(exec, "OneBit::optim::momentum");
    }
    if (m_averaged == Averaged::compressed_momentum) exchange(m_momentum);
    descend(exec, m_rates, context.lr, m_has_momentum ? m_momentum : g, x);
    times.add(Phase::update, watch.seconds());

    StepState state;
    if (m_compressed_average) m_compressed_average->report(exec, state);
    if (m_averaged == Averaged::parameters) {
      state.synchronised = m_synchronised = m_averaging.due(context.step);
      if (state.synchronised) {
        comm::average(exec, m_setup.transport, x, times);
        if (m_has_momentum) m_setup.average(exec, m_momentum, times);
      }
    }
    return state;
  }

  void state(Archive<Exec>& archive) override {
    m_averaging.state(archive);
    archive.number("state/synchronised", m_synchronised);
    if (m_has_momentum) archive.vector("momentum", m_momentum, !m_synchronised);
    if (!m_compressed_average) return;
    m_compressed_average->state(archive);
    m_residual_factor.state(archive);
  }

private:
  Setup<Exec> m_setup;
  Averaged m_averaged;
  bool m_has_momentum;
  AveragingSteps m_averaging;
  bool m_synchronised = true;  ///< the ranks' x are the same bits
  OrderedSum<Exec> m_sum;
  Vector<Exec, float> m_momentum;  ///< (d), or (0) without momentum
  Rates<Exec> m_rates;
  std::optional<Average<Exec>> m_compressed_average;
  ResidualFactor m_residual_factor;
};

}  // namespace onebit::optim
