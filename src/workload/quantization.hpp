#pragma once
/// \file quantization.hpp
/// What the workloads with quantised layers share: how the input quantises, and when the quantisers are measured.

#include "config/input.hpp"
#include "nn/quantized/quantization.hpp"

namespace onebit::workload {

/// Section `model.quantization`.
inline nn::Quantization quantization(const config::Input& input) {
  const auto& q = input.model.quantization;
  return {q.kind, q.bits, q.pruning, q.exclude, q.layer_bits, q.gradients_after, q.group};
}

/// Steps in which a rank measures its quantisers: the errors where the run validates, and the groups in steps that
/// `model.quantization.record_every` names. Rank 0 alone records groups.
class MeasuredSteps {
public:
  MeasuredSteps(const config::Input& input, int rank)
      : m_train(input.train), m_record_every(rank == 0 ? input.model.quantization.record_every : 0) {}

  nn::QuantizerMeasures operator()(long step) const {
    if (m_record_every > 0 && step % m_record_every == 0) return nn::QuantizerMeasures::groups;
    return config::validates(m_train, step) ? nn::QuantizerMeasures::errors : nn::QuantizerMeasures::none;
  }

private:
  decltype(config::Input::train) m_train;
  int m_record_every;
};

}  // namespace onebit::workload
