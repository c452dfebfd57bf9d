#pragma once
/// \file encode_word.hpp
/// Error feedback and the codes of the elements of a word, the innermost loop of a compression: m_i = β m + (1−β) g_i,
/// c = m_i + f δ, and a sign for each c.

#include "compress/compressor.hpp"
#include "compress/decode.hpp"

namespace onebit::compress {

/// What the elements at a cursor are compressed from: a vector,
struct VectorSource {
  const float* x;
  KOKKOS_FORCEINLINE_FUNCTION float operator()(std::size_t j) const { return x[j]; }
};
/// or the momentum of a vector.
struct MomentumSource {
  const float* x;
  const float* old;
  MomentumShares shares;
  KOKKOS_FORCEINLINE_FUNCTION float operator()(std::size_t j) const { return shares(old[j], x[j]); }
};

/// c ← x + f (c − C(c)), where C has the scales with which c was sent; codes ← the codes of the new c, if they need no
/// scales.
template <class Codec, class Source>
struct Compensate {
  const Codec& codec;
  const std::uint32_t* sent_scales;
  float residual_factor;
  Source x;
  float* c;
  std::uint32_t* codes;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t group, std::size_t first, std::size_t last) const {
    const auto sent = codec.values(sent_scales + group * Codec::scales);
    for (std::size_t j = first; j < last; ++j) {
      const float residual = c[j] - codec.decode(sent, codec.encode(sent, c[j]));
      c[j] = x(j) + residual_factor * residual;
      if constexpr (Codec::codes_before_scales) codes[j] = codec.encode(sent, c[j]);
    }
  }
};

/// Where the elements of a compression come from.
enum class SourceKind { vector, momentum, messages };

/// Compensates and encodes the elements at a cursor.
template <class Exec, class Codec, SourceKind kind>
struct EncodeWord {
  static constexpr std::size_t per_thread = WordTable<Exec>::per_thread;
  Codec codec;
  WordTable<Exec> table;
  Compression<Exec> own;
  std::size_t message_words;
  std::size_t base;  ///< first element of the vectors of `own`

  KOKKOS_FORCEINLINE_FUNCTION void operator()(const Cursor& cursor) const {
    const std::size_t relative = cursor.chunk - own.first_chunk, scales = table.groups * Codec::scales;
    const std::size_t at = cursor.begin - base, count = table.length(cursor);
    float* const c = own.feedback.c.data() + at;
    std::uint32_t codes[per_thread] = {};
    float c_values[per_thread], x_values[per_thread], values[per_thread] = {};
    float* const c_staging = staging<Exec>(c, c_values);
    load<Exec>(c, count, c_values);
    const auto source = elements(cursor, at, count, x_values, values);
    table.for_each_group(
        cursor, Compensate<Codec, std::decay_t<decltype(source)>>{codec, own.feedback.scales.data() + relative * scales,
                                                                  own.residual_factor, source, c_staging, codes});
    store<Exec>(c_staging, count, c);
    if (Codec::codes_before_scales)
      pack<Exec>(table, cursor, codes, codec.planes,
                 own.messages.data() + relative * message_words + scales + cursor.word * codec.planes);
  }

  /// \param x_values, values room for the elements of vectors and of messages
  KOKKOS_FORCEINLINE_FUNCTION auto elements(const Cursor& cursor, std::size_t at, std::size_t count, float* x_values,
                                            float* values) const {
    const auto x = [&] { return load<Exec>(own.x.data() + at, count, x_values); };
    if constexpr (kind == SourceKind::vector) {
      return VectorSource{x()};  // nvcc loses the braces of a type that is not named
    } else if constexpr (kind == SourceKind::momentum) {
      const float* const now = x();  // first, so that a GPU waits for x and for the old message at once
      decode(codec, table, cursor, own.momentum.old.data() + cursor.chunk * message_words, values);
      return MomentumSource{now, values, own.momentum.shares};
    } else {
      take_mean(cursor, values);
      return VectorSource{values};
    }
  }

  /// values[j] ← the mean of what the senders sent.
  KOKKOS_FORCEINLINE_FUNCTION void take_mean(const Cursor& cursor, float* values) const {
    const int senders = own.mean.senders;
    float sums[per_thread] = {};
    int sender = 0;
    for (; sender + 4 <= senders; sender += 4) add<4>(cursor, sender, sums);
    for (; sender + 2 <= senders; sender += 2) add<2>(cursor, sender, sums);
    for (; sender < senders; ++sender) add<1>(cursor, sender, sums);
    for (std::size_t j = 0; j < per_thread; ++j) values[j] = sums[j] / static_cast<float>(senders);
  }

  /// Adds the values of `senders` senders at once, because one after the other the sums would go through memory.
  template <int senders>
  KOKKOS_FORCEINLINE_FUNCTION void add(const Cursor& cursor, int first_sender, float* sums) const {
    const std::uint32_t* messages[senders];
    Codes<Exec, Codec> codes[senders];
    for (int i = 0; i < senders; ++i) {
      messages[i] = own.mean.messages.data() + (first_sender + i) * message_words;
      codes[i] = Codes<Exec, Codec>(codec, table, cursor, messages[i]);
    }
    table.for_each_group(cursor, [&](std::size_t group, std::size_t first, std::size_t last) {
      typename Codec::Values values[senders];
      for (int i = 0; i < senders; ++i) values[i] = codec.values(messages[i] + group * Codec::scales);
      for (std::size_t j = first; j < last; ++j) {
        float sum = sums[j];
        for (int i = 0; i < senders; ++i) sum += codec.decode(values[i], codes[i](j));
        sums[j] = sum;
      }
    });
  }
};

}  // namespace onebit::compress
