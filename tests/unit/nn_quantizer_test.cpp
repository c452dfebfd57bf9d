/// \file nn_quantizer_test.cpp
/// Quantised gradients against their definition, their mean and variance over many draws, and the pruning.

#include <limits>
#include <optional>

#include "../nn_quantizer_reference.hpp"
#include "nn/quantizer/dequantize.hpp"
#include "nn/quantizer/gradient_quantizer.hpp"
#include "nn_support.hpp"

namespace onebit::nn {
namespace {

using test::DeviceArray;
using test::random_array;
using test::to_host;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr std::optional<Pruning> prunings[] = {std::nullopt, Pruning::bernoulli, Pruning::systematic, Pruning::topk};

template <class Real>
constexpr double rounding = std::is_same_v<Real, float> ? 1e-6 : 1e-14;

const QuantizerKey key{17, 1000, 5000000000, 9};

DrawRef draws_of(const QuantizerKey& of, GroupAxis axis) {
  return {of.seed, of.step, of.first_sample, of.layer, axis == GroupAxis::rows ? 0 : 1};
}

template <class Real>
Array<Real> transposed(const Array<Real>& array) {
  Array<Real> result(array.columns, array.rows);
  for (int r = 0; r < array.rows; ++r)
    for (int j = 0; j < array.columns; ++j) result(j, r) = array(r, j);
  return result;
}

/// Normal numbers whose rows and columns have log-normal sizes.
template <class Real>
Array<Real> uneven_array(int rows, int columns, unsigned seed) {
  Array<Real> array = random_array<Real>(rows, columns, seed);
  const Array<double> row_sizes = random_array(rows, 1, seed + 1), column_sizes = random_array(columns, 1, seed + 2);
  for (int r = 0; r < rows; ++r)
    for (int j = 0; j < columns; ++j)
      array(r, j) *= static_cast<Real>(static_cast<float>(std::exp(1.5 * row_sizes(r) + 0.5 * column_sizes(j))));
  return array;
}

template <class Exec>
std::vector<std::uint32_t> words_of(const linalg::BitMatrix<Exec>& plane) {
  const int words = linalg::words_of(plane.columns);
  EXPECT_EQ(plane.words.extent(1), std::size_t(words));
  const Vector<Exec, std::uint32_t> flat(plane.words.data(), std::size_t(plane.rows) * words);
  return to_host(flat);
}

/// What a quantiser returned, on the host.
template <class Real>
struct Quantized {
  QuantizedRef<Real> numbers;  ///< without probabilities
  std::vector<std::vector<std::uint32_t>> planes;

  template <class Exec>
  explicit Quantized(const QuantizedGradient<Exec, Real>& from) {
    Kokkos::fence();
    numbers.kept = from.kept;
    numbers.elements = from.planes[0].columns;
    numbers.line = to_host(from.line);
    numbers.scale = to_host(from.scale);
    numbers.offset = to_host(from.offset);
    for (const auto& plane : from.planes) {
      EXPECT_EQ(plane.rows, from.kept);
      EXPECT_EQ(plane.columns, numbers.elements);
      planes.push_back(words_of(plane));
    }
    const int words = linalg::words_of(numbers.elements);
    for (int k = 0; k < from.kept; ++k) {
      std::vector<unsigned> codes(numbers.elements, 0);
      for (int e = 0; e < numbers.elements; ++e)
        for (std::size_t p = 0; p < planes.size(); ++p)
          codes[e] |= (planes[p][std::size_t(k) * words + e / 32] >> e % 32 & 1u) << p;
      numbers.code.push_back(codes);
    }
  }

  /// Whether the bits after the last column are 0.
  bool padding_is_zero() const {
    const int words = linalg::words_of(numbers.elements);
    for (const auto& plane : planes)
      for (std::size_t i = 0; i < plane.size(); ++i) {
        const int first = static_cast<int>(i % words) * 32, valid = numbers.elements - first;
        if (valid < 32 && plane[i] >> std::max(valid, 0) != 0) return false;
      }
    return true;
  }

