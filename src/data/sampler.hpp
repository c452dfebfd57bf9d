#pragma once
/// \file sampler.hpp
/// Batches for language models: windows of the corpus and the tokens to predict.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/corpus.hpp"
#include "data/samples.hpp"

namespace onebit::data {

/// Masked language model (Devlin et al. 2019, section 3.1), or prediction of the next token.
enum class Objective { masked, causal };

/// P: all rows (causal), or max(1, round(0.15 T)) rows of each sequence (masked). The number is the same in each
/// sequence, so that the mean of the ranks' mean losses is the mean over all samples.
/// \throws InputError when B * T does not fit the 32-bit row indices of a Batch
int predictions(Objective objective, int batch, int sequence);

/// Draws samples by counter: sample s of step t is a function of (seed, t, s).
class Sampler final : public Samples {
public:
  /// Keeps a reference to the corpus.
  /// \param sequence T, tokens a sample
  /// \throws InputError when the training part, or a validation part that is not empty, is too short for one sample
  Sampler(const Corpus& corpus, Objective objective, int sequence, std::uint64_t seed);
  Sampler(Corpus&&, Objective, int, std::uint64_t) = delete;

  /// Draws windows uniformly from the training part.
  void draw(std::uint64_t step, std::uint64_t first_sample, int count, Batch& batch) const override;

  /// Draws windows of the validation part. \throws InputError when the corpus has none
  void draw_validation(std::uint64_t first_sample, int count, Batch& batch) const override;

private:
  /// First token of a sample, and the key of the random numbers of its mask.
  struct Window {
    std::size_t begin;
    std::uint64_t mask_key;
  };
  template <class WindowOf>
  void fill(const std::vector<int>& tokens, int count, const WindowOf& window_of, Batch& batch) const;

  const Corpus& m_corpus;
  Objective m_objective;
  std::size_t m_sequence;
  std::uint64_t m_seed;
};

}  // namespace onebit::data
