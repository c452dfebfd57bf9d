#pragma once
/// \file rates.hpp
/// The learning rate and the weight decay of an element depend on its tensor (`optimizer.groups`, and biases and
/// LayerNorm parameters do not decay). The loops here hand them to a kernel.

#include <vector>

#include "base/device/parallel.hpp"
#include "base/tensor_table.hpp"
#include "compress/decode.hpp"
#include "config/input.hpp"

namespace onebit::optim {

/// What an element's update takes from its tensor: x ← x − f γ (… + λ x).
struct Rate {
  float lr_factor;     ///< f
  float weight_decay;  ///< λ, or 0 where it does not apply
};

/// Elements with one rate, from the end of the range before to `end`.
struct RateRange {
  std::size_t end;
  double lr_factor, weight_decay;
};

/// The rates of all elements, in their order.
/// \throws InputError for a group that no tensor is in
std::vector<RateRange> rate_ranges(const config::Input& input, const TensorTable& tensors);

/// The rate of each element, inside a kernel. A word says it for 32 elements: without groups bit i % 32 of word i / 32
/// is 1 where the run's λ applies to element i, and f = 1; with groups it is the range of element 32 ⌊i/32⌋, from which
/// the search goes on.
template <class Exec>
class Rates {
public:
  /// \throws InputError for a group that no tensor is in
  Rates(const config::Input& input, const TensorTable& tensors) {
    if (input.optimizer.groups.empty()) {
      m_words = Vector<Exec, std::uint32_t>("OneBit::optim::rates", (tensors.size() + 31) / 32);
      const auto words = Kokkos::create_mirror_view(m_words);
      m_decay_factor = input.optimizer.weight_decay;
      for (const Tensor& tensor : tensors.tensors())
        if (tensor.decays)
          for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i)
            words(i / 32) |= std::uint32_t{1} << (i % 32);
      m_decays = m_decay_factor > 0;
      Kokkos::deep_copy(m_words, words);
    } else {
      *this = Rates(rate_ranges(input, tensors));
    }
  }
  /// \param ranges of all elements
  explicit Rates(const std::vector<RateRange>& ranges)
      : m_words("OneBit::optim::rates", (ranges.back().end + 31) / 32),
        m_ranges(copy_to_device<Exec>("OneBit::optim::rate_ranges", ranges)) {
    const auto words = Kokkos::create_mirror_view(m_words);
    std::uint32_t range = 0;
    for (std::size_t word = 0; word < words.extent(0); ++word) {
      while (word * 32 >= ranges[range].end) ++range;
      words(word) = range;
    }
    for (const RateRange& one : ranges) m_decays = m_decays || one.weight_decay > 0;
    Kokkos::deep_copy(m_words, words);
  }

  /// Whether some λ is not 0.
  bool decays() const { return m_decays; }

  /// The same with `factor` times the weight decays.
  Rates with_decay_times(double factor) const {
    Rates scaled = *this;
    scaled.m_decay_factor *= factor;
    return scaled;
  }

  /// Those of the elements from `begin` on, which then count from 0.
  Rates from(std::size_t begin) const {
    Rates rest = *this;
    rest.m_first += begin;
    return rest;
  }

  /// The rate of element i.
  KOKKOS_FORCEINLINE_FUNCTION Rate operator()(std::size_t i) const {
    const std::size_t place = m_first + i;
    const std::uint32_t word = m_words(place / 32);
    if (m_ranges.extent(0) == 0) return of_bit(word >> (place % 32));
    std::size_t range = word;
    while (place >= m_ranges(range).end) ++range;
    return of_range(range);
  }

  /// Calls f(j, rate of element begin + j) for j < count ≤ 32, for the host. One look for all of a word's elements: one
  /// for each element, or a branch, would keep the loop from being vectorised.
  template <class F>
  KOKKOS_FORCEINLINE_FUNCTION void for_each_of_word(std::size_t begin, std::size_t count, const F& f) const {
    const std::size_t place = m_first + begin;
    if (m_ranges.extent(0) == 0 && count == 32 && place % 32 == 0) {
      const std::uint32_t bits = m_words(place / 32);
      const float decay = static_cast<float>(m_decay_factor);
#ifndef ONEBIT_DEVICE_CODE
      ONEBIT_IVDEP
#endif
      for (std::uint32_t j = 0; j < 32; ++j) f(j, Rate{1.0f, static_cast<float>(bits >> j & 1u) * decay});
      return;
    }
    if (m_ranges.extent(0) > 0) {
      std::size_t range = m_words(place / 32);
      while (place >= m_ranges(range).end) ++range;
      if (place + count <= m_ranges(range).end) {
        const Rate rate = of_range(range);
#ifndef ONEBIT_DEVICE_CODE
        ONEBIT_IVDEP
#endif
        for (std::size_t j = 0; j < count; ++j) f(j, rate);
        return;
      }
    }
    for (std::size_t j = 0; j < count; ++j) f(j, (*this)(begin + j));
  }

private:
  KOKKOS_FORCEINLINE_FUNCTION Rate of_bit(std::uint32_t bits) const {
    return {1.0f, static_cast<float>(bits & 1u) * static_cast<float>(m_decay_factor)};
  }
  KOKKOS_FORCEINLINE_FUNCTION Rate of_range(std::size_t range) const {
    const RateRange& one = m_ranges(range);
    return {static_cast<float>(one.lr_factor), static_cast<float>(one.weight_decay * m_decay_factor)};
  }

