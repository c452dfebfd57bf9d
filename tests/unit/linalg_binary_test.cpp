/// \file linalg_binary_test.cpp
/// Binary products and the packing of their factors against plain loops over the bits: every tail, every path.

#include <algorithm>
#include <limits>
#include <string_view>

#include "../support.hpp"
#include "linalg/bits/binary_product.hpp"
#include "linalg/packing.hpp"

namespace onebit::linalg {
namespace {

/// A (rows, columns) matrix of small integers on the host.
struct Codes {
  int rows, columns;
  std::vector<std::uint8_t> values;

  Codes(int row_count, int column_count, int planes, std::uint64_t seed)
      : rows(row_count), columns(column_count), values(static_cast<std::size_t>(row_count) * column_count) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::uint8_t>(philox(seed, i, 7).word[0] & ((1u << planes) - 1));
  }
  int operator()(int r, int c) const { return values[static_cast<std::size_t>(r) * columns + c]; }
};

/// Uninitialised memory of a matrix of bits, whose every bit a packing must write: all bits are 1.
template <class Exec>
BitMatrix<Exec> full(int rows, int columns) {
  const BitMatrix<Exec> matrix("OneBit::test::bits", rows, columns);
  Kokkos::deep_copy(matrix.words, ~std::uint32_t{0});
  return matrix;
}
template <class Exec>
std::vector<BitMatrix<Exec>> full_planes(int planes, int rows, int columns) {
  std::vector<BitMatrix<Exec>> matrices;
  for (int p = 0; p < planes; ++p) matrices.push_back(full<Exec>(rows, columns));
  return matrices;
}

template <class Exec>
auto words_on_host(const BitMatrix<Exec>& matrix) {
  return Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), matrix.words);
}

/// Plane p of codes, bit by bit.
template <class Exec>
BitMatrix<Exec> plane_ref(const Codes& codes, int p) {
  const BitMatrix<Exec> matrix("OneBit::test::bits", codes.rows, codes.columns);
  const auto host = Kokkos::create_mirror_view(matrix.words);
  Kokkos::deep_copy(host, 0u);
  for (int r = 0; r < codes.rows; ++r)
    for (int c = 0; c < codes.columns; ++c)
      host(r, c / word_bits) |= (static_cast<std::uint32_t>(codes(r, c)) >> p & 1u) << c % word_bits;
  Kokkos::deep_copy(matrix.words, host);
  return matrix;
}
template <class Exec>
std::vector<BitMatrix<Exec>> planes_ref(const Codes& codes, int planes) {
  std::vector<BitMatrix<Exec>> matrices;
  for (int p = 0; p < planes; ++p) matrices.push_back(plane_ref<Exec>(codes, p));
  return matrices;
}

/// Σ_l (2 a(i, l) − (2^planes − 1)) (2 b(j, l) − 1), which is Σ_p 2^p of the products of signs.
std::vector<int> product_ref(const Codes& a, int planes, const Codes& b) {
  std::vector<int> sums;
  for (int i = 0; i < a.rows; ++i)
    for (int j = 0; j < b.rows; ++j) {
      int sum = 0;
      for (int l = 0; l < a.columns; ++l) sum += (2 * a(i, l) - ((1 << planes) - 1)) * (2 * b(j, l) - 1);
      sums.push_back(sum);
    }
  return sums;
}

/// What a product stores, and how often.
template <class Exec>
struct Stored {
  Vector<Exec, int> sums, calls;
  int n;

  Stored(int m, int columns)
      : sums("OneBit::test::sums", static_cast<std::size_t>(m) * columns),
        calls("OneBit::test::calls", static_cast<std::size_t>(m) * columns),
        n(columns) {}
  KOKKOS_FUNCTION void operator()(int i, int j, int sum) const {
    sums(static_cast<std::size_t>(i) * n + j) = sum;
    ++calls(static_cast<std::size_t>(i) * n + j);
  }
};

struct Shape {
  int m, n, k, planes = 1;
};

