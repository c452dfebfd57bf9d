#pragma once
/// \file compressor.hpp
/// The compressors C of vectors on Views; docs/reference/algorithms.md defines each of them.
///
/// A compressor turns each element of a chunk into a code of p bits, which stands for a value that the scales of the
/// element's group fix. A chunk's message is the scales of its S slots (float bits, those of a slot side by side), and
/// then p words for each of its W runs of 32 elements: bit j of word p is bit p of the code of element j of the run.
/// Padding enters no scale, no residual and no average; its bits are sent as 0 and not read.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/kokkos.hpp"
#include "compress/decode.hpp"
#include "compress/layout.hpp"

namespace onebit::compress {

/// The code of an element c:
/// - `sign`         1 bit; ±s, + where c ≥ 0 (Tang et al., ICML 2021, Section 4.3)
/// - `sign_ternary` 2 bits; 0 where c = 0, else ±s
/// - `column`       1 bit; one of the group's two values, by c < 0 (Seide et al. 2014, CNTK)
/// - `nbit`         a whole number of steps of max|c| / (2^(bits−1) − 1), to nearest (QSGD's grid, Alistarh et al. 2017)
enum class Kind { sign, sign_ternary, column, nbit };
/// Magnitude s of a group: mean of absolute values, or root mean square; `sign_ternary` averages elements that are not 0.
enum class Scale { l1, l2 };
/// The two values of `column`: means of the negative and of the other elements, or a quarter and three quarters of the
/// way from the least to the greatest.
enum class Reconstruction { mean, range };

/// What a vector is compressed with.
struct Options {
  Kind kind = Kind::sign;
  Scale scale = Scale::l1;                               ///< of `sign` and `sign_ternary`
  int bits = 4;                                          ///< of `nbit`, 2 to 16
  Reconstruction reconstruction = Reconstruction::mean;  ///< of `column`
};

/// What error feedback carries from one compression to the next: c, and the scales that its message had. The residual
/// δ = c − C(c) is formed where the next compression reads it, and never written. Zero at first, where δ = 0.
template <class Exec>
struct Feedback {
  Vector<Exec, float> c;               ///< elements of the chunks that are compressed
  Vector<Exec, std::uint32_t> scales;  ///< (chunks * scale_words) float bits
};

/// A moving average whose old value is what messages stand for: old_share · C + new_share · (factor · x). The momentum of a
/// rank is one, and its old value the average that all ranks have received.
template <class Exec>
struct MovingAverage {
  float old_share = 0, new_share = 1, factor = 1;
  Vector<Exec, const std::uint32_t> old{};  ///< (chunks * message_words), of all chunks
};

/// The mean of what the senders of a chunk's messages compressed, (1/n) Σ_i C(c_i), added in their order.
template <class Exec>
struct MeanOfMessages {
  int senders = 0;
  Vector<Exec, const std::uint32_t> messages{};  ///< (senders * message_words)
};

/// A compression: what a worker does with all chunks (with Grouping::vector they share the scales of the whole vector),
/// and a server with one.
template <class Exec>
struct Compression {
  int first_chunk, chunks;
  Vector<Exec, const float> x;           ///< elements of these chunks, from the first one's begin
  Feedback<Exec> feedback;               ///< of the same elements
  Vector<Exec, std::uint32_t> messages;  ///< (chunks * message_words)
  MovingAverage<Exec> average{};         ///< is compressed instead of x, where it has an old value
  MeanOfMessages<Exec> mean{};           ///< is compressed instead of x, where it has senders; of one chunk
  float residual_factor = 1;             ///< of δ as it is added; 1 adds the same bits as no factor
};

/// A chunk of so many runs, cut for work on one part after the other: 32 KiB of signs where caches count, and enough to
/// fill a GPU.
template <class Exec>
std::vector<Runs> parts(std::size_t words) {
  constexpr std::size_t runs = is_host<Exec> ? std::size_t{1} << 13 : std::size_t{1} << 17;
  std::vector<Runs> all;
  for (std::size_t begin = 0; begin < words; begin += runs) all.push_back({begin, std::min(words, begin + runs)});
  return all;
}

/// Compresses, averages and decompresses the chunks of one layout.
///
/// c = x + f δ with a factor f; messages ← C(c); δ ← c − C(c). A compression is `encode` for all runs of all its
/// chunks, ascending in each chunk, and then `finish`; so the codes of one part can travel while the next part is
/// encoded. Scales come last in any case.
template <class Exec>
class Compressor {
public:
  using Words = Vector<Exec, std::uint32_t>;

  virtual ~Compressor() = default;

  virtual const Layout& layout() const = 0;
  /// Words of a chunk's message, of the scales at its begin, and of each run behind them.
  virtual std::size_t message_words() const = 0;
  virtual std::size_t scale_words() const = 0;
  virtual std::size_t run_words() const = 0;
  /// Whether codes are known before the scales are: `encode` writes them then, else `finish`.
  virtual bool codes_before_scales() const = 0;

  /// c ← x + f δ of some runs of a chunk, and their codes.
  virtual void encode(const Exec& exec, const Compression<Exec>& compression, int chunk, Runs runs) const = 0;
  /// The scales, and the codes that depend on them, into all messages.
  virtual void finish(const Exec& exec, const Compression<Exec>& compression) const = 0;
  /// `encode` for everything, and `finish`.
  void compress(const Exec& exec, const Compression<Exec>& compression) const;

  /// The feedback with δ = 0 for so many chunks from the first one.
  Feedback<Exec> no_feedback(int first_chunk, int chunks) const;
  /// residual ← δ. \param residual like feedback.c
  virtual void residual(const Exec& exec, int first_chunk, int chunks, const Feedback<Exec>& feedback,
                        const Vector<Exec, float>& residual) const = 0;
  /// ‖δ‖₂; fences.
  virtual double residual_l2(const Exec& exec, int first_chunk, int chunks, const Feedback<Exec>& feedback) const = 0;

  /// x ← the values that the messages of some chunks stand for.
  /// \param messages (chunks * message_words) \param x elements of these chunks, from the first one's begin
  virtual void decompress(const Exec& exec, int first_chunk, int chunks, const Words& messages,
                          const Vector<Exec, float>& x) const = 0;
  /// The same for kernels that read the values of all chunks as they go. \param messages (chunks * message_words)
  virtual AnyDecoder<Exec> decoder(const Vector<Exec, const std::uint32_t>& messages) const = 0;
};

/// Holds device copies of the layout's tables and the scratch space of the statistics.
template <class Exec>
std::unique_ptr<const Compressor<Exec>> make_compressor(const Layout& layout, const Options& options);

}  // namespace onebit::compress