  /// The dequantised gradient with pruned groups as 0: (groups, elements).
  Array<double> dequantized(int groups) const {
    Array<double> array(groups, numbers.elements);
    const int B = (1 << planes.size()) - 1;
    for (int k = 0; k < numbers.kept; ++k)
      for (int e = 0; e < numbers.elements; ++e)
        array(numbers.line[k], e) =
            static_cast<double>(numbers.scale[k]) * (2 * static_cast<int>(numbers.code[k][e]) - B) + numbers.offset[k];
    return array;
  }
};

template <class Real>
void expect_close(const std::vector<Real>& found, const std::vector<Real>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    if (std::isnan(expected[i]))
      EXPECT_TRUE(std::isnan(found[i])) << i;
    else
      EXPECT_NEAR(found[i], expected[i], rounding<Real> * std::abs(expected[i])) << i;
}

template <class Real>
void expect_equals(const Quantized<Real>& found, const QuantizedRef<Real>& expected) {
  EXPECT_EQ(found.numbers.kept, expected.kept);
  EXPECT_EQ(found.numbers.elements, expected.elements);
  EXPECT_EQ(found.numbers.line, expected.line);
  EXPECT_TRUE(found.numbers.code == expected.code);
  EXPECT_TRUE(found.padding_is_zero());
  expect_close(found.numbers.scale, expected.scale);
  expect_close(found.numbers.offset, expected.offset);
}

template <class Exec>
class Quantizer : public ::testing::Test {
protected:
  Exec exec;