/// Runs `multiply(planes of A, b, stored)` and compares.
template <class Exec, class Multiply>
void expect_product(const Shape& shape, const Multiply& multiply) {
  SCOPED_TRACE(::testing::Message() << "m " << shape.m << " n " << shape.n << " k " << shape.k << " planes "
                                    << shape.planes);
  const Codes a(shape.m, shape.k, shape.planes, 1), b(shape.n, shape.k, 1, 2);
  const Stored<Exec> stored(shape.m, shape.n);
  multiply(planes_ref<Exec>(a, shape.planes), plane_ref<Exec>(b, 0), stored);
  Kokkos::fence();
  EXPECT_EQ(test::to_host(stored.sums), product_ref(a, shape.planes, b));
  EXPECT_EQ(test::to_host(stored.calls), std::vector<int>(stored.calls.extent(0), 1));
}

/// Steps between the extents up to 130 on a backend. Parallel regions cost time.
template <class Exec>
constexpr int step_of = std::string_view(BackendName<Exec>::value) == "serial" ? 1 : 7;

/// Extents of terms, rows and columns, every number of planes, and more terms than a block holds.
template <class Exec>
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (int extent = 1; extent <= 130; extent += step_of<Exec>) {
    all.push_back({5, 3, extent});
    all.push_back({extent, 3, 70});
    all.push_back({2, extent, 40});
  }
  for (int planes = 1; planes <= most_planes; ++planes)
    for (const int k : {1, 64, 100, 2100}) all.push_back({7, 66, k, planes});
  for (const int k : {991, 992, 993, 2047, 2048, 2049, 6000}) all.push_back({37, 67, k, 2});  // about 31 and 64 words
  return all;
}

template <class Exec>
class BinaryProducts : public ::testing::Test {};
TYPED_TEST_SUITE(BinaryProducts, test::Backends, test::BackendNames);

TYPED_TEST(BinaryProducts, equal_plain_loops) {
  const TypeParam exec;
  for (const Instructions instructions : available_instructions()) {
    SCOPED_TRACE(to_string(instructions));
    BinaryProduct<TypeParam> product(instructions);  // one for all, as its workspace is
    for (const Shape& shape : shapes<TypeParam>())
      expect_product<TypeParam>(shape,
                                [&](const auto& a, const auto& b, const auto& stored) { product(exec, a, b, stored); });
  }
}

// Counters of every width reach their greatest values.
TYPED_TEST(BinaryProducts, of_opposite_and_of_equal_signs_are_extreme) {
  const TypeParam exec;
  for (const Instructions instructions : available_instructions())
    for (const int k : {1024, 2000, 70000}) {
      Codes ones(1, k, 1, 0), zeros(1, k, 1, 0);
      std::fill(ones.values.begin(), ones.values.end(), std::uint8_t{255});
      std::fill(zeros.values.begin(), zeros.values.end(), std::uint8_t{0});
      BinaryProduct<TypeParam> product(instructions);
      const Stored<TypeParam> opposite(1, 1), equal(1, 1);
      const auto planes = planes_ref<TypeParam>(ones, most_planes);
      product(exec, planes, plane_ref<TypeParam>(zeros, 0), opposite);
      product(exec, planes, planes[0], equal);
      Kokkos::fence();
      EXPECT_EQ(test::to_host(opposite.sums)[0], -255 * k) << to_string(instructions);
      EXPECT_EQ(test::to_host(equal.sums)[0], 255 * k) << to_string(instructions);
    }
}

TYPED_TEST(BinaryProducts, of_a_gpu_without_tensor_cores_equal_plain_loops) {
  const TypeParam exec;
  for (const Shape& shape : shapes<TypeParam>())
    expect_product<TypeParam>(shape, [&](const auto& a, const auto& b, const auto& stored) {
      multiply_plainly(exec, Planes(a), BitRows(b), stored);
    });
}

