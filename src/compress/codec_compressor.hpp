#pragma once
/// \file codec_compressor.hpp
/// The kernels of all codecs. A thread takes the elements of a word, 32, in a loop of fixed length where they lie in
/// one group (almost always), and looks up the scales once; on a device a warp takes them.

#include <algorithm>

#include "compress/decoding_compressor.hpp"
#include "compress/encode_word.hpp"
#include "compress/group_scales.hpp"

namespace onebit::compress {

/// codes ← the codes of the elements at a cursor.
template <class Codec>
struct Encode {
  const Codec& codec;
  const std::uint32_t* scales;
  const float* c;
  std::uint32_t* codes;

  KOKKOS_FORCEINLINE_FUNCTION void operator()(std::size_t group, std::size_t first, std::size_t last) const {
    const auto values = codec.values(scales + group * Codec::scales);
    for (std::size_t j = first; j < last; ++j) codes[j] = codec.encode(values, c[j]);
  }
};

/// A codec (compress/codecs.hpp) as a compressor (compressor.hpp). Only its scales need the codec: codecs of one code
/// share all other kernels, which take most of a compiler's time.
template <class Exec, class Codec>
class CodecCompressor final : public DecodingCompressor<Exec, typename Codec::Code> {
public:
  using Code = typename Codec::Code;
  using DecodingCompressor<Exec, Code>::message_words;

  CodecCompressor(const Layout& layout, const Codec& codec)
      : DecodingCompressor<Exec, Code>(layout, codec), m_scales(layout, codec, m_table.group_begins) {}

  // One pass compensates and encodes. The statistics follow while c is in the cache.
  void encode(const Exec& exec, const Compression<Exec>& compression, int chunk, Range range) const override {
    const Region region("OneBit::compress::encode");
    encode_words(exec, compression, chunk, 1, range);
    // Blocks that end in this range, wherever they began, are complete now.
    const std::size_t chunk_begin = m_layout.chunk_begins[chunk], chunk_end = m_layout.chunk_begins[chunk + 1];
    const auto blocks_that_end_by = [&](std::size_t word) {
      const std::size_t element = std::min(chunk_end, chunk_begin + word * bits_per_word);
      const auto ends = m_layout.block_begins.begin() + 1;
      return static_cast<std::size_t>(std::upper_bound(ends, m_layout.block_begins.end(), element) - ends);
    };
    m_scales.take_statistics(exec, compression, blocks_that_end_by(range.begin), blocks_that_end_by(range.end));
  }

  void encode(const Exec& exec, const Compression<Exec>& compression) const override {
    if constexpr (is_host<Exec>) {
      const int end = compression.first_chunk + compression.chunks;
      for (int chunk = compression.first_chunk; chunk < end; ++chunk)
        for (const Range& range : ranges<Exec>(m_layout.words)) encode(exec, compression, chunk, range);
    } else {
      const Region region("OneBit::compress::encode");
      const std::size_t first_group = compression.first_chunk * m_layout.groups;
      encode_words(exec, compression, compression.first_chunk, compression.chunks, {0, m_layout.words});
      m_scales.take_statistics(exec, compression, m_layout.group_blocks[first_group],
                               m_layout.group_blocks[first_group + compression.chunks * m_layout.groups]);
    }
  }

  void finish(const Exec& exec, const Compression<Exec>& compression) const override {
    const Region region("OneBit::compress::finish");
    m_scales.write(exec, compression, message_words());
    if constexpr (!Codec::codes_before_scales) write_codes(exec, compression);
  }

  double residual_l2(const Exec& exec, int first_chunk, int chunks, const Feedback<Exec>& feedback) const override {
    return m_scales.residual_l2(exec, first_chunk, chunks, feedback);
  }

  // The steps of `encode` and `finish`. They are public because they hold lambdas for the device.

  /// c and, where they need no scales, the codes of one range of each of some chunks.
  void encode_words(const Exec& exec, const Compression<Exec>& compression, int first_chunk, int chunks,
                    Range range) const {
    if (compression.mean.senders > 0)
      encode_from<SourceKind::messages>(exec, compression, first_chunk, chunks, range);
    else if (compression.momentum.old.extent(0) > 0)
      encode_from<SourceKind::momentum>(exec, compression, first_chunk, chunks, range);
    else
      encode_from<SourceKind::vector>(exec, compression, first_chunk, chunks, range);
  }
  template <SourceKind kind>
  void encode_from(const Exec& exec, const Compression<Exec>& compression, int first_chunk, int chunks,
                   Range range) const {
    // A bucket is encoded beside the backward pass. `for_each_word` adds a table and a few numbers to the arguments.
    static_assert(locks_large_launches<Exec> || sizeof(EncodeWord<Exec, Code, kind>) + sizeof(WordTable<Exec>) <= 448);
    for_each_word(exec, "OneBit::compress::compensate", m_table, first_chunk, chunks, range,
                  EncodeWord<Exec, Code, kind>{m_code, m_table, compression, message_words(),
                                               m_layout.chunk_begins[compression.first_chunk]});
  }

  /// Writes the planes of each chunk into its message.
  void write_codes(const Exec& exec, const Compression<Exec>& compression) const {
    const WordTable<Exec> table = m_table;
    const Code code = m_code;
    const Compression<Exec> own = compression;
    const std::size_t length = message_words(), base = m_layout.chunk_begins[own.first_chunk];
    for_each_word(
        exec, "OneBit::compress::write_codes", table, own.first_chunk, own.chunks, {0, m_layout.words},
        KOKKOS_LAMBDA(const Cursor& cursor) {
          std::uint32_t* const message = own.messages.data() + (cursor.chunk - own.first_chunk) * length;
          std::uint32_t codes[WordTable<Exec>::per_thread] = {};
          float c_values[WordTable<Exec>::per_thread];
          const float* const c =
              load<Exec>(own.feedback.c.data() + (cursor.begin - base), table.length(cursor), c_values);
          table.for_each_group(cursor, Encode<Code>{code, message, c, codes});
          pack<Exec>(table, cursor, codes, code.planes,
                     message + table.groups * Code::scales + cursor.word * code.planes);
        });
  }

private:
  using DecodingCompressor<Exec, Code>::m_layout, DecodingCompressor<Exec, Code>::m_code,
      DecodingCompressor<Exec, Code>::m_table;

  GroupScales<Exec, Codec> m_scales;
};

}  // namespace onebit::compress
