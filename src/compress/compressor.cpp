/// \file compressor.cpp
/// The table of compressors: each is a codec in the pipeline of codec_compressor.hpp.

#include "compress/compressor.hpp"

#include "compress/codec_compressor.hpp"

namespace onebit::compress {
namespace {

template <class Exec, class Codec>
std::unique_ptr<const Compressor<Exec>> make(const Layout& layout, const Codec& codec) {
  return std::make_unique<CodecCompressor<Exec, Codec>>(layout, codec);
}

}  // namespace

template <class Exec>
void Compressor<Exec>::compress(const Exec& exec, const Compression<Exec>& compression) const {
  // In parts, whose statistics are taken while c is in the cache.
  for (int chunk = compression.first_chunk; chunk < compression.first_chunk + compression.chunks; ++chunk)
    for (const Runs& part : parts<Exec>(layout().words)) encode(exec, compression, chunk, part);
  finish(exec, compression);
}

template <class Exec>
Feedback<Exec> Compressor<Exec>::no_feedback(int first_chunk, int chunks) const {
  const std::vector<std::size_t>& begins = layout().chunk_begins;
  return {Vector<Exec, float>("OneBit::compress::compensated", begins[first_chunk + chunks] - begins[first_chunk]),
          Vector<Exec, std::uint32_t>("OneBit::compress::sent_scales", chunks * scale_words())};
}

template <class Exec>
std::unique_ptr<const Compressor<Exec>> make_compressor(const Layout& layout, const Options& options) {
  const bool l1 = options.scale == Scale::l1, mean = options.reconstruction == Reconstruction::mean;
  switch (options.kind) {
    case Kind::sign:
      return l1 ? make<Exec>(layout, SignCodec<SumOfMagnitudes>()) : make<Exec>(layout, SignCodec<SumOfSquares>());
    case Kind::sign_ternary:
      return l1 ? make<Exec>(layout, TernaryCodec<SumOfMagnitudes>())
                : make<Exec>(layout, TernaryCodec<SumOfSquares>());
    case Kind::column:
      return mean ? make<Exec>(layout, ColumnMeanCodec()) : make<Exec>(layout, ColumnRangeCodec());
    case Kind::nbit:
      break;
  }
  return make<Exec>(layout, NBitCodec(options.bits));
}

#define ONEBIT_INSTANTIATE(Exec)   \
  template class Compressor<Exec>; \
  template std::unique_ptr<const Compressor<Exec>> make_compressor(const Layout&, const Options&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::compress
