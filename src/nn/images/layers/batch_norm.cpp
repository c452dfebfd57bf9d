#include "nn/images/layers/batch_norm.hpp"

#include "nn/activation.hpp"
#include "nn/column_sums.hpp"

namespace onebit::nn {
namespace {

/// Sums for the statistics of groups. They are of the distances to the group's first row: so the squares are about as
/// large as the variance, however far the mean is from 0.
template <class Exec, class Real>
struct StatisticsTerms : ColumnTerms<Exec, Real> {
  static constexpr int sums = 2;
  MatrixRef<Exec, const Real> input;
  int rows;  ///< R

  KOKKOS_FORCEINLINE_FUNCTION Real load(int r, int j) const { return input(r, j) - input(r / rows * rows, j); }
  template <class Row, class Add>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(int, int, Real distance, const Row&, Real, const Add& add) const {
    add(0, distance);
    add(1, distance * distance);
  }
};

/// Sums of the gradient before the ReLU, and of that times the normalised input. It stores this gradient in d_output.
template <class Exec, class Real>
struct NormTerms : ColumnTerms<Exec, Real> {
  static constexpr int sums = 2;
  BatchNorm<Exec, Real> norm;
  MatrixRef<Exec, Real> d_output;
  int rows;  ///< R

  KOKKOS_FORCEINLINE_FUNCTION Values<Real, 2> load(int r, int j) const {
    const int g = r / rows;
    // Without branches, so that the loop can be vectorised.
    const bool passes = static_cast<int>(!norm.relu) | static_cast<int>(norm.output(r, j) > 0);
    const Real d = d_output(r, j);
    return {{passes ? d : Real(0), (norm.input(r, j) - norm.mean(g, j)) * norm.reciprocal_std(g, j)}};
  }
  template <class Row, class Add>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(int r, int j, const Values<Real, 2>& loaded, const Row&, Real,
                                              const Add& add) const {
    d_output(r, j) = loaded[0];
    add(0, loaded[0]);
    add(1, loaded[0] * loaded[1]);
  }
};

}  // namespace

template <class Exec, class Real>
void BatchNorms<Exec, Real>::take_statistics(const Exec& exec, const Norm& norm, Vector scratch) {
  const int rows = norm.rows_of_group(), columns = norm.mean.extent_int(1);
  const Matrix mean = norm.mean, variance = norm.reciprocal_std;
  Kokkos::deep_copy(exec, mean, Real(0));
  Kokkos::deep_copy(exec, variance, Real(0));
  StatisticsTerms<Exec, Real> terms;
  terms.input = norm.input;
  terms.rows = rows;
  sum_columns(exec, "OneBit::nn::batch_statistics", rows, columns, terms, scratch, {{mean.data(), variance.data()}},
              1 / Real(rows), norm.groups());
  const ConstMatrix input = norm.input;
  const Real epsilon = norm.epsilon;
  for_each_row(
      exec, "OneBit::nn::batch_reciprocal_std", norm.groups(), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int g) {
        team.for_each(
            columns,
            [&](int j) {
              return Values<Real, 3>{{mean(g, j), variance(g, j), input(g * rows, j)}};
            },
            [&](int j, const Values<Real, 3>& of) {
              const Real found = of[1] - of[0] * of[0];
              mean(g, j) = of[2] + of[0];
              variance(g, j) = 1 / math::sqrt((found < 0 ? Real(0) : found) + epsilon);
            });
      });
}

template <class Exec, class Real>
void BatchNorms<Exec, Real>::normalize(const Exec& exec, const Norm& norm) {
  const Norm own = norm;
  const int columns = norm.output.extent_int(1), rows = norm.rows_of_group();
  const bool adds = norm.addend.extent(0) > 0;
  for_each_row(
      exec, "OneBit::nn::batch_normalize", norm.output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const int g = r / rows;
        team.for_each(
            columns,
            [&](int j) {
              const Real value =
                  (own.input(r, j) - own.mean(g, j)) * own.reciprocal_std(g, j) * own.weight(j) + own.bias(j);
              return adds ? value + own.addend(r, j) : value;
            },
            [&](int j, Real value) { own.output(r, j) = own.relu && value <= 0 ? Real(0) : value; });  // NaN stays
      });
}

template <class Exec, class Real>
void BatchNorms<Exec, Real>::backward(const Exec& exec, const Norm& norm, Matrix d_output, Matrix d_input,
                                      Vector scratch, const BatchNormGradient<Exec, Real>& gradient) {
  const int rows = norm.rows_of_group(), columns = norm.mean.extent_int(1), groups = norm.groups();
  // Of each group: the sum of the gradients, and of the gradients times the normalised input.
  const Matrix sum(scratch.data(), groups, columns), product(sum.data() + sum.size(), groups, columns);
  const Vector partial(product.data() + product.size(), scratch.extent(0) - 2 * sum.size());
  Kokkos::deep_copy(exec, Vector(scratch.data(), 2 * sum.size()), Real(0));
  NormTerms<Exec, Real> terms;
  terms.norm = norm;
  terms.d_output = d_output;
  terms.rows = rows;
  sum_columns(exec, "OneBit::nn::batch_norm_sums", rows, columns, terms, partial, {{sum.data(), product.data()}},
              Real(1), groups);
  const int wanted = gradient.d_weight.extent(0) > 0 ? 1 : 0;
  for_each_row_part(
      exec, "OneBit::nn::batch_norm_parameters", wanted, columns,
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int, int begin, int length) {
        team.for_each(length, [&](int i) {
          const int j = begin + i;
          for (int g = 0; g < groups; ++g) {
            gradient.d_bias(j) += sum(g, j);
            gradient.d_weight(j) += product(g, j);
          }
        });
      });

  const Norm own = norm;
  for_each_row(
      exec, "OneBit::nn::batch_norm_backward", d_input.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const int g = r / rows;
        team.for_each(
            columns,
            [&](int j) {
              const Real normalized = (own.input(r, j) - own.mean(g, j)) * own.reciprocal_std(g, j);
              const Real d = d_output(r, j) - (sum(g, j) + normalized * product(g, j)) / Real(rows);
              return own.weight(j) * own.reciprocal_std(g, j) * d;
            },
            [&](int j, Real value) { d_input(r, j) = value; });
      });
}

#define ONEBIT_INSTANTIATE(Exec, Real) template struct BatchNorms<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
