#pragma once
/// \file samples.hpp
/// Batches, and the interface of what draws them.

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace onebit::data
