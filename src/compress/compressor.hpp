#pragma once
/// \file compressor.hpp
/// The compressors C of vectors on Views; docs/reference/algorithms/compressors.md defines each of them.
///
/// A compressor turns each element of a chunk into a code of p bits, which stands for a value that the scales of the
/// element's group fix. A chunk's message is the scales of its G groups (float bits, those of a group side by side),
/// and then, for each 32 elements of the chunk, p words: bit j of word p is bit p of the code of element j. Padding
/// enters no scale, no residual and no average; its bits are sent as 0 and not read.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/kokkos.hpp"
#include "compress/decode.hpp"
#include "compress/layout.hpp"

namespace onebit::compress {

/// What error feedback carries from one compression to the next: c, and the scales of its message. The residual
/// δ = c − C(c) is formed where the next compression reads it, and never written. At first both are 0, and so is δ.
template <class Exec>
struct Feedback {
  Vector<Exec, float> c;               ///< elements of the chunks that are compressed
  Vector<Exec, std::uint32_t> scales;  ///< (chunks * scale_words) float bits
};

/// The shares of a momentum: beta · m + one_minus_beta · (gradient_scale · g), with m the old momentum.
struct MomentumShares {
  float beta = 0, one_minus_beta = 1, gradient_scale = 1;

  KOKKOS_FORCEINLINE_FUNCTION float operator()(float m, float g) const {
    return beta * m + one_minus_beta * (gradient_scale * g);
  }
};

/// A momentum whose old value is held as messages. It is what a rank of 1-bit Adam compresses: the old value is the
/// average that all ranks have received.
template <class Exec>
struct Momentum {
  MomentumShares shares{};
  Vector<Exec, const std::uint32_t> old{};  ///< (chunks * message_words), of all chunks; empty: x itself is compressed
};

/// The mean of what the senders of a chunk's messages compressed, (1/n) Σ_i C(c_i), added in their order.
template <class Exec>
struct MeanOfMessages {
  int senders = 0;
  Vector<Exec, const std::uint32_t> messages{};  ///< (senders * message_words)
};

/// A compression. A worker compresses all chunks (with Grouping::vector they share the scales of the whole vector), a
/// server one.
template <class Exec>
struct Compression {
  int first_chunk, chunks;
  Vector<Exec, const float> x;           ///< elements of these chunks, from the start of the first
  Feedback<Exec> feedback;               ///< of the same elements
  Vector<Exec, std::uint32_t> messages;  ///< (chunks * message_words)
  Momentum<Exec> momentum{};             ///< of x is compressed instead of x, where it has an old value
  MeanOfMessages<Exec> mean{};           ///< is compressed instead of x, where it has senders; of one chunk
  float residual_factor = 1;             ///< f, by which δ is multiplied; 1 gives the same bits as no factor
};

/// The words of a chunk as ranges to work on one after the other: 32 KiB of signs where caches count. On a GPU a range
/// is long, because each costs launches; it is the part of a chunk that travels while the next is encoded.
template <class Exec>
std::vector<Range> ranges(std::size_t words) {
  constexpr std::size_t length = is_host<Exec> ? std::size_t{1} << 13 : std::size_t{1} << 20;
  std::vector<Range> all;
  for (std::size_t begin = 0; begin < words; begin += length) all.push_back({begin, std::min(words, begin + length)});
  return all;
}

/// Compresses, averages and decompresses the chunks of one layout.
///
/// c = x + f δ with a factor f; messages ← C(c); δ ← c − C(c). A compression is `encode` for all words of all its
/// chunks, ascending in each chunk, and then `finish`; so the codes of one range can travel while the next range is
/// encoded. The scales always come last.
template <class Exec>
class Compressor {
public:
  using Words = Vector<Exec, std::uint32_t>;

  virtual ~Compressor() = default;

  virtual const Layout& layout() const = 0;
  /// Words of a chunk's message, and of the scales at its start.
  virtual std::size_t message_words() const = 0;
  virtual std::size_t scale_words() const = 0;
  /// Words of the message for each 32 elements: bits of a code.
  virtual std::size_t planes() const = 0;
  /// True where codes are known before the scales, so that `encode` writes them; else `finish` does.
  virtual bool codes_before_scales() const = 0;

  /// c ← x + f δ for the elements of a range of a chunk's words, and writes their codes.
  virtual void encode(const Exec& exec, const Compression<Exec>& compression, int chunk, Range range) const = 0;
  /// The same for all words of all chunks: by ranges on the host, so that statistics are taken while c is in the cache,
  /// and at once on a GPU.
  virtual void encode(const Exec& exec, const Compression<Exec>& compression) const = 0;
  /// Writes the scales, and the codes that depend on them, into all messages.
  virtual void finish(const Exec& exec, const Compression<Exec>& compression) const = 0;
  /// `encode` for all words of all chunks, and `finish`.
  void compress(const Exec& exec, const Compression<Exec>& compression) const;

  /// Feedback with δ = 0 for chunks [first_chunk, first_chunk + chunks).
  Feedback<Exec> no_feedback(int first_chunk, int chunks) const;
  /// residual ← δ. \param residual like feedback.c
  virtual void residual(const Exec& exec, int first_chunk, int chunks, const Feedback<Exec>& feedback,
                        const Vector<Exec, float>& residual) const = 0;
  /// ‖δ‖₂; fences.
  virtual double residual_l2(const Exec& exec, int first_chunk, int chunks, const Feedback<Exec>& feedback) const = 0;

  /// x ← the values of the messages of some chunks.
  /// \param messages (chunks * message_words) \param x elements of these chunks, from the start of the first
  virtual void decompress(const Exec& exec, int first_chunk, int chunks, const Words& messages,
                          const Vector<Exec, float>& x) const = 0;
  /// x ← (1/n) Σ of what n senders sent of one chunk, added in their order. \param x (elements of the chunk)
  virtual void average(const Exec& exec, int chunk, const MeanOfMessages<Exec>& mean,
                       const Vector<Exec, float>& x) const = 0;
  /// For kernels that read the values of all chunks one by one. \param messages (chunks * message_words)
  virtual AnyDecoder<Exec> decoder(const Vector<Exec, const std::uint32_t>& messages) const = 0;
};

/// δ of the next compression ← 0; does not fence.
template <class Exec>
void clear(const Exec& exec, const Feedback<Exec>& feedback);
/// δ of some chunks; fences.
template <class Exec>
Vector<Exec, float> residual(const Exec& exec, const Compressor<Exec>& compressor, int first_chunk, int chunks,
                             const Feedback<Exec>& feedback);
/// δ of the next compression ← residual; fences. \param residual like feedback.c, and longer if the rest is padding
template <class Exec>
void set_residual(const Exec& exec, const Vector<Exec, const float>& residual, Feedback<Exec>& feedback);

/// The compressor of `options.kind`; none for CompressorKind::none. It holds device copies of the layout's tables and
/// the scratch space of the statistics.
template <class Exec>
std::unique_ptr<const Compressor<Exec>> make_compressor(const Layout& layout, const Options& options);

}  // namespace onebit::compress
