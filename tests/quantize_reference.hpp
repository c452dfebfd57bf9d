#pragma once
/// \file quantize_reference.hpp
/// The quantiser of quantize.hpp in plain loops over elements and bits: the definition that its kernels are tested
/// against, bit for bit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/random.hpp"

namespace onebit::compress {

/// The cut of a vector of `length` elements for `chunks` ranks and its messages.
struct QuantizerRef {
  std::size_t length;
  int chunks, bits;

  std::size_t words() const { return ((length + 31) / 32 + chunks - 1) / chunks; }
  std::size_t chunk_length() const { return 32 * words(); }
  std::size_t blocks() const { return (chunk_length() + 511) / 512; }
  std::size_t message_words() const { return blocks() + words() * bits; }
  double levels() const { return std::pow(2.0, bits) - 1; }

  /// Messages of all chunks of v on rank `rank` in step `step`.
  std::vector<std::uint32_t> quantize(const std::vector<float>& v, std::uint64_t seed, long step, int rank) const {
    std::vector<std::uint32_t> messages(chunks * message_words());
    for (std::size_t i = 0; i < length; ++i) {
      std::uint32_t* const message = messages.data() + i / chunk_length() * message_words();
      const std::size_t in_chunk = i % chunk_length();
      const std::size_t begin = i - in_chunk % 512;
      const std::size_t end = std::min({begin + 512, i - in_chunk + chunk_length(), length});
      const float largest = *std::max_element(v.begin() + begin, v.begin() + end);
      std::memcpy(message + in_chunk / 512, &largest, sizeof largest);
      if (largest == 0) continue;
      const Philox4 random = philox(stream_key(seed, Stream::variance_rounding), i / 4,
                                    static_cast<std::uint64_t>(step) * 4294967296u + rank);
      const double q = std::floor(v[i] * levels() / largest + uniform(random.word[i % 4]));
      for (int b = 0; b < bits; ++b) {
        const std::size_t place = in_chunk * bits + b;
        const auto one = static_cast<std::uint32_t>(std::fmod(std::floor(std::ldexp(q, -b)), 2));
        message[blocks() + place / 32] |= one << place % 32;
      }
    }
    return messages;
  }

  /// What element j of a chunk stands for in the chunk's message.
  float element(const std::uint32_t* message, std::size_t j) const {
    float largest = 0;
    std::memcpy(&largest, message + j / 512, sizeof largest);
    double q = 0;
    for (int b = 0; b < bits; ++b) {
      const std::size_t place = j * bits + b;
      q += std::ldexp(message[blocks() + place / 32] >> place % 32 & 1u, b);
    }
    return static_cast<float>(q * largest / levels());
  }

  /// The average of all ranks' vectors, as every rank gets it. \param messages of each rank
  std::vector<float> average(const std::vector<std::vector<std::uint32_t>>& messages) const {
    std::vector<float> mean;
    for (std::size_t i = 0; i < length; ++i) {
      float sum = 0;
      for (const auto& sent : messages)
        sum += element(sent.data() + i / chunk_length() * message_words(), i % chunk_length());
      mean.push_back(sum / static_cast<float>(messages.size()));
    }
    return mean;
  }
};

}  // namespace onebit::compress
