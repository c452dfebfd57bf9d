#include "optim/rates/clipping.hpp"

namespace onebit::optim {

template <class Exec>
double square_norm(const Exec& exec, const OrderedSum<Exec>& sum, const Vector<Exec, float>& vector) {
  return sum(
      exec, "OneBit::optim::l2_norm",
      KOKKOS_LAMBDA(std::size_t i) { return static_cast<double>(vector(i)) * static_cast<double>(vector(i)); });
}

template <class Exec>
void scale(const Exec& exec, float factor, const Vector<Exec, float>& vector) {
  if (factor == 1) return;
  for_each(
      exec, "OneBit::optim::scale", vector.extent(0), KOKKOS_LAMBDA(std::size_t i) { vector(i) *= factor; });
  fence(exec, "OneBit::optim::scale");
}

#define ONEBIT_INSTANTIATE(Exec)                                                                 \
  template double square_norm(const Exec&, const OrderedSum<Exec>&, const Vector<Exec, float>&); \
  template void scale(const Exec&, float, const Vector<Exec, float>&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
