/// \file mutants.cpp
/// Kernels with known answers. With a header of src in which one synchronisation is spoilt (mutate.py) this must fail.
/// ONEBIT_CHECK_… chooses the checks. The exit status says whether all answers are right.

#include <cstdio>
#include <vector>

#include "base/device/parallel.hpp"
#include "base/device/warps.hpp"
#ifdef ONEBIT_CHECK_barrier
#include "linalg/tiled_product.hpp"
#endif
#ifdef ONEBIT_CHECK_shuffle
#include "nn/attention/flash_attention.hpp"
#endif
#ifdef ONEBIT_CHECK_vote
#include "linalg/packing.hpp"
#endif

namespace {

using namespace onebit;

template <class View>
auto to_host(const View& view) {
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
}

#ifdef ONEBIT_CHECK_barrier
bool product_is_right() {
  constexpr int n = 70, k = 40;
  std::vector<float> a(n * k), b(k * n);
  for (int i = 0; i < n * k; ++i) {
    a[i] = static_cast<float>(i % 7 - 3);
    b[i] = static_cast<float>(i % 5 - 2);
  }
  const auto left = copy_to_device<GpuExec>("OneBit::test::a", a),
             right = copy_to_device<GpuExec>("OneBit::test::b", b);
  const auto c = make_uninitialized<GpuExec, float>("OneBit::test::c", n * n);
  using linalg::Transpose;
  linalg::TiledProduct<GpuExec, float, float>{
      Transpose::no, Transpose::no, n, n, k, 1, 0, {{left.data(), k}, 0}, {{right.data(), n}, 0}, {{c.data(), n}, 0}}
      .run(GpuExec());
  const auto result = to_host(c);
  bool right_sums = true;
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l) sum += a[i * k + l] * b[l * n + j];
      right_sums = right_sums && result(i * n + j) == sum;
    }
  return right_sums;
}
#endif

#ifdef ONEBIT_CHECK_fence
bool sum_is_right() {
  constexpr std::size_t length = 5000;
  const OrderedSum<GpuExec> sum(length);
  return sum(
             GpuExec(), "OneBit::test::sum", KOKKOS_LAMBDA(std::size_t) { return 1.0f; }) == length;
}
#endif

#ifdef ONEBIT_CHECK_shuffle
bool sums_of_four_lanes_are_right() {
  const Vector<GpuExec, float> sums("OneBit::test::sums", 32);
  for_each_block(
      GpuExec(), "OneBit::test::sums", 1, KOKKOS_LAMBDA(std::size_t, std::size_t number) {
        const nn::flash::Lane<GpuExec> lane{static_cast<int>(number)};
        sums(number) = lane.sum_over_row(static_cast<float>(number));
      });
  const auto result = to_host(sums);
  bool right = true;
  for (int lane = 0; lane < 32; ++lane) right = right && result(lane) == static_cast<float>(lane / 4 * 16 + 6);
  return right;
}
#endif

#ifdef ONEBIT_CHECK_vote
bool packing_is_right() {
  constexpr int rows = 40, columns = 70;
  const linalg::BitMatrix<GpuExec> bits("OneBit::test::bits", rows, columns);
  linalg::pack(GpuExec(), "OneBit::test::pack", rows, columns,
               KOKKOS_LAMBDA(int r, int c) { return (r * 3 + c * 5) % 7 % 2; }, {bits}, {});
  const auto words = to_host(bits.words);
  bool right = true;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c)
      right = right && (words(r, c / 32) >> c % 32 & 1u) == static_cast<unsigned>((r * 3 + c * 5) % 7 % 2);
  return right;
}
#endif

}  // namespace

int main() {
  const KokkosSession kokkos(1, 0);
  bool right = true;
#ifdef ONEBIT_CHECK_barrier
  right = right && product_is_right();
#endif
#ifdef ONEBIT_CHECK_fence
  right = right && sum_is_right();
#endif
#ifdef ONEBIT_CHECK_shuffle
  right = right && sums_of_four_lanes_are_right();
#endif
#ifdef ONEBIT_CHECK_vote
  right = right && packing_is_right();
#endif
  std::printf("%s\n", right ? "right" : "wrong");
  return right ? 0 : 1;
}
