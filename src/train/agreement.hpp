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

/// i ↦ g(first + i)²
template <class Exec>
struct Square {
  Vector<Exec, float> g;
  std::size_t first;
  KOKKOS_FUNCTION double operator()(std::size_t i) const {
    return static_cast<double>(g(first + i)) * static_cast<double>(g(first + i));
  }
};

/// The norm of this rank's gradient, and its first tensor with a non-finite element. Takes the gradient in ranges,
/// because a gradient that is averaged in buckets is overwritten before the last of it is computed.
template <class Exec>
class GradientCheck {
public:
  explicit GradientCheck(const TensorTable& tensors) : m_tensors(tensors), m_sum(tensors.size()) {}

  void begin_step() { m_first_nonfinite = nullptr; }

  /// Checks elements [begin, end) of g. The ranges of one step are those that OrderedSum takes, in any order.
  void operator()(const Exec& exec, const Vector<Exec, float>& g, std::size_t begin, std::size_t end) {
    if (std::isfinite(m_sum.part(exec, "OneBit::train::gradient_norm", begin, end, Square<Exec>{g, 0}))) return;
    for (const Tensor& tensor : m_tensors.tensors()) {
      if (m_first_nonfinite != nullptr && tensor.offset >= m_first_nonfinite->offset) return;
      const std::size_t low = std::max(begin, tensor.offset), high = std::min(end, tensor.offset + tensor.size());
      if (low >= high) continue;
      const OrderedSum<Exec> sum(high - low);
      if (!std::isfinite(sum(exec, "OneBit::train::nonfinite_tensor", Square<Exec>{g, low})))
        m_first_nonfinite = &tensor;
    }
  }

  /// ‖g‖₂², the same bits for any ranges.
  double square_norm(const Exec& exec) const { return m_sum.total(exec, "OneBit::train::gradient_norm"); }
  /// Empty if all elements are finite.
  std::string nonfinite_tensor() const { return m_first_nonfinite != nullptr ? m_first_nonfinite->name : ""; }

private:
  const TensorTable& m_tensors;
  OrderedSum<Exec> m_sum;
  const Tensor* m_first_nonfinite = nullptr;
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
  throw AgreedError(ExitStatus::failed_run,
                    communicator.broadcast(place + ": " + what, rank) +
                        "\n  remedy: lower optimizer.lr, lengthen schedule.warmup_steps or freeze.step, set "
                        "optimizer.clip, or set optimizer.on_nonfinite to skip");
}

}  // namespace onebit::train
