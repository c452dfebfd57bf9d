#pragma once
/// \file sign.hpp
/// The 1-bit compressor C with error feedback (Tang et al., ICML 2021, Section 4; "1-bit compression"), on Views.
///
/// For a group B of a vector c: s = ‖c_B‖₁ / |B| (or ‖c_B‖₂ / √|B|), and C(c)_j = s where c_j ≥ 0, else −s, so that
/// +0 and −0 both become +s. Padding enters no norm, no residual and no average.

#include <cstdint>

#include "base/kokkos.hpp"
#include "compress/layout.hpp"

namespace onebit::compress {

/// Magnitude of a group: mean of absolute values, or root mean square.
enum class Scale { l1, l2 };

/// Compresses, averages and decompresses the chunks of one layout. Holds device copies of the layout's tables and the
/// scratch space of the norms.
template <class Exec>
class SignCompressor {
public:
  using Words = Vector<Exec, std::uint32_t>;

  SignCompressor(const Layout& layout, Scale scale);

  const Layout& layout() const { return m_layout; }

  /// c = x + residual; messages ← C(c); residual ← c − C(c), for `chunks` chunks from `first_chunk`. A worker
  /// compresses all chunks, and with Grouping::vector they share the scale of the whole vector; a server one.
  /// \param x, residual elements of these chunks, from the first one's begin
  /// \param messages    (chunks * message_words)
  void compress(const Exec& exec, int first_chunk, int chunks, const Vector<Exec, const float>& x,
                const Vector<Exec, float>& residual, const Words& messages) const;

  /// mean_j = (1/senders) Σ_i C(c_i)_j over the messages of one chunk, added in the order of the senders.
  /// \param messages (senders * message_words) \param mean (chunk_length), padding is not written
  void average_chunk(const Exec& exec, int chunk, int senders, const Words& messages,
                     const Vector<Exec, float>& mean) const;

  /// x ← the values that the messages of all chunks stand for. \param messages (chunks * message_words) \param x (length)
  void decompress_all(const Exec& exec, const Words& messages, const Vector<Exec, float>& x) const;

private:
  Layout m_layout;
  Scale m_scale;
  Vector<Exec, std::size_t> m_slot_begins, m_slot_pieces, m_piece_begins;
  Vector<Exec, std::uint32_t> m_word_slots;
  Vector<Exec, double> m_piece_sums, m_slot_sums, m_total;
};

}  // namespace onebit::compress
