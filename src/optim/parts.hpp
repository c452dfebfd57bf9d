#pragma once
/// \file parts.hpp
/// Parts that several algorithms are made of: the compressed allreduce that the input asks for, clipping, weight decay
/// by tensor, norms, and when replicas that drift apart are averaged.

#include <optional>

#include "base/parallel.hpp"
#include "comm/allreduce.hpp"
#include "optim/algorithm.hpp"

namespace onebit::optim {

/// The transport that the input asks for.
comm::TransportKind transport_kind(const config::Input& input);

/// CA with the compressor, groups and error feedback of the section `compression`, as `comm.collective` says; residuals
/// are 0.
template <class Exec>
comm::CompressedAllreduce<Exec> make_compressed_allreduce(const Setup<Exec>& setup);

/// Saves or restores the residuals: δ_i of each rank (of each host, where averages are hierarchical), of which another
/// number of them gets the mean, so that (1/n) Σ δ_i stays, and δ̄ as one vector of length d, of which each rank has the
/// range that its chunk is.
template <class Exec>
void archive_residuals(Archive<Exec>& archive, comm::CompressedAllreduce<Exec>& allreduce);
/// The same for one that is made when compression begins: it is made when there was one.
template <class Exec>
void archive_residuals(Archive<Exec>& archive, const Setup<Exec>& setup,
                       std::optional<comm::CompressedAllreduce<Exec>>& allreduce);

/// f_t = γ_{t−1}/γ_t, by which `compression.scale_residual_by_lr` multiplies the residuals of step t, so that γ δ is
/// what one step leaves to the next (docs/reference/algorithms.md). γ_{t−1} is that of the last step that compressed,
/// not of one that was left out.
class ResidualFactor {
public:
  explicit ResidualFactor(const config::Input& input) : m_scales(input.compression.scale_residual_by_lr) {}

  /// f_t of a step with this γ_t; asked once in each step that compresses. 1 without the key, in the first such step,
  /// and where γ_{t−1} or γ_t is 0 or their quotient is beyond single precision.
  float operator()(double lr);
  void state(NumberArchive& archive) {
    if (m_scales) archive.number("state/compressed_lr", m_lr);
  }

private:
  bool m_scales;
  float m_lr = 0;  ///< γ_{t−1}; 0 before the first compression
};

/// What `optimizer.clip` multiplies gradients of this norm by.
inline float clip_factor(const config::Input& input, double norm) {
  const double clip = input.optimizer.clip;
  return clip > 0 && norm > clip ? static_cast<float>(clip / norm) : 1.0f;
}

/// vector ← factor · vector; fences.
template <class Exec>
void scale(const Exec& exec, float factor, const Vector<Exec, float>& vector);

/// The steps at which replicas that drift apart are averaged: every τ (`optimizer.local_steps`) steps, and the last one
/// of the run. Where such a step is left out for its gradient, the next one averages in its place.
class AveragingSteps {
public:
  explicit AveragingSteps(const config::Input& input)
      : m_interval(input.optimizer.local_steps), m_last_step(input.train.steps) {}

  /// Whether step `step` averages; asked once in each step that takes place.
  bool due(long step) {
    if (step < m_next && step != m_last_step) return false;
    m_next = (step / m_interval + 1) * m_interval;
    return true;
  }
  void state(NumberArchive& archive) { archive.number("state/next_average", m_next); }

private:
  long m_interval, m_last_step, m_next = m_interval;
};

/// (⌈d/32⌉) bit i % 32 of word i / 32: weight decay applies to element i.
template <class Exec>
Vector<Exec, std::uint32_t> decay_bits(const TensorTable& tensors);

/// Bit i of such words.
KOKKOS_INLINE_FUNCTION bool bit(const std::uint32_t* words, std::size_t i) { return words[i / 32] >> (i % 32) & 1u; }

/// Calls f(i, decays) for i in [0, length), where `decays` is bit i of `bits` as 0 or 1. On the host 32 elements share one
/// look at their word: a look for each element, or a choice instead of a factor, is not vectorised.
template <class Exec, class F>
void for_each_with_decay(const Exec& exec, const char* label, std::size_t length,
                         const Vector<Exec, std::uint32_t>& bits, const F& f) {
  if constexpr (is_host<Exec>) {
    for_each(exec, label, bits.extent(0), [=](std::size_t word) {
      const std::uint32_t decays = bits(word);
      const std::size_t begin = word * 32;
      if (begin + 32 <= length) {
        ONEBIT_IVDEP
        for (std::uint32_t j = 0; j < 32; ++j) f(begin + j, static_cast<float>(decays >> j & 1u));
      } else {
        for (std::uint32_t j = 0; begin + j < length; ++j) f(begin + j, static_cast<float>(decays >> j & 1u));
      }
    });
  } else {
    for_each(
        exec, label, length, KOKKOS_LAMBDA(std::size_t i) { f(i, static_cast<float>(bit(bits.data(), i))); });
  }
}

/// f(i, value, decays) for a run of at most 32 elements.
template <class Exec, class F>
struct RunsWithDecay {
  Vector<Exec, std::uint32_t> bits;
  F f;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t begin, std::size_t count, const float* values) const {
    if (count == 32 && begin % 32 == 0) {
      const std::uint32_t decays = bits(begin / 32);
#if !defined(__CUDA_ARCH__)
      ONEBIT_IVDEP
#endif
      for (std::uint32_t j = 0; j < 32; ++j) f(begin + j, values[j], static_cast<float>(decays >> j & 1u));
    } else {
      for (std::size_t j = 0; j < count; ++j) f(begin + j, values[j], static_cast<float>(bit(bits.data(), begin + j)));
    }
  }
};

/// Calls f(i, value, decays) as for_each_with_decay does, with what messages of all chunks stand for.
template <class Exec, class F>
void for_each_decoded_with_decay(const Exec& exec, const char* label, const compress::AnyDecoder<Exec>& decoder,
                                 const Vector<Exec, std::uint32_t>& bits, const F& f) {
  std::visit(
      [&](const auto& one) {
        compress::for_each_decoded(exec, label, one, RunsWithDecay<Exec, F>{bits, f});
      },
      decoder);
}

/// ‖vector‖₂. \param sum made for this length
template <class Exec>
double l2_norm(const Exec& exec, const OrderedSum<Exec>& sum, const Vector<Exec, float>& vector);

/// Puts ‖δ_i‖₂ and ‖δ̄_k‖₂ into `state`, and says that this step's exchange was compressed, if it was.
template <class Exec>
void report_residuals(const Exec& exec, const comm::CompressedAllreduce<Exec>& allreduce, StepState& state);

}  // namespace onebit::optim
