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
void clear(const Exec& exec, const Feedback<Exec>& feedback) {
  Kokkos::deep_copy(exec, feedback.c, 0.0f);
  Kokkos::deep_copy(exec, feedback.scales, 0u);
}

template <class Exec>
Vector<Exec, float> residual(const Exec& exec, const Compressor<Exec>& compressor, int first_chunk, int chunks,
                             const Feedback<Exec>& feedback) {
  Vector<Exec, float> values("OneBit::compress::residual", feedback.c.extent(0));
  compressor.residual(exec, first_chunk, chunks, feedback, values);
  fence(exec, "OneBit::compress::residual");
  return values;
}

// With scales of 0, C(c) = 0 and c is the residual.
template <class Exec>
void set_residual(const Exec& exec, const Vector<Exec, const float>& residual, Feedback<Exec>& feedback) {
  Kokkos::deep_copy(exec, feedback.c, Kokkos::subview(residual, std::make_pair(std::size_t{0}, feedback.c.extent(0))));
  Kokkos::deep_copy(exec, feedback.scales, 0u);
  fence(exec, "OneBit::compress::set_residual");
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

#define ONEBIT_INSTANTIATE(Exec)                                                                                \
  template class Compressor<Exec>;                                                                              \
  template void clear(const Exec&, const Feedback<Exec>&);                                                      \
  template Vector<Exec, float> residual(const Exec&, const Compressor<Exec>&, int, int, const Feedback<Exec>&); \
  template void set_residual(const Exec&, const Vector<Exec, const float>&, Feedback<Exec>&);                   \
  template std::unique_ptr<const Compressor<Exec>> make_compressor(const Layout&, const Options&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::compress
