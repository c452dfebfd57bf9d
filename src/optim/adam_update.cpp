#include "optim/adam_update.hpp"

namespace onebit::optim {

template <class Exec>
void update_all(const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates, const Vector<Exec, float>& g,
                const Vector<Exec, float>& m, const Vector<Exec, float>& v, const Vector<Exec, float>& x) {
  for_each_with_rate(
      exec, "OneBit::optim::adam", m.extent(0), rates, KOKKOS_LAMBDA(std::size_t i, const Rate& rate) {
        const float gradient = update.gradient_factor * g(i);
        m(i) = update.momentum(m(i), gradient);
        v(i) = update.variance(v(i), gradient);
        x(i) = update.apply(x(i), m(i), v(i), rate);
      });
}

template <class Exec>
void update_momentum(const Exec& exec, const AdamUpdate& update, const Vector<Exec, float>& g,
                     const Vector<Exec, float>& m) {
  for_each(
      exec, "OneBit::optim::local_momentum", m.extent(0),
      KOKKOS_LAMBDA(std::size_t i) { m(i) = update.momentum(m(i), update.gradient_factor * g(i)); });
}

template <class Exec>
void update_parameters(const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates,
                       const Vector<Exec, float>& m, const Vector<Exec, float>& v, const Vector<Exec, float>& x) {
  for_each_with_rate(
      exec, "OneBit::optim::update_parameters", m.extent(0), rates,
      KOKKOS_LAMBDA(std::size_t i, const Rate& rate) { x(i) = update.apply(x(i), m(i), v(i), rate); });
}

template <class Exec>
void update_parameters(const Exec& exec, const AdamUpdate& update, const Rates<Exec>& rates,
                       const compress::AnyDecoder<Exec>& m, const Vector<Exec, float>& v,
                       const Vector<Exec, float>& x) {
  for_each_decoded_with_rate(
      exec, "OneBit::optim::decompress_update", m, rates, x,
      KOKKOS_LAMBDA(std::size_t i, float momentum, const Rate& rate) {
        return update.apply(x(i), momentum, v(i), rate);
      });
}

template <class Exec>
double variance_l1(const Exec& exec, const OrderedSum<Exec>& sum, const Vector<Exec, float>& v) {
  return sum(
      exec, "OneBit::optim::variance_l1", KOKKOS_LAMBDA(std::size_t i) { return v(i); });
}

#define ONEBIT_INSTANTIATE(Exec)                                                                                  \
  template void update_all(const Exec&, const AdamUpdate&, const Rates<Exec>&, const Vector<Exec, float>&,        \
                           const Vector<Exec, float>&, const Vector<Exec, float>&, const Vector<Exec, float>&);   \
  template void update_momentum(const Exec&, const AdamUpdate&, const Vector<Exec, float>&,                       \
                                const Vector<Exec, float>&);                                                      \
  template void update_parameters(const Exec&, const AdamUpdate&, const Rates<Exec>&, const Vector<Exec, float>&, \
                                  const Vector<Exec, float>&, const Vector<Exec, float>&);                        \
  template void update_parameters(const Exec&, const AdamUpdate&, const Rates<Exec>&,                             \
                                  const compress::AnyDecoder<Exec>&, const Vector<Exec, float>&,                  \
                                  const Vector<Exec, float>&);                                                    \
  template double variance_l1(const Exec&, const OrderedSum<Exec>&, const Vector<Exec, float>&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
