#include "data/sampler.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "base/error.hpp"
#include "base/random.hpp"

namespace onebit::data {
namespace {

/// Tokens to predict in a masked sequence: 15 %, rounded half up.
std::int64_t masked_tokens(std::int64_t sequence) { return std::max<std::int64_t>(1, (15 * sequence + 50) / 100); }

/// Tokens of the text that a sample needs; the causal target of its last token is the next token.
std::size_t window_tokens(Objective objective, std::size_t sequence) {
  return sequence + (objective == Objective::causal ? 1 : 0);
}

void check_length(const Corpus& corpus, const char* part, const std::vector<int>& tokens, std::size_t needed) {
  if (tokens.size() >= needed) return;
  throw InputError(corpus.name(),
                   std::string("its ") + part + " part has " + std::to_string(tokens.size()) +
                       " tokens, but one sample needs " + std::to_string(needed),
                   "give more text, or set a shorter sequence or another validation fraction");
}

std::uint64_t join(std::uint32_t low, std::uint32_t high) { return low | std::uint64_t{high} << 32; }

/// A masked sample inside a batch.
struct MaskedSample {
  int* input;             ///< (T)
  std::size_t first_row;  ///< row of input[0] in the batch
  int* predicted;         ///< (K)
  int* target;            ///< (K)
};

/// Chooses K tokens of a sample and records them as targets (Devlin et al. 2019): 80 % become [MASK], 10 % become a
/// random token, 10 % stay.
/// \param positions (T) scratch
void mask(const Corpus& corpus, std::uint64_t key, std::size_t masked, std::vector<int>& positions,
          const MaskedSample& sample) {
  const int mask_token = corpus.mask_token();
  const auto ordinary_tokens = static_cast<std::uint32_t>(corpus.vocabulary() - 1);
  // The first K steps of a Fisher-Yates shuffle: all sets of K positions are equally likely, up to the bias of the
  // remainders, T / 2^32.
  std::iota(positions.begin(), positions.end(), 0);
  for (std::size_t k = 0; k < masked; ++k) {
    std::swap(positions[k], positions[k + philox(key, k, 0).word[0] % (positions.size() - k)]);
  }
  std::sort(positions.begin(), positions.begin() + static_cast<std::ptrdiff_t>(masked));
  for (std::size_t k = 0; k < masked; ++k) {
    const auto position = static_cast<std::size_t>(positions[k]);
    int& token = sample.input[position];
    sample.predicted[k] = static_cast<int>(sample.first_row + position);
    sample.target[k] = token;
    const Philox4 random = philox(key, k, 1);
    const std::uint32_t fate = random.word[0] % 10;
    if (fate < 8) {
      token = mask_token;
    } else if (fate == 8) {
      token = static_cast<int>(random.word[1] % ordinary_tokens);
      if (token >= mask_token) ++token;
    }
  }
}

}  // namespace

int predictions(Objective objective, int batch, int sequence) {
  if (std::int64_t{batch} * sequence > std::numeric_limits<int>::max()) {
    throw InputError(
        "batch",
        std::to_string(batch) + " samples of " + std::to_string(sequence) + " tokens are more than 2^31 - 1 tokens",
        "set a smaller batch and accumulate gradients over several");
  }
  return objective == Objective::causal ? batch * sequence : batch * static_cast<int>(masked_tokens(sequence));
}

Sampler::Sampler(const Corpus& corpus, Objective objective, int sequence, std::uint64_t seed)
    : m_corpus(corpus), m_objective(objective), m_sequence(static_cast<std::size_t>(sequence)), m_seed(seed) {
  if (sequence < 1) throw InputError("sequence", std::to_string(sequence) + " tokens make no sample", "set at least 1");
  const std::size_t needed = window_tokens(objective, m_sequence);
  check_length(corpus, "training", corpus.train(), needed);
  if (!corpus.validation().empty()) check_length(corpus, "validation", corpus.validation(), needed);
}

template <class WindowOf>
void Sampler::fill(const std::vector<int>& tokens, int count, const WindowOf& window_of, Batch& batch) const {
  const int sequence = static_cast<int>(m_sequence);
  const auto rows = static_cast<std::size_t>(predictions(m_objective, count, sequence));
  const auto rows_per_sample = static_cast<std::size_t>(predictions(m_objective, 1, sequence));
  batch.input.resize(static_cast<std::size_t>(count) * m_sequence);
  batch.predicted.resize(rows);
  batch.target.resize(rows);
  std::vector<int> positions(m_objective == Objective::masked ? m_sequence : 0);
  for (std::size_t sample = 0; sample < static_cast<std::size_t>(count); ++sample) {
    const Window window = window_of(sample);
    const int* text = tokens.data() + window.begin;
    int* input = batch.input.data() + sample * m_sequence;
    int* predicted = batch.predicted.data() + sample * rows_per_sample;
    int* target = batch.target.data() + sample * rows_per_sample;
    std::copy_n(text, m_sequence, input);
    if (m_objective == Objective::causal) {
      std::iota(predicted, predicted + m_sequence, static_cast<int>(sample * m_sequence));
      std::copy_n(text + 1, m_sequence, target);
    } else {
      mask(m_corpus, window.mask_key, rows_per_sample, positions, {input, sample * m_sequence, predicted, target});
    }
  }
}

void Sampler::draw(std::uint64_t step, std::uint64_t first_sample, int count, Batch& batch) const {
  const std::vector<int>& tokens = m_corpus.train();
  const std::uint64_t begins = tokens.size() - window_tokens(m_objective, m_sequence) + 1;
  const std::uint64_t key = stream_key(m_seed, Stream::data);
  fill(
      tokens, count,
      [&](std::size_t sample) -> Window {
        const Philox4 random = philox(key, step, first_sample + sample);
        return {join(random.word[0], random.word[1]) % begins, join(random.word[2], random.word[3])};
      },
      batch);
}

void Sampler::draw_validation(std::uint64_t first_sample, int count, Batch& batch) const {
  const std::vector<int>& tokens = m_corpus.validation();
  const std::size_t needed = window_tokens(m_objective, m_sequence);
  check_length(m_corpus, "validation", tokens, needed);
  const double begins = static_cast<double>(tokens.size() - needed + 1);
  const std::uint64_t key = stream_key(m_seed, Stream::validation);
  fill(
      tokens, count,
      [&](std::size_t sample) -> Window {
        // Multiples of the golden ratio modulo 1 in 64-bit fixed point: for every n, the gaps between the first n have
        // at most three lengths (three-gap theorem). With 53 bits the product rounds to less than `begins`.
        const std::uint64_t fraction = (first_sample + sample) * 0x9E3779B97F4A7C15ull;
        const double place = static_cast<double>(fraction >> 11) * 0x1p-53;
        const Philox4 random = philox(key, 0, first_sample + sample);
        return {static_cast<std::size_t>(place * begins), join(random.word[0], random.word[1])};
      },
      batch);
}

}  // namespace onebit::data
