#pragma once
/// \file compressor.hpp
/// The compressors C of vectors on Views; docs/algorithms.md defines each of them.
///
/// A compressor turns each element of a chunk into a code of p bits, which stands for a value that the scales of the
/// element's group fix. A chunk's message is the scales of its S slots (float bits, those of a slot side by side), and
/// then p words for each of its W runs of 32 elements: bit j of word p is bit p of the code of element j of the run.
/// Padding enters no scale, no residual and no average; its bits are sent as 0 and not read.

#include <cstdint>
#include <memory>

#include "base/kokkos.hpp"
#include "compress/layout.hpp"

namespace onebit::compress {

/// The code of an element c:
/// - `sign`         1 bit; ±s, + where c ≥ 0 (Tang et al., ICML 2021, Section 4)
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

/// Compresses, averages and decompresses the chunks of one layout.
template <class Exec>
class Compressor {
public:
  using Words = Vector<Exec, std::uint32_t>;

  virtual ~Compressor() = default;

  virtual const Layout& layout() const = 0;
  /// Words of a chunk's message.
  virtual std::size_t message_words() const = 0;

  /// c = x + residual; messages ← C(c); residual ← c − C(c), for `chunks` chunks from `first_chunk`. A worker
  /// compresses all chunks, and with Grouping::vector they share the scales of the whole vector; a server one.
  /// \param x, residual elements of these chunks, from the first one's begin
  /// \param messages    (chunks * message_words)
  virtual void compress(const Exec& exec, int first_chunk, int chunks, const Vector<Exec, const float>& x,
                        const Vector<Exec, float>& residual, const Words& messages) const = 0;

  /// mean_j = (1/senders) Σ_i C(c_i)_j over the messages of one chunk, added in the order of the senders.
  /// \param messages (senders * message_words) \param mean (chunk_length), padding is not written
  virtual void average_chunk(const Exec& exec, int chunk, int senders, const Words& messages,
                             const Vector<Exec, float>& mean) const = 0;

  /// x ← the values that the messages of all chunks stand for. \param messages (chunks * message_words) \param x (length)
  virtual void decompress_all(const Exec& exec, const Words& messages, const Vector<Exec, float>& x) const = 0;
};

/// Holds device copies of the layout's tables and the scratch space of the statistics.
template <class Exec>
std::unique_ptr<const Compressor<Exec>> make_compressor(const Layout& layout, const Options& options);

}  // namespace onebit::compress