  Vector<Exec, std::uint32_t> m_words;  ///< (⌈d/32⌉)
  Vector<Exec, RateRange> m_ranges;     ///< (0) without groups
  std::size_t m_first = 0;              ///< place, in the whole vector, of the element that counts as 0
  double m_decay_factor = 1;            ///< of the bits, or of the ranges' weight decays
  bool m_decays = false;
};

/// Calls f(i, rate) for the elements of a word, for the host.
template <class Exec, class F>
struct WordWithRate {
  Rates<Exec> rates;
  std::size_t length;
  F f;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t word) const {
    const std::size_t begin = word * 32;
    rates.for_each_of_word(begin, begin + 32 <= length ? 32 : length - begin,
                           [&](std::size_t j, const Rate& rate) { f(begin + j, rate); });
  }
};

/// Calls f(i, rate) for an element, for a device.
template <class Exec, class F>
struct ElementWithRate {
  Rates<Exec> rates;
  F f;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t i) const { f(i, rates(i)); }
};

/// Calls f(i, rate) for i in [0, length), where `rate` is that of element i.
template <class Exec, class F>
void for_each_with_rate(const Exec& exec, const char* label, std::size_t length, const Rates<Exec>& rates, const F& f) {
  if constexpr (is_host<Exec>) {
    for_each(exec, label, (length + 31) / 32, WordWithRate<Exec, F>{rates, length, f});
  } else {
    for_each(exec, label, length, ElementWithRate<Exec, F>{rates, f});
  }
}

/// x ← x − f γ (u + λ x); fences. \param lr γ \param u (d) direction
template <class Exec>
void descend(const Exec& exec, const Rates<Exec>& rates, double lr, const Vector<Exec, float>& u,
             const Vector<Exec, float>& x) {
  const float gamma = static_cast<float>(lr);
  for_each_with_rate(
      exec, "OneBit::optim::descend", x.extent(0), rates, KOKKOS_LAMBDA(std::size_t i, const Rate& rate) {
        x(i) -= rate.lr_factor * gamma * (u(i) + rate.weight_decay * x(i));
      });
  fence(exec, "OneBit::optim::descend");
}

/// x(i) ← f(i, value, rate) for the elements that a thread takes at once.
template <class Exec, class F>
struct WithRate {
  Rates<Exec> rates;
  Vector<Exec, float> x;
  F f;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t begin, std::size_t count, const float* values) const {
    using Table = compress::WordTable<Exec>;
    if constexpr (Table::stride > 1) {
      // All are read before the first is written, so that a thread has several loads in flight.
      float updated[Table::per_thread];
      ONEBIT_UNROLL
      for (std::size_t j = 0; j < Table::per_thread; ++j) {
        const std::size_t i = begin + (j < count ? j : 0) * Table::stride;
        if (count > 0) updated[j] = f(i, values[j], rates(i));
      }
      compress::store<Exec>(updated, count, x.data() + begin);
    } else if (count > 0) {
      rates.for_each_of_word(begin, count,
                             [&](std::size_t j, const Rate& rate) { x(begin + j) = f(begin + j, values[j], rate); });
    }
  }
};

/// x(i) ← f(i, value, rate), where `value` is element i of the vector that messages hold, and `rate` as in
/// for_each_with_rate. f writes nothing.
template <class Exec, class F>
void for_each_decoded_with_rate(const Exec& exec, const char* label, const compress::AnyDecoder<Exec>& decoder,
                                const Rates<Exec>& rates, const Vector<Exec, float>& x, const F& f) {
  std::visit(
      [&](const auto& one) {
        compress::for_each_decoded(exec, label, one, WithRate<Exec, F>{rates, x, f});
      },
      decoder);
}

/// The same as `descend` above with u in messages; fences.
template <class Exec>
void descend(const Exec& exec, const Rates<Exec>& rates, double lr, const compress::AnyDecoder<Exec>& u,
             const Vector<Exec, float>& x) {
  const float gamma = static_cast<float>(lr);
  for_each_decoded_with_rate(
      exec, "OneBit::optim::descend_decoded", u, rates, x,
      KOKKOS_LAMBDA(std::size_t i, float direction, const Rate& rate) {
        return x(i) - rate.lr_factor * gamma * (direction + rate.weight_decay * x(i));
      });
  fence(exec, "OneBit::optim::descend_decoded");
}

}  // namespace onebit::optim
