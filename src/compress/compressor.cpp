#include "compress/compressor.hpp"

#include "compress/codec_compressor.hpp"

namespace onebit::compress {

template <class Exec>
void Compressor<Exec>::compress(const Exec& exec, const Compression<Exec>& compression) const {
  encode(exec, compression);
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
  std::unique_ptr<const Compressor<Exec>> made;
  const auto make = [&](const auto& codec) {
    made = std::make_unique<CodecCompressor<Exec, std::decay_t<decltype(codec)>>>(layout, codec);
  };
  Compressors::visit(options.kind, [&](auto line) { line.visit(options, make); });
  return made;
}

#define ONEBIT_INSTANTIATE(Exec)   \
  template class Compressor<Exec>; \
  template std::unique_ptr<const Compressor<Exec>> make_compressor(const Layout&, const Options&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::compress
