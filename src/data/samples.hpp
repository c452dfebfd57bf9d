#pragma once
/// \file samples.hpp
/// Batches, the interface of what draws them, and which samples of a set are drawn.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"

namespace onebit::data {

/// B samples of T tokens, with P tokens, or the class of each sample, to predict.
struct Batch {
  std::vector<int> input;      ///< (B, T)
  std::vector<int> predicted;  ///< (P) rows b * T + t of the input, increasing
  std::vector<int> target;     ///< (P) tokens to predict there, or the class of sample p = b
};

/// Numbered samples, so that a step does not depend on which rank draws which sample.
class Samples {
public:
  virtual ~Samples() = default;

  /// What was found in files of samples, in words; empty where there are none.
  virtual std::string summary() const { return ""; }

  /// Samples [first_sample, first_sample + count) of step `step`.
  virtual void draw(std::uint64_t step, std::uint64_t first_sample, int count, Batch& batch) const = 0;

  /// Validation samples [first_sample, first_sample + count), the same in the whole run. For every n, samples [0, n)
  /// are spread evenly over the validation part. \throws InputError when there are fewer samples
  virtual void draw_validation(std::uint64_t first_sample, int count, Batch& batch) const = 0;
};

/// Which of `size` samples a random number draws, uniformly with replacement: the remainder of its first two words.
inline std::size_t drawn_sample(const Philox4& random, std::uint64_t size) {
  return (random.word[0] | std::uint64_t{random.word[1]} << 32) % size;
}

/// The order in which a validation draws the samples of a set, each at most once. For every n, the first n are spread
/// evenly over the set.
class ValidationOrder {
public:
  ValidationOrder() = default;
  /// \param name of the set's files in messages
  ValidationOrder(std::string name, std::uint64_t size) : m_name(std::move(name)), m_size(size) {
    // About 0.618 size (golden ratio) and coprime to it: 0, stride, 2 stride, … modulo the size are all different and
    // spread evenly.
    m_stride = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(0.6180339887498949 * static_cast<double>(size)));
    while (std::gcd(m_stride, size) != 1) ++m_stride;
  }

  /// The place in the set of the sample that is drawn as number `sample`, from 0 on.
  std::size_t operator[](std::uint64_t sample) const { return sample * m_stride % m_size; }

  /// \throws InputError unless samples [first_sample, first_sample + count) exist
  void check(std::uint64_t first_sample, int count) const {
    const std::uint64_t end = first_sample + static_cast<std::uint64_t>(count);
    if (end > m_size)
      throw InputError(m_name,
                       "it has " + std::to_string(m_size) + " samples, but " + std::to_string(end) + " are to be drawn",
                       "lower train.validation_batch, which is rounded up to whole batches, to at most that");
  }

private:
  std::string m_name;
  std::uint64_t m_size = 0;
  std::uint64_t m_stride = 0;  ///< from one sample to the next
};

}  // namespace onebit::data
