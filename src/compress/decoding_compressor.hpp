#pragma once
/// \file decoding_compressor.hpp
/// What a compressor reads of messages and of its feedback. codec_compressor.hpp is what it writes.

#include <stdexcept>
#include <type_traits>

#include "compress/encode_word.hpp"

namespace onebit::compress {

/// \tparam Code of a codec: how its values become codes, and codes values
template <class Exec, class Code>
class DecodingCompressor : public Compressor<Exec> {
public:
  using typename Compressor<Exec>::Words;

  DecodingCompressor(const Layout& layout, const Code& code)
      : m_layout(layout), m_code(code), m_table(word_table<Exec>(layout)) {}

  const Layout& layout() const override { return m_layout; }
  std::size_t scale_words() const override { return m_layout.groups * Code::scales; }
  std::size_t planes() const override { return static_cast<std::size_t>(m_code.planes); }
  std::size_t message_words() const override { return scale_words() + m_layout.words * planes(); }
  bool codes_before_scales() const override { return Code::codes_before_scales; }

  void residual(const Exec& exec, int first_chunk, int chunks, const Feedback<Exec>& feedback,
                const Vector<Exec, float>& residual) const override {
    const Region region("OneBit::compress::residual");
    // Local names here and below, because a lambda on the device may not hold `this`.
    const WordTable<Exec> table = m_table;
    const Code code = m_code;
    const Feedback<Exec> own = feedback;
    const std::size_t scales = scale_words(), base = m_layout.chunk_begins[first_chunk];
    for_each_word(
        exec, "OneBit::compress::residual", table, first_chunk, chunks, {0, m_layout.words},
        KOKKOS_LAMBDA(const Cursor& cursor) {
          const std::size_t at = cursor.begin - base, first_scale = (cursor.chunk - first_chunk) * scales;
          const std::size_t count = table.length(cursor);
          float c_values[WordTable<Exec>::per_thread], residual_values[WordTable<Exec>::per_thread];
          const float* const c = load<Exec>(own.c.data() + at, count, c_values);
          float* const residuals = staging<Exec>(residual.data() + at, residual_values);
          table.for_each_group(cursor, [&](std::size_t group, std::size_t first, std::size_t last) {
            const auto values = code.values(own.scales.data() + first_scale + group * Code::scales);
            for (std::size_t j = first; j < last; ++j)
              residuals[j] = c[j] - code.decode(values, code.encode(values, c[j]));
          });
          store<Exec>(residuals, count, residual.data() + at);
        });
  }

  void decompress(const Exec& exec, int first_chunk, int chunks, const Words& messages,
                  const Vector<Exec, float>& x) const override {
    const Region region("OneBit::compress::decompress");
    const WordTable<Exec> table = m_table;
    const Code code = m_code;
    const std::size_t length = message_words(), base = m_layout.chunk_begins[first_chunk];
    for_each_word(
        exec, "OneBit::compress::decompress", table, first_chunk, chunks, {0, m_layout.words},
        KOKKOS_LAMBDA(const Cursor& cursor) {
          float values[WordTable<Exec>::per_thread];
          float* const elements = x.data() + (cursor.begin - base);
          float* const decoded = staging<Exec>(elements, values);
          decode(code, table, cursor, messages.data() + (cursor.chunk - first_chunk) * length, decoded);
          store<Exec>(decoded, table.length(cursor), elements);
        });
  }

  void average(const Exec& exec, int chunk, const MeanOfMessages<Exec>& mean,
               const Vector<Exec, float>& x) const override {
    const Region region("OneBit::compress::average");
    Compression<Exec> own{chunk, 1, {}, {}, {}};
    own.mean = mean;
    const EncodeWord<Exec, Code, SourceKind::messages> word{m_code, m_table, own, message_words(),
                                                            m_layout.chunk_begins[chunk]};
    for_each_word(
        exec, "OneBit::compress::average", m_table, chunk, 1, {0, m_layout.words}, KOKKOS_LAMBDA(const Cursor& cursor) {
          float values[WordTable<Exec>::per_thread] = {};
          word.take_mean(cursor, values);
          float* const elements = x.data() + (cursor.begin - word.base);
          const std::size_t count = word.table.length(cursor);
          for (std::size_t j = 0; j < count; ++j) elements[j * WordTable<Exec>::stride] = values[j];
        });
  }

  AnyDecoder<Exec> decoder(const Vector<Exec, const std::uint32_t>& messages) const override {
    using Own = Decoder<Exec, Code>;
    if constexpr (std::is_constructible_v<AnyDecoder<Exec>, Own>)
      return Own{m_code, m_table, static_cast<std::size_t>(m_layout.chunks), message_words(), messages};
    else
      throw std::logic_error("its codec is not in the table of compressors (compress/codecs.hpp)");
  }

protected:
  Layout m_layout;
  Code m_code;
  WordTable<Exec> m_table;
};

}  // namespace onebit::compress
