#pragma once
/// \file agreement.hpp
/// How ranks learn about each other's gradients and failures, so that all do the same next.

#include <algorithm>
#include <cmath>
#include <exception>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/mpi.hpp"
#include "base/parallel.hpp"
#include "base/tensor_table.hpp"
#include "comm/dense_average.hpp"

namespace onebit::train {

/// Keeps the first exception of this rank until all ranks meet. A rank that left at once would leave the others
/// waiting.
class Deferred {
public:
  /// Calls `work`, unless an earlier call failed.
  template <class Work>
  void operator()(const Work& work) {
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

/// Gradients of this magnitude count as infinite: 2⁶³, whose square, and sums of many of them, float still holds. From
/// about 1.8e19 on a square is infinite, and stays in the variance for good.
inline constexpr float too_large = 9223372036854775808.0f;

/// i ↦ g(i) as it is sent: infinite if it is too large, or if a dense average would round it to infinity.
template <class Exec>
struct Sent {
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
  Sent<Exec> sent;
  KOKKOS_FUNCTION double operator()(std::size_t i) const { return sent(i) * sent(i); }
};

/// The norm of this rank's gradient, and its first tensor with a non-finite element. Takes the gradient in ranges,
/// because a gradient that is averaged in buckets is overwritten before the last of it is computed.
template <class Exec>
class GradientCheck {
public:
  /// \param dense_type in which gradients may be sent
  GradientCheck(const TensorTable& tensors, DenseType dense_type)
      : m_tensors(tensors),
        m_infinite_from(std::min(too_large, comm::infinite_from(dense_type))),
        m_sum(tensors.size()),
        m_nonfinite("OneBit::train::nonfinite", block_count(tensors.size())) {}

  /// Checks elements [begin, end) of g; does not fence, so a backward pass goes on. The ranges of one step are those
  /// that OrderedSum takes, in any order.
  void operator()(const Exec& exec, const Vector<Exec, float>& g, std::size_t begin, std::size_t end) const {
    const Sent<Exec> sent{g, m_infinite_from};
    m_sum.part(exec, "OneBit::train::gradient_norm", begin, end, Square<Exec>{sent});
    const Vector<Exec, double> sums = m_sum.blocks();
    const Vector<Exec, std::size_t> nonfinite = m_nonfinite;
    const std::size_t first_block = begin / block_length;
    for_each(
        exec, "OneBit::train::nonfinite", block_count(end - begin), KOKKOS_LAMBDA(std::size_t k) {
          const std::size_t block = first_block + k;
          nonfinite(block) = none;
          if (is_finite(sums(block))) return;
          std::size_t i = block * block_length;
          while (is_finite(sent(i))) ++i;
          nonfinite(block) = i;
        });
  }

  /// ‖g‖₂², the same bits for any ranges; fences.
  double square_norm(const Exec& exec) const { return m_sum.total(exec, "OneBit::train::gradient_norm"); }
  /// Empty if all elements are finite. To be called after `square_norm`.
  std::string nonfinite_tensor() const {
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), m_nonfinite);
    const std::size_t* const begin = host.data();
    const std::size_t* const end = begin + host.extent(0);
    const std::size_t* const found = std::find_if(begin, end, [](std::size_t i) { return i != none; });
    return found != end ? m_tensors.at_element(*found).name : "";
  }

private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  KOKKOS_INLINE_FUNCTION static bool is_finite(double value) { return value - value == 0; }

  const TensorTable& m_tensors;
  float m_infinite_from;
  OrderedSum<Exec> m_sum;
  Vector<Exec, std::size_t> m_nonfinite;  ///< (blocks) first element of each block that is not finite, or `none`
};

/// What all ranks know about the gradients of a step.
struct Agreement {
  double mean_loss;
  double mean_square_norm;  ///< (1/n) Σ ‖g_i‖₂²
  bool finite;              ///< both means are
  bool stops;               ///< a signal asked a rank to stop
};

/// Ends the run on all ranks. The message names the lowest rank whose loss or gradient is not finite. Collective.
/// \param tensor of this rank with a non-finite element; empty for none
[[noreturn]] inline void abort_nonfinite(const Communicator& communicator, double loss, const std::string& tensor,
                                         long step) {
  const double found = !tensor.empty() || !std::isfinite(loss);
  const std::vector<double> all = communicator.gather(&found, 1);
  const auto first = std::find(all.begin(), all.end(), 1.0);
  const int rank = first != all.end() ? static_cast<int>(first - all.begin()) : 0;
  const std::string place = "rank " + std::to_string(rank) + ", step " + std::to_string(step);
  const std::string what =
      tensor.empty() ? "the loss is not finite" : "the gradient of tensor '" + tensor + "' is not finite";
  throw WrongResult(
      communicator.broadcast(place + ": " + what, rank) +
      "\n  remedy: lower optimizer.lr, lengthen schedule.warmup_steps or freeze.step, set optimizer.clip, "
      "or set optimizer.on_nonfinite to skip");
}

}  // namespace onebit::train