TYPED_TEST(BinaryProducts, take_matrices_in_longer_memory) {
  const TypeParam exec;
  const Codes a(5, 100, 1, 1), b(9, 100, 1, 2);
  const auto enlarged = [](const BitMatrix<TypeParam>& matrix) {
    BitMatrix<TypeParam> larger = full<TypeParam>(matrix.rows + 3, matrix.columns + 128);
    larger.rows = matrix.rows;
    larger.columns = matrix.columns;
    const auto from = words_on_host(matrix);
    const auto to = words_on_host(larger);
    for (int r = 0; r < matrix.rows; ++r)
      for (int w = 0; w < words_of(matrix.columns); ++w) to(r, w) = from(r, w);
    Kokkos::deep_copy(larger.words, to);
    return larger;
  };
  const Stored<TypeParam> stored(5, 9);
  BinaryProduct<TypeParam> product;
  product(exec, {enlarged(plane_ref<TypeParam>(a, 0))}, enlarged(plane_ref<TypeParam>(b, 0)), stored);
  Kokkos::fence();
  EXPECT_EQ(test::to_host(stored.sums), product_ref(a, 1, b));
}

TYPED_TEST(BinaryProducts, without_terms_are_0_and_without_elements_nothing) {
  const TypeParam exec;
  BinaryProduct<TypeParam> product;
  for (const Shape& shape : {Shape{3, 4, 0, 2}, Shape{0, 4, 5}, Shape{3, 0, 5}})
    expect_product<TypeParam>(shape,
                              [&](const auto& a, const auto& b, const auto& stored) { product(exec, a, b, stored); });
}

TYPED_TEST(BinaryProducts, refuse_factors_that_do_not_fit) {
  const TypeParam exec;
  BinaryProduct<TypeParam> product;
  const Stored<TypeParam> stored(3, 3);
  const auto three_by = [](int columns) { return full<TypeParam>(3, columns); };
  EXPECT_THROW(product(exec, {three_by(5)}, three_by(6), stored), RunError);
  EXPECT_THROW(product(exec, {}, three_by(6), stored), RunError);
  EXPECT_THROW(product(exec, {three_by(6), three_by(7)}, three_by(6), stored), RunError);
  EXPECT_THROW(product(exec, full_planes<TypeParam>(most_planes + 1, 3, 6), three_by(6), stored), RunError);
}

TYPED_TEST(BinaryProducts, bits_do_not_depend_on_threads) {
  const TypeParam exec;
  BinaryProduct<TypeParam> product;
  const Codes a(200, 300, 4, 1), b(150, 300, 1, 2);
  const Stored<TypeParam> stored(a.rows, b.rows);
  product(exec, planes_ref<TypeParam>(a, 4), plane_ref<TypeParam>(b, 0), stored);
  Kokkos::fence();
  test::print_bits("binary_product", test::to_host(stored.sums));
}

TYPED_TEST(BinaryProducts, sign_sums_equal_plain_loops) {
  const TypeParam exec;
  for (int k = 0; k <= 130; ++k) {
    const Codes codes(3, k, 1, 5);
    const Vector<TypeParam, int> sums("OneBit::test::sums", 3);
    sign_sums(exec, plane_ref<TypeParam>(codes, 0), sums);
    Kokkos::fence();
    std::vector<int> right(3);
    for (int r = 0; r < 3; ++r)
      for (int c = 0; c < k; ++c) right[r] += 2 * codes(r, c) - 1;
    EXPECT_EQ(test::to_host(sums), right) << k;
  }
}

// ---- The tiles of tensor cores, on the host ----

/// The registers of the 32 lanes for each multiply-add of a tile.
struct Registers {
  struct Lane {
    std::uint32_t a[4], b[2];
  };
  std::vector<std::vector<Lane>> calls = std::vector<std::vector<Lane>>(32);
};

/// A lane's part of the instruction m16n8k256, with the PTX ISA's own formulas for the place of each bit. The first run
/// of all lanes records their registers, and the second one multiplies.
struct InstructionRef {
  Registers* registers;
  bool* records;
  int* lane;
  std::size_t* call;

