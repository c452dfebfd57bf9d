#pragma once
/// \file weight_decay.hpp
/// Weight decay applies to some tensors only. One bit for each element says whether it does; these loops hand the bit
/// to a kernel as a factor, 0 or 1.

#include "base/parallel.hpp"
#include "base/tensor_table.hpp"
#include "compress/decode.hpp"

namespace onebit::optim {

/// (⌈d/32⌉) bit i % 32 of word i / 32 is 1 where weight decay applies to element i.
template <class Exec>
Vector<Exec, std::uint32_t> decay_bits(const TensorTable& tensors) {
  Vector<Exec, std::uint32_t> bits("OneBit::optim::decays", (tensors.size() + 31) / 32);
  const auto host = Kokkos::create_mirror_view(bits);
  for (const Tensor& tensor : tensors.tensors())
    if (tensor.decays)
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i)
        host(i / 32) |= std::uint32_t{1} << (i % 32);
  Kokkos::deep_copy(bits, host);
  return bits;
}

/// Bit i of these bits as 0 or 1.
KOKKOS_INLINE_FUNCTION float decay_of(const std::uint32_t* bits, std::size_t i) {
  return static_cast<float>(bits[i / 32] >> (i % 32) & 1u);
}

/// Calls f(i, decays) for i in [0, length), where `decays` is bit i of `bits` as 0 or 1. On the host one read of a word
/// serves 32 elements: a read for each element, or a branch, would keep the loop from being vectorised.
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
        exec, label, length, KOKKOS_LAMBDA(std::size_t i) { f(i, decay_of(bits.data(), i)); });
  }
}

/// x(i) ← f(i, value, decays) for the elements that a thread takes at once.
template <class Exec, class F>
struct WithDecay {
  Vector<Exec, std::uint32_t> bits;
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
        if (count > 0) updated[j] = f(i, values[j], decay_of(bits.data(), i));
      }
      compress::store<Exec>(updated, count, x.data() + begin);
    } else if (count == 32 && begin % 32 == 0) {
      const std::uint32_t decays = bits(begin / 32);
#ifndef ONEBIT_DEVICE_CODE
      ONEBIT_IVDEP
#endif
      for (std::uint32_t j = 0; j < 32; ++j)
        x(begin + j) = f(begin + j, values[j], static_cast<float>(decays >> j & 1u));
    } else {
      for (std::size_t j = 0; j < count; ++j) x(begin + j) = f(begin + j, values[j], decay_of(bits.data(), begin + j));
    }
  }
};

/// x(i) ← f(i, value, decays), where `value` is element i of the vector that messages hold, and `decays` as in
/// for_each_with_decay. f writes nothing.
template <class Exec, class F>
void for_each_decoded_with_decay(const Exec& exec, const char* label, const compress::AnyDecoder<Exec>& decoder,
                                 const Vector<Exec, std::uint32_t>& bits, const Vector<Exec, float>& x, const F& f) {
  std::visit(
      [&](const auto& one) {
        compress::for_each_decoded(exec, label, one, WithDecay<Exec, F>{bits, x, f});
      },
      decoder);
}

}  // namespace onebit::optim
