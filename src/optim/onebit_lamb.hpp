#pragma once
/// \file onebit_lamb.hpp
/// 1-bit LAMB: LAMB, which gives each tensor a learning rate of its own, until the variance is frozen; then a compressed
/// momentum and those learning rates times a factor from a variance of reconstructed gradients (Li et al., *1-bit LAMB:
/// Communication Efficient Large-Scale Large-Batch Training with LAMB's Convergence Speed*, 2021).

#include <optional>

#include "optim/parts.hpp"
#include "optim/variance_monitor.hpp"

namespace onebit::optim {

/// Sums and maxima over each named tensor, on the device, in a fixed tree: pieces of at most 1024 elements that end at
/// tensor borders, then the pieces of a tensor.
template <class Exec>
class TensorReduction {
public:
  explicit TensorReduction(const TensorTable& tensors);

  /// results(l) = Σ f(i) over the elements i of tensor l. f may write element i of anything.
  template <class F>
  void sums(const Exec& exec, const char* label, const Vector<Exec, double>& results, const F& f) const {
    piece_sums(exec, label, m_piece_begins, m_pieces, f);
    const auto pieces = m_pieces;
    piece_sums(
        exec, label, m_tensor_begins, results, KOKKOS_LAMBDA(std::size_t piece) { return pieces(piece); });
  }
  /// results(l) = max f(i), for f ≥ 0.
  template <class F>
  void maxima(const Exec& exec, const char* label, const Vector<Exec, double>& results, const F& f) const {
    reduce_pieces<Maximum>(exec, label, m_piece_begins, m_pieces, f);
    const auto pieces = m_pieces;
    reduce_pieces<Maximum>(
        exec, label, m_tensor_begins, results, KOKKOS_LAMBDA(std::size_t piece) { return pieces(piece); });
  }

private:
  Vector<Exec, std::size_t> m_piece_begins;   ///< (pieces + 1) first element of each piece
  Vector<Exec, std::size_t> m_tensor_begins;  ///< (tensors + 1) first piece of each tensor
  Vector<Exec, double> m_pieces;
};

/// Finds the tensor that holds an element, inside a kernel: a look-up by blocks of 1024 elements and a short search.
template <class Exec>
struct TensorOf {
  Vector<Exec, std::size_t> ends;           ///< (tensors) first element behind each
  Vector<Exec, std::uint32_t> block_first;  ///< (⌈d/1024⌉) tensor of each block's first element

  explicit TensorOf(const TensorTable& tensors);
  KOKKOS_FUNCTION std::size_t operator()(std::size_t i) const {
    std::size_t tensor = block_first(i / piece_length);
    while (i >= ends(tensor)) ++tensor;
    return tensor;
  }
};

/// `onebit_lamb`.
template <class Exec>
class OnebitLamb : public Algorithm<Exec> {
public:
  explicit OnebitLamb(const Setup<Exec>& setup);

  bool averages_gradient(long) const override { return m_frozen_at == 0; }
  StepState step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                 const StepContext& context, PhaseTimes& times) override;

  void state(Archive<Exec>& archive) override;

  /// The steps of the two phases and what lies between them. Public only because a device lambda may not stand in a
  /// private member function.
  StepState dense_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                       const StepContext& context, PhaseTimes& times);
  StepState frozen_step(const Exec& exec, const Vector<Exec, float>& x, const Vector<Exec, float>& g,
                        const StepContext& context, PhaseTimes& times);
  void freeze(const Exec& exec);
  /// x_l ← x_l − γ c_l (m / (√v + η) + λ x_l) with the coefficients c_l of m_coefficient.
  void update(const Exec& exec, const Vector<Exec, float>& x, const StepContext& context);

private:
  Setup<Exec> m_setup;
  VarianceMonitor m_monitor;
  OrderedSum<Exec> m_sum;
  TensorReduction<Exec> m_reduction;
  TensorOf<Exec> m_tensor_of;
  Vector<Exec, float> m_momentum, m_variance;
  Vector<Exec, float> m_fresh_variance;  ///< (d) w; made at T_w
  Vector<Exec, std::uint32_t> m_decays;
  // One element for each tensor:
  Vector<Exec, double> m_average;        ///< c̄_l
  Vector<Exec, double> m_factor;         ///< f_l
  Vector<Exec, double> m_coefficient;    ///< c_l, then f_l c̄_l
  Vector<Exec, double> m_scale;          ///< a_l
  Vector<Exec, double> m_left, m_right;  ///< scratch: the two numbers that a quotient is made of
  std::optional<comm::CompressedAllreduce<Exec>> m_compressed_allreduce;  ///< made at T_w, residuals 0
  double m_variance_l1 = 0;
  long m_frozen_at = 0;
};

}  // namespace onebit::optim
