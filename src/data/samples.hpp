#pragma once
/// \file samples.hpp
/// What a step sees, whatever it is drawn from.

#include <cstdint>
#include <vector>

namespace onebit::data {

/// B samples of T tokens, of which P tokens, or each sample's class, are to be predicted.
struct Batch {
  std::vector<int> input;      ///< (B, T)
  std::vector<int> predicted;  ///< (P) rows b * T + t of the input, increasing
  std::vector<int> target;     ///< (P) the token to predict there, or the class of sample p = b
};

/// Samples by number, so that a step does not depend on which rank draws which of them.
class Samples {
public:
  virtual ~Samples() = default;

  /// Samples [first_sample, first_sample + count) of step `step`.
  virtual void draw(std::uint64_t step, std::uint64_t first_sample, int count, Batch& batch) const = 0;

  /// Validation samples [first_sample, first_sample + count). They are the same in the whole run, and samples [0, n) are
  /// spread evenly over all there are, for every n. \throws InputError when there are none, or not so many
  virtual void draw_validation(std::uint64_t first_sample, int count, Batch& batch) const = 0;
};

}  // namespace onebit::data