  void operator()(int (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) const {
    if (*records) {
      registers->calls[*lane].push_back({{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
      return;
    }
    bool left[16][256] = {}, right[8][256] = {};
    for (int number = 0; number < 32; ++number) {
      const auto& held = registers->calls[number][*call];
      const int group = number >> 2, thread = number % 4;
      for (int i = 0; i < 128; ++i)
        left[i < 32 || (i >= 64 && i < 96) ? group : group + 8][thread * 32 + (i & 0x1F) + (i < 64 ? 0 : 128)] =
            held.a[i / 32] >> i % 32 & 1u;
      for (int i = 0; i < 64; ++i)
        right[group][thread * 32 + (i & 0x1F) + (i < 32 ? 0 : 128)] = held.b[i / 32] >> i % 32 & 1u;
    }
    for (int i = 0; i < 4; ++i) {
      const int row = (*lane >> 2) + (i < 2 ? 0 : 8), column = *lane % 4 * 2 + (i & 1);
      for (int l = 0; l < 256; ++l) c[i] += left[row][l] && right[column][l];
    }
    ++*call;
  }
};

TEST(TensorCoreTiles, equal_plain_loops) {
  const HostExec exec;
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{16, 8, 256}, Shape{33, 35, 300, 3}, Shape{70, 9, 520, 2}})
    expect_product<HostExec>(shape, [&](const auto& a, const auto& b, const auto& stored) {
      const Vector<HostExec, int> a_sums("OneBit::test::sums", shape.m), b_sums("OneBit::test::sums", shape.n);
      const Planes planes(a);
      const BitRows rows(b);
      sign_sums(exec, planes, a_sums.data());
      sign_sums(exec, b, b_sums);
      fence(exec, "OneBit::test::sign_sums");
      bool records = true;
      const auto store = [&](int i, int j, int sum) {
        if (!records) stored(i, j, sum);
      };
      Registers registers;
      int lane = 0;
      std::size_t call = 0;
      const WarpTiles<decltype(store), InstructionRef> tiles{
          planes, rows, a_sums.data(), b_sums.data(), store, {&registers, &records, &lane, &call}};
      for (std::size_t tile = 0; tile < tiles.count(); ++tile) {
        registers = {};
        for (const bool pass : {true, false}) {
          records = pass;
          for (lane = 0; lane < 32; ++lane) {
            call = 0;
            tiles(tile, lane);
          }
        }
      }
    });
}

// ---- Packing ----

template <class Exec>
void expect_bits(const BitMatrix<Exec>& packed, const BitMatrix<Exec>& right) {
  const auto words = words_on_host(packed), words_ref = words_on_host(right);
  int wrong = 0;
  for (int r = 0; r < right.rows; ++r)
    for (int w = 0; w < words_of(right.columns); ++w) wrong += words(r, w) != words_ref(r, w);
  EXPECT_EQ(wrong, 0) << right.rows << " x " << right.columns;
}

Codes transposed(const Codes& codes) {
  Codes turned(codes.columns, codes.rows, 1, 0);
  for (int r = 0; r < codes.rows; ++r)
    for (int c = 0; c < codes.columns; ++c) turned.values[static_cast<std::size_t>(c) * codes.rows + r] = codes(r, c);
  return turned;
}

/// Calls check(rows, columns, along rows, along columns) for extents of each dimension beside a few of the other one;
/// for some of them with one layout alone.
template <class Check>
void for_packed_shapes(int step, const Check& check) {
  constexpr int others[] = {1, 33, 70};
  for (int extent = 1; extent <= 130; extent += step) {
    check(extent, others[extent % 3], true, true);
    check(others[extent % 3], extent, true, true);
  }
  for (const int extent : {0, 1, 64, 65, 300}) {
    check(extent, extent, true, false);
    check(70, extent, false, true);
  }
  // More columns than a block of the host has, as whole rows and in parts.
  check(65, 8250, true, true);
  check(33, 1090, true, true);
}

/// Codes in the memory of a backend, and how often each was asked for.
template <class Exec>
struct CountedCodes {
  Vector<Exec, std::uint8_t> codes;
  Vector<Exec, int> calls;
  int columns;

  KOKKOS_FUNCTION unsigned operator()(int r, int c) const {
    ++calls(r * columns + c);
    return codes(r * columns + c);
  }
};

template <class Exec>
class Packing : public ::testing::Test {};
TYPED_TEST_SUITE(Packing, test::Backends, test::BackendNames);

TYPED_TEST(Packing, of_signs_equals_plain_loops) {
  const TypeParam exec;
  for_packed_shapes(step_of<TypeParam>, [&](int rows, int columns, bool along_rows, bool along_columns) {
    std::vector<float> values = test::random_values(static_cast<std::size_t>(rows) * columns, 3);
    for (std::size_t i = 0; i < values.size(); i += 37) values[i] = std::numeric_limits<float>::quiet_NaN();
    Codes signs(rows, columns, 1, 0);
    for (std::size_t i = 0; i < values.size(); ++i) signs.values[i] = values[i] > 0;
    const auto device = test::to_device<TypeParam>(values);
    const auto by_rows = full<TypeParam>(rows, columns), by_columns = full<TypeParam>(columns, rows);
    pack_signs<TypeParam, float>(exec, MatrixRef<TypeParam, const float>(device.data(), rows, columns),
                                 along_rows ? &by_rows : nullptr, along_columns ? &by_columns : nullptr);
    Kokkos::fence();
    if (along_rows) expect_bits(by_rows, plane_ref<TypeParam>(signs, 0));
    if (along_columns) expect_bits(by_columns, plane_ref<TypeParam>(transposed(signs), 0));
  });
}

TYPED_TEST(Packing, of_planes_equals_plain_loops) {
  const TypeParam exec;
  int planes = 0;
  for_packed_shapes(step_of<TypeParam>, [&](int rows, int columns, bool along_rows, bool along_columns) {
    planes = planes % most_planes + 1;
    const Codes codes(rows, columns, planes, 4);
    const auto device = test::to_device<TypeParam>(codes.values);
    const Vector<TypeParam, int> calls("OneBit::test::calls", device.extent(0));
    const auto by_rows = full_planes<TypeParam>(along_rows ? planes : 0, rows, columns);
    const auto by_columns = full_planes<TypeParam>(along_columns ? planes : 0, columns, rows);
    pack(exec, "OneBit::test::pack", rows, columns, CountedCodes<TypeParam>{device, calls, columns}, by_rows,
         by_columns);
    Kokkos::fence();
    for (std::size_t p = 0; p < by_rows.size(); ++p)
      expect_bits(by_rows[p], plane_ref<TypeParam>(codes, static_cast<int>(p)));
    const Codes turned = transposed(codes);
    for (std::size_t p = 0; p < by_columns.size(); ++p)
      expect_bits(by_columns[p], plane_ref<TypeParam>(turned, static_cast<int>(p)));
    EXPECT_EQ(test::to_host(calls), std::vector<int>(calls.extent(0), 1));
  });
}

// A device's kernel on the host: the lanes run one after the other.
TEST(PackingInLanes, equals_plain_loops) {
  for (const int lanes : {32, 64})
    for_packed_shapes(1, [&](int rows, int columns, bool along_rows, bool along_columns) {
      const int planes = 3;
      const Codes codes(rows, columns, planes, 4);
      const auto by_rows = full_planes<HostExec>(along_rows ? planes : 0, rows, columns);
      const auto by_columns = full_planes<HostExec>(along_columns ? planes : 0, columns, rows);
      const auto code = [&](int r, int c) { return codes(r, c); };
      const PackInLanes<decltype(code)> packing{
          lanes, rows, columns, code, {by_rows, rows, columns}, {by_columns, columns, rows}};
      for (std::size_t block = 0; block < packing.count(); ++block)
        for (int lane = 0; lane < lanes; ++lane) packing(block, lane);
      for (std::size_t p = 0; p < by_rows.size(); ++p)
        expect_bits(by_rows[p], plane_ref<HostExec>(codes, static_cast<int>(p)));
      const Codes turned = transposed(codes);
      for (std::size_t p = 0; p < by_columns.size(); ++p)
        expect_bits(by_columns[p], plane_ref<HostExec>(turned, static_cast<int>(p)));
    });
}

TYPED_TEST(Packing, refuses_planes_of_another_shape) {
  const TypeParam exec;
  const CountedCodes<TypeParam> codes{};
  EXPECT_THROW(pack(exec, "OneBit::test::pack", 3, 4, codes, {full<TypeParam>(3, 5)}, {}), RunError);
  EXPECT_THROW(pack(exec, "OneBit::test::pack", 3, 4, codes, {}, {full<TypeParam>(3, 4)}), RunError);
}

}  // namespace
}  // namespace onebit::linalg
