#pragma once
/// \file agreement.hpp
/// How ranks learn about each other's gradients and failures, so that all do the same next.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/error.hpp"
#include "base/mpi.hpp"
#include "base/tensor_table.hpp"
#include "comm/dense_average.hpp"
#include "config/input.hpp"

namespace onebit::train {

/// Keeps the first exception of this rank until all ranks meet. A rank that left at once would leave the others
/// waiting.
class LocalErrors {
public:
  /// Calls `work`, unless an earlier call failed.
  template <class Work>
  void capture(const Work& work) {
    if (m_error) return;
    try {
      work();
    } catch (...) {
      m_error = std::current_exception();
    }
  }
  bool failed() const { return m_error != nullptr; }
  /// Throws an AgreedError on all ranks if any rank has kept an exception. Collective.
  void rethrow(const Communicator& communicator) const {
    communicator.collectively([&] {
      if (m_error) std::rethrow_exception(m_error);
    });
  }

private:
  std::exception_ptr m_error;
};

/// The magnitude from which on an element of a gradient counts as not finite, because a step could not compute with it.
struct GradientLimit {
  float from = INFINITY;
  std::string why, remedy;
};

/// That of a run: what 16 bits hold, whose squares 32 lanes can add up in single precision (a variance is made of them,
/// and l2 scales), or what ranks and the blocks of a sum can add up.
inline GradientLimit gradient_limit(const config::Input& input, int ranks) {
  constexpr float greatest = std::numeric_limits<float>::max(), terms = 64;
  const bool has_squares = config::traits(input.optimizer.algorithm).variance != config::Variance::none ||
                           input.compression.scale == Scale::l2;
  GradientLimit limit;
  if (has_squares)
    limit = {std::sqrt(greatest / terms), "sums of its square exceed single precision",
             "lower optimizer.lr, or scale the loss down"};
  else
    limit = {greatest / terms / static_cast<float>(ranks), "sums of such numbers exceed single precision",
             "lower optimizer.lr, or scale the loss down"};
  if (comm::infinite_from(input.comm.dense_type) < limit.from)
    limit = {comm::infinite_from(input.comm.dense_type),
             "it travels in " + to_string(input.comm.dense_type) + ", whose greatest number is less",
             "set comm.dense_type to bf16 or fp32"};
  return limit;
}

/// i ↦ g(i), infinite from a limit on.
template <class Exec>
struct Limited {
  Vector<Exec, float> g;
  float infinite_from;
  KOKKOS_FUNCTION double operator()(std::size_t i) const {
    const float value = g(i);
    return static_cast<double>(value < infinite_from && value > -infinite_from ? value : value * INFINITY);
  }
};

/// i ↦ its square
template <class Exec>
struct Square {
  Limited<Exec> element;
  KOKKOS_FUNCTION double operator()(std::size_t i) const { return element(i) * element(i); }
};

/// What to do about numbers that grow without bound.
inline constexpr char unstable_remedy[] =
    "lower optimizer.lr, lengthen schedule.warmup_steps or freeze.step, set optimizer.clip";

/// What is wrong with a rank's loss or gradient, and what to do; both are empty if nothing is.
struct GradientFault {
  std::string what, remedy;
};

/// The norm of this rank's gradient, and its first tensor with an element that no step can compute with. Takes the
/// gradient in ranges, because a gradient that is averaged in buckets is overwritten before the last of it is computed.
template <class Exec>
class GradientCheck {
public:
  GradientCheck(const TensorTable& tensors, GradientLimit limit)
      : m_tensors(tensors),
        m_limit(std::move(limit)),
        m_sum(tensors.size()),
        m_nonfinite("OneBit::train::nonfinite", block_count(tensors.size())) {}

  /// Checks elements [begin, end) of g; does not fence, so a backward pass goes on. The ranges of one step are those
  /// that OrderedSum takes, in any order.
  void operator()(const Exec& exec, const Vector<Exec, float>& g, std::size_t begin, std::size_t end) const {
    const Limited<Exec> element{g, m_limit.from};
    m_sum.part(exec, "OneBit::train::gradient_norm", begin, end, Square<Exec>{element});
    const Vector<Exec, double> sums = m_sum.blocks();
    const Vector<Exec, std::size_t> nonfinite = m_nonfinite;
    const std::size_t first_block = begin / block_length;
    for_each(
        exec, "OneBit::train::nonfinite", block_count(end - begin), KOKKOS_LAMBDA(std::size_t k) {
          const std::size_t block = first_block + k;
          nonfinite(block) = none;
          if (is_finite(sums(block))) return;
          std::size_t i = block * block_length;
          while (is_finite(element(i))) ++i;
          nonfinite(block) = is_finite(g(i)) ? i | too_large : i;
        });
  }

  /// ‖g‖₂², the same bits for any ranges; fences.
  double square_norm(const Exec& exec) const { return m_sum.total(exec, "OneBit::train::gradient_norm"); }
  /// To be called after `square_norm`.
  GradientFault fault() const {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), m_nonfinite);
    const std::size_t* const begin = host.data();
    const std::size_t* const end = begin + host.extent(0);
    const std::size_t* const found = std::find_if(begin, end, [](std::size_t i) { return i != none; });
    if (found == end) return {};
    const std::string gradient = "the gradient of tensor '" + m_tensors.at_element(*found & ~too_large).name + "'";
    if ((*found & too_large) == 0) return {gradient + " is not finite", unstable_remedy};
    char from[32];
    std::snprintf(from, sizeof from, "%.6g", static_cast<double>(m_limit.from));
    return {gradient + " has a finite element of magnitude " + from + " or more: " + m_limit.why, m_limit.remedy};
  }

private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  static constexpr std::size_t too_large = ~(none >> 1);  ///< a bit that marks a finite element
  KOKKOS_INLINE_FUNCTION static bool is_finite(double value) { return value - value == 0; }

  const TensorTable& m_tensors;
  GradientLimit m_limit;
  OrderedSum<Exec> m_sum;
  Vector<Exec, std::size_t> m_nonfinite;  ///< (blocks) first such element of each block, or `none`
};

/// What all ranks know about the gradients of a step.
struct Agreement {
  double mean_loss;
  double mean_square_norm;  ///< (1/n) Σ ‖g_i‖₂²
  bool finite;              ///< both means are
  bool stops;               ///< a signal asked a rank to stop
};

/// Ends the run on all ranks. The message is that of the lowest rank whose loss or gradient is at fault. Collective.
/// \param fault of this rank's gradient
[[noreturn]] inline void abort_nonfinite(const Communicator& communicator, double loss, GradientFault fault,
                                         long step) {
  if (fault.what.empty() && !std::isfinite(loss)) fault = {"the loss is not finite", unstable_remedy};
  const double found = !fault.what.empty();
  const std::vector<double> all = communicator.gather(&found, 1);
  const auto first = std::find(all.begin(), all.end(), 1.0);
  const int rank = first != all.end() ? static_cast<int>(first - all.begin()) : 0;
  const std::string text = "rank " + std::to_string(rank) + ", step " + std::to_string(step) + ": " + fault.what +
                           "\n  remedy: " + fault.remedy + ", or set optimizer.on_nonfinite to skip";
  throw WrongResult(communicator.broadcast(text, rank));
}

}  // namespace onebit::train