  template <class Real>
  Quantized<Real> quantize(GroupAxis axis, const Array<Real>& gradient, int bits, std::optional<Pruning> pruning,
                           const QuantizerKey& by = key) const {
    GradientQuantizer<Exec, Real> quantizer(axis, {{gradient.rows, gradient.columns}}, bits, pruning);
    const DeviceArray<Exec, Real> d_output(gradient);
    return Quantized<Real>(quantizer(exec, d_output.matrix(), VectorRef<Exec, const Real>(), by));
  }
};
TYPED_TEST_SUITE(Quantizer, test::Backends, test::BackendNames);

// ---- the definition ----

struct Extents {
  int rows, columns;
};
/// Around the sizes of words, of pairs of words, of a thread's elements and of blocks of rows. The greatest comes
/// first: the quantiser's memory is that of the first and holds what it left.
constexpr Extents extents[] = {{270, 1030}, {1, 1},   {1, 5},    {5, 1},    {3, 31},
                               {31, 32},    {32, 33}, {65, 129}, {130, 64}, {9, 513}};

/// \param rows_per_group of rows; the extents, but for the largest ones, have as many rows for each of theirs
template <class Exec, class Real>
void compare_with_reference(const Exec& exec, GroupAxis axis, int bits, std::optional<Pruning> pruning,
                            int rows_per_group = 1) {
  std::vector<GradientExtents> all;
  for (const Extents& e : extents)
    if (rows_per_group == 1 || e.rows * e.columns < 10000)
      all.push_back({e.rows * rows_per_group, e.columns, rows_per_group});
  GradientQuantizer<Exec, Real> quantizer(axis, all, bits, pruning);
  unsigned seed = 0;
  for (const GradientExtents& e : all) {
    SCOPED_TRACE(::testing::Message() << e.rows << " x " << e.columns << ", b = " << bits << ", "
                                      << (axis == GroupAxis::rows ? "rows" : "columns") << ", pruning "
                                      << (pruning ? to_string(*pruning) : "none") << ", groups of " << rows_per_group);
    const Array<Real> values = uneven_array<Real>(e.rows, e.columns, ++seed);
    const Array<Real> gamma = random_array<Real>(e.columns, 1, 100 + seed);
    Array<Real> gradient = values;
    const bool with_gamma = seed % 2 == 1;
    if (with_gamma)
      for (int r = 0; r < e.rows; ++r)
        for (int j = 0; j < e.columns; ++j) gradient(r, j) = values(r, j) * gamma(j);
    const DeviceArray<Exec, Real> d_output(values), scales(gamma);
    const auto& result = quantizer(
        exec, d_output.matrix(),
        with_gamma ? VectorRef<Exec, const Real>(scales.vector()) : VectorRef<Exec, const Real>(), key, rows_per_group);
    EXPECT_EQ(result.groups(), axis == GroupAxis::rows ? e.rows / rows_per_group : e.columns);
    const auto expected = quantize_ref(axis == GroupAxis::rows ? gradient : transposed(gradient), bits, pruning,
                                       draws_of(key, axis), rows_per_group);
    EXPECT_EQ(result.kept, expected.kept);
    expect_equals(Quantized<Real>(result), expected);
    for (int first = 0; first <= result.lines; first += rows_per_group)
      EXPECT_EQ(result.kept_before(first),
                std::lower_bound(expected.line.begin(), expected.line.end(), first) - expected.line.begin());
  }
}

TYPED_TEST(Quantizer, equals_reference) {
  for (const GroupAxis axis : {GroupAxis::rows, GroupAxis::columns})
    for (const int bits : {1, 2, 4, 8})
      for (const auto& pruning : prunings) {
        compare_with_reference<TypeParam, float>(this->exec, axis, bits, pruning);
        compare_with_reference<TypeParam, double>(this->exec, axis, bits, pruning);
      }
}

/// Rows that are quantised together have one range and are kept or pruned together.
TYPED_TEST(Quantizer, groups_of_rows_equal_reference) {
  for (const int rows_per_group : {2, 9, 70})
    for (const auto& pruning : prunings) {
      compare_with_reference<TypeParam, float>(this->exec, GroupAxis::rows, 4, pruning, rows_per_group);
      compare_with_reference<TypeParam, double>(this->exec, GroupAxis::rows, 1, pruning, rows_per_group);
    }
}

TYPED_TEST(Quantizer, draws_differ_by_all_that_selects_them) {
  const Array<double> gradient = uneven_array<double>(40, 40, 3);
  const auto codes = [&](const QuantizerKey& by, GroupAxis axis) {
    return this->quantize(axis, axis == GroupAxis::rows ? gradient : transposed(gradient), 8, std::nullopt, by)
        .numbers.code;
  };
  const auto drawn = codes(key, GroupAxis::rows);
  EXPECT_TRUE(codes(key, GroupAxis::rows) == drawn);
  EXPECT_FALSE(codes(key, GroupAxis::columns) == drawn);
  for (const QuantizerKey& other : {QuantizerKey{18, 1000, 5000000000, 9}, QuantizerKey{17, 1001, 5000000000, 9},
                                    QuantizerKey{17, 1000, 5000000040, 9}, QuantizerKey{17, 1000, 5000000000, 10}})
    EXPECT_FALSE(codes(other, GroupAxis::rows) == drawn);
}

TYPED_TEST(Quantizer, bits_do_not_depend_on_threads) {
  const Array<float> gradient = uneven_array<float>(300, 700, 3);
  const DeviceArray<TypeParam, float> d_output(gradient);
  for (const GroupAxis axis : {GroupAxis::rows, GroupAxis::columns})
    for (const auto& pruning : prunings) {
      GradientQuantizer<TypeParam, float> quantizer(axis, {{300, 700}}, 4, pruning);
      const Quantized<float> result(quantizer(this->exec, d_output.matrix(), VectorRef<TypeParam, const float>(), key));
      const std::string name = std::string(BackendName<TypeParam>::value) +
                               (axis == GroupAxis::rows ? ".rows." : ".columns.") +
                               (pruning ? to_string(*pruning) : "none");
      for (const auto& plane : result.planes) test::print_bits(name + ".plane", plane);
      test::print_bits(name + ".scale", result.numbers.scale);
      test::print_bits(name + ".offset", result.numbers.offset);
      const double error = quantizer.error(this->exec, d_output.matrix(), VectorRef<TypeParam, const float>()).exact;
      test::print_bits(name + ".error", std::vector<double>{error});
    }
}

TYPED_TEST(Quantizer, drawn_error_is_that_of_the_dequantised_gradient) {
  const Array<float> values = uneven_array<float>(70, 300, 5), gamma = random_array<float>(1, 300, 6);
  const DeviceArray<TypeParam, float> d_output(values), scales(gamma);
  for (const GroupAxis axis : {GroupAxis::rows, GroupAxis::columns}) {
    GradientQuantizer<TypeParam, float> quantizer(axis, {{70, 300}}, 4, Pruning::systematic);
    const auto& quantized = quantizer(this->exec, d_output.matrix(), scales.vector(), key);
    const DeviceArray<TypeParam, float> matrix(Array<float>(70, 300));
    dequantize<TypeParam, float>(this->exec, quantized, axis, matrix.matrix());
    const Array<double> estimate = matrix.array();
    double expected = 0;
    for (int i = 0; i < 70; ++i)
      for (int j = 0; j < 300; ++j) expected += std::pow(estimate(i, j) - values(i, j) * gamma(j), 2);
    const double found =
        drawn_error<TypeParam, float>(this->exec, quantized, axis, {d_output.matrix(), scales.vector().data()});
    EXPECT_NEAR(found, expected, 1e-6 * expected);
  }
}

// ---- mean and variance ----

/// Means over many steps of Q − G.
struct Moments {
  double variance = 0;        ///< mean of ‖Q − G‖²
  double square_of_mean = 0;  ///< ‖mean of Q − G‖² times the number of draws, which without bias is near the variance
  double worst_direction = 0;  ///< mean of (Q − G)·v over its standard error, the worst of some v
  double share = 0;            ///< mean of the part that is pruned
  QuantizerError error;
};

/// Log-normal rows, as a fine-tuned classifier's gradient has them, and an offset that pruning must not lose.
Array<double> rows_of_all_sizes() {
  Array<double> gradient = random_array(64, 32, 7);
  const Array<double> sizes = random_array(64, 1, 8);
  for (int r = 0; r < 64; ++r)
    for (int j = 0; j < 32; ++j) gradient(r, j) = (gradient(r, j) + 0.2) * std::exp(1.5 * sizes(r));
  return gradient;
}

Moments moments(GroupAxis axis, int bits, std::optional<Pruning> pruning, int draws) {
  using Exec = HostExec;
  const Exec exec;
  const Array<double> rows = rows_of_all_sizes();
  const Array<double> gradient = axis == GroupAxis::rows ? rows : transposed(rows);
  const DeviceArray<Exec, double> d_output(gradient);
  GradientQuantizer<Exec, double> quantizer(axis, {{gradient.rows, gradient.columns}}, bits, pruning);
  constexpr int directions = 6;
  std::vector<Array<double>> v;
  for (int i = 0; i < directions; ++i) v.push_back(random_array(64, 32, 50 + i));
  std::vector<double> sum(directions), square(directions);
  Array<double> mean(64, 32);
  Moments result;
  for (int step = 0; step < draws; ++step) {
    const auto& quantized = quantizer(exec, d_output.matrix(), {}, {3, static_cast<std::uint64_t>(step), 0, 2});
    result.share += (1 - double(quantized.kept) / quantized.lines) / draws;
    const Array<double> estimate = Quantized<double>(quantized).dequantized(64);
    std::vector<double> products(directions);
    for (int i = 0; i < 64 * 32; ++i) {
      const double difference = estimate(i) - rows(i);
      mean(i) += difference / draws;
      result.variance += difference * difference / draws;
      for (int k = 0; k < directions; ++k) products[k] += difference * v[k](i);
    }
    for (int k = 0; k < directions; ++k) {
      sum[k] += products[k];
      square[k] += products[k] * products[k];
    }
  }
  for (const double m : mean.values) result.square_of_mean += m * m * draws;
  for (int k = 0; k < directions; ++k)
    result.worst_direction = std::max(result.worst_direction, std::abs(sum[k]) / std::sqrt(square[k]));
  result.error = quantizer.error(exec, d_output.matrix(), {});
  return result;
}

class Unbiased : public ::testing::TestWithParam<std::tuple<GroupAxis, int, std::optional<Pruning>>> {};

/// The formula holds for `systematic`, too: a sum of squares over groups depends on each p_i alone, not on how the
/// decisions on two groups depend on each other.
TEST_P(Unbiased, mean_is_the_gradient_and_variance_is_the_formula) {
  const auto [axis, bits, pruning] = GetParam();
  const int draws = pruning ? 6000 : 1000;
  const Moments found = moments(axis, bits, pruning, draws);
  EXPECT_LE(found.worst_direction, 4);
  EXPECT_LE(found.square_of_mean, 1.5 * found.error.exact);
  EXPECT_NEAR(found.variance, found.error.exact, 0.02 * found.error.exact);
  if (pruning)
    EXPECT_NEAR(found.share, 1 - 1.0 / bits, 0.01);
  else
    EXPECT_LE(found.error.exact, found.error.paper);
}
INSTANTIATE_TEST_SUITE_P(All, Unbiased,
                         ::testing::Values(std::tuple(GroupAxis::rows, 1, std::nullopt),
                                           std::tuple(GroupAxis::rows, 8, std::nullopt),
                                           std::tuple(GroupAxis::columns, 1, std::nullopt),
                                           std::tuple(GroupAxis::columns, 4, std::nullopt),
                                           std::tuple(GroupAxis::rows, 4, Pruning::bernoulli),
                                           std::tuple(GroupAxis::rows, 4, Pruning::systematic),
                                           std::tuple(GroupAxis::rows, 8, Pruning::systematic),
                                           std::tuple(GroupAxis::columns, 2, Pruning::bernoulli),
                                           std::tuple(GroupAxis::columns, 2, Pruning::systematic)));

TEST(Biased, topk_loses_what_it_prunes) {
  const Moments found = moments(GroupAxis::rows, 4, Pruning::topk, 500);
  EXPECT_NEAR(found.share, 0.75, 1e-10);
  EXPECT_GT(found.square_of_mean, 100 * found.error.exact);
  EXPECT_NEAR(found.variance, found.error.exact, 0.02 * found.error.exact);
}

TEST(Variance, is_least_at_an_average_bit_with_four_bits) {
  const auto error = [](int bits, std::optional<Pruning> pruning) {
    return moments(GroupAxis::rows, bits, pruning, 1).error;
  };
  const QuantizerError one = error(1, std::nullopt), two = error(2, Pruning::systematic);
  const QuantizerError four = error(4, Pruning::systematic), eight = error(8, Pruning::systematic);
  EXPECT_LT(four.exact, two.exact);
  EXPECT_LT(four.exact, eight.exact);
  EXPECT_LT(two.exact, one.exact);
  EXPECT_LT(eight.exact, one.exact);
  // Eq. 4 of the paper is no bound.
  EXPECT_GT(four.exact, 2 * four.paper);
  EXPECT_GT(eight.exact, 100 * eight.paper);
}

TYPED_TEST(Quantizer, error_equals_plain_sums) {
  for (const auto& [axis, together] : {std::pair(GroupAxis::rows, 1), {GroupAxis::rows, 3}, {GroupAxis::columns, 1}})
    for (const auto& pruning : prunings) {
      const Array<float> values = uneven_array<float>(300, 70, 5);
      const DeviceArray<TypeParam, float> d_output(values);
      GradientQuantizer<TypeParam, float> quantizer(axis, {{300, 70, together}}, 4, pruning);
      quantizer(this->exec, d_output.matrix(), {}, key, together);
      const QuantizerError found = quantizer.error(this->exec, d_output.matrix(), {});
      Array<float> groups = axis == GroupAxis::rows ? values : transposed(values);
      const QuantizedRef<float> reference = quantize_ref(groups, 4, pruning, draws_of(key, axis), together);
      groups.rows /= together;  // a group's rows are one row of its elements
      groups.columns *= together;
      double exact = 0, paper = 0, norm = 0;
      for (int i = 0; i < groups.rows; ++i) {
        double low = groups(i, 0), high = low, square = 0, rounding_sum = 0;
        for (int j = 0; j < groups.columns; ++j) {
          low = std::min<double>(low, groups(i, j));
          high = std::max<double>(high, groups(i, j));
        }
        for (int j = 0; j < groups.columns; ++j) {
          const double u = 15 * (groups(i, j) - low) / (high - low), f = u - std::floor(u);
          square += double(groups(i, j)) * groups(i, j);
          rounding_sum += f * (1 - f);
        }
        const double p = reference.probability[i], step = (high - low) / 15;
        norm += square;
        exact += p > 0 ? (1 / p - 1) * square + step * step / p * rounding_sum : square;
        if (std::count(reference.line.begin(), reference.line.end(), i * together) > 0)
          paper += groups.columns * step * step / 4;
      }
      EXPECT_NEAR(found.exact, exact, 1e-5 * exact);
      EXPECT_NEAR(found.paper, paper, 1e-5 * paper);
      EXPECT_NEAR(found.norm_squared, norm, 1e-10 * norm);
    }
}

// ---- pruning ----

std::vector<GroupSize> sizes_of(const std::vector<double>& ranges, double largest = 1) {
  std::vector<GroupSize> sizes;
  for (const double range : ranges) sizes.push_back({range, largest});
  return sizes;
}

std::vector<double> water_filled(const std::vector<GroupSize>& sizes, double budget) {
  std::vector<double> probabilities;
  water_fill(sizes, budget, &probabilities);
  return probabilities;
}

TEST(WaterFilling, spends_the_budget_in_proportion_to_the_ranges) {
  for (unsigned seed = 0; seed < 20; ++seed)
    for (const int count : {1, 2, 7, 64, 1000})
      for (const int bits : {2, 4, 8}) {
        const Array<double> normal = random_array(count, 1, seed, 2);
        std::vector<double> ranges;
        for (const double value : normal.values) ranges.push_back(std::exp(value));
        const std::vector<double> p = water_filled(sizes_of(ranges), double(count) / bits);
        double sum = 0, quotient = 0;
        for (int i = 0; i < count; ++i) {
          sum += p[i];
          EXPECT_GT(p[i], 0);
          EXPECT_LE(p[i], 1);
          if (p[i] < 1 && quotient == 0) quotient = p[i] / ranges[i];
        }
        EXPECT_NEAR(sum, double(count) / bits, 1e-12 * count);
        for (int i = 0; i < count; ++i) {
          if (p[i] < 1)
            EXPECT_NEAR(p[i], quotient * ranges[i], 1e-12 * p[i]);
          else
            EXPECT_GE(quotient * ranges[i], 1 - 1e-12);
        }
      }
}

TEST(WaterFilling, has_no_gap_at_its_ends) {
  EXPECT_EQ(water_filled(sizes_of({3, 3, 3, 3, 3, 3, 3, 3}), 2), std::vector<double>(8, 0.25));
  EXPECT_EQ(water_filled(sizes_of({0, 0, 0, 0}, 0), 2), std::vector<double>(4, 0));
  EXPECT_EQ(water_filled(sizes_of({0, 0, 0, 0}, 5), 2), std::vector<double>(4, 1));
  EXPECT_EQ(water_filled(sizes_of({1e300, 1, 1, 1}), 1.0)[0], 1);
  EXPECT_EQ(water_filled(sizes_of({1e308, 1e308, 1e308, 1e308}), 1), std::vector<double>(4, 0.25));
  EXPECT_EQ(water_filled(sizes_of({1000, 1, 1, 1, 1}), 2), (std::vector<double>{1, 0.25, 0.25, 0.25, 0.25}));
  // Fewer ranges than the budget: nothing that has one is lost.
  EXPECT_EQ(water_filled({{0, 0}, {2, 1}, {0, 0}, {5, 1}, {0, 0}, {0, 0}, {0, 0}, {0, 0}}, 4),
            (std::vector<double>{0, 1, 0, 1, 0, 0, 0, 0}));
  // A constant other than 0, and a group with NaN, take nothing of the budget.
  EXPECT_EQ(water_filled({{0, 7}, {3, 7}, {not_a_number, 7}, {3, 7}, {0, 0}, {3, 7}, {3, 7}, {0, 7}}, 2),
            (std::vector<double>{1, 0.5, 1, 0.5, 0, 0.5, 0.5, 1}));
  EXPECT_EQ(water_filled(sizes_of({4}), 0.25), std::vector<double>{0.25});
  EXPECT_TRUE(water_filled({}, 0).empty());
}

TEST(Choice, systematic_keeps_one_of_two_numbers_of_groups) {
  for (unsigned seed = 0; seed < 200; ++seed)
    for (const int count : {1, 3, 64, 101}) {
      const Array<double> normal = random_array(count, 1, seed, 2);
      std::vector<double> ranges;
      for (const double value : normal.values) ranges.push_back(std::exp(value));
      GroupChoice choice(count, 4, Pruning::systematic);
      choice(sizes_of(ranges), GradientDraws({seed, 0, 0, 0}, GradientProduct::input, Stream::gradient_pruning));
      const int kept = static_cast<int>(choice.kept().size());
      EXPECT_GE(kept, count / 4);
      EXPECT_LE(kept, (count + 3) / 4);
    }
}

TEST(Choice, topk_keeps_the_first_of_equal_groups) {
  const GradientDraws draws({1, 0, 0, 0}, GradientProduct::input, Stream::gradient_pruning);
  const auto kept = [&](const std::vector<GroupSize>& sizes, int bits) {
    GroupChoice choice(static_cast<int>(sizes.size()), bits, Pruning::topk);
    choice(sizes, draws);
    return choice.kept();
  };
  EXPECT_EQ(kept({{1, 2}, {9, 5}, {1, 2}, {0, 5}, {1, 2}, {1, 2}}, 2), (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(kept({{1, 2}, {1, 2}, {1, 3}}, 8), std::vector<int>{2});
  EXPECT_EQ(kept({{1, 2}}, 8), std::vector<int>{0});
  EXPECT_EQ(kept({{not_a_number, not_a_number}, {1, 2}, {1, 3}, {1, 2}}, 4), (std::vector<int>{0, 2}));
}

// ---- groups without a range, and without numbers ----

TYPED_TEST(Quantizer, constant_groups_stand_for_their_value) {
  Array<float> gradient = random_array<float>(8, 40, 3);
  for (int j = 0; j < 40; ++j) {
    gradient(2, j) = 1.5f;
    gradient(4, j) = 0;
    gradient(5, j) = j % 2 == 0 ? 2.0f : 2.0f + 0x1p-22f;
    gradient(6, j) = j % 2 == 0 ? 1e-37f : 2e-37f;  // B/R overflows
  }
  for (const auto& pruning : prunings)
    for (const GroupAxis axis : {GroupAxis::rows, GroupAxis::columns}) {
      const Quantized<float> found =
          this->quantize(axis, axis == GroupAxis::rows ? gradient : transposed(gradient), 8, pruning);
      const Array<double> estimate = found.dequantized(8);
      for (int j = 0; j < 40; ++j) {
        if (pruning != Pruning::topk) {
          EXPECT_EQ(estimate(2, j), 1.5) << j;
        }
        EXPECT_EQ(estimate(4, j), 0) << j;
      }
      for (int k = 0; k < found.numbers.kept; ++k) {
        if (found.numbers.line[k] == 2 || found.numbers.line[k] == 6) {
          EXPECT_EQ(found.numbers.scale[k], 0);
          EXPECT_EQ(found.numbers.code[k], std::vector<unsigned>(40, 0));
        }
        const float offset = found.numbers.offset[k];
        EXPECT_TRUE(found.numbers.line[k] == 6 ? offset == 1e-37f : std::isfinite(offset)) << offset;
      }
      EXPECT_EQ(found.numbers.kept == 8, !pruning);
    }
}

TYPED_TEST(Quantizer, a_gradient_of_zeros_may_have_no_groups) {
  for (const auto& pruning : prunings) {
    const Quantized<double> found = this->quantize(GroupAxis::columns, Array<double>(33, 20), 4, pruning);
    EXPECT_EQ(found.numbers.kept, !pruning ? 20 : pruning == Pruning::topk ? 5 : 0);
    EXPECT_EQ(found.dequantized(20).values, std::vector<double>(33 * 20, 0));
  }
}

TYPED_TEST(Quantizer, shows_nan_and_infinity_in_their_group_alone) {
  for (const double bad : {not_a_number, infinity, -infinity})
    for (const int place : {0, 17, 39})
      for (const auto& pruning : prunings)
        for (const GroupAxis axis : {GroupAxis::rows, GroupAxis::columns}) {
          Array<double> gradient = random_array(12, 40, 3);
          gradient(7, place) = bad;
          const Quantized<double> found =
              this->quantize(axis, axis == GroupAxis::rows ? gradient : transposed(gradient), 4, pruning);
          bool kept = false;
          for (int k = 0; k < found.numbers.kept; ++k) {
            const bool is_bad = found.numbers.line[k] == 7;
            kept = kept || is_bad;
            EXPECT_EQ(std::isnan(found.numbers.scale[k]), is_bad);
            EXPECT_EQ(std::isnan(found.numbers.offset[k]), is_bad);
          }
          EXPECT_TRUE(kept);
        }
}

}  // namespace
}  // namespace onebit::nn
