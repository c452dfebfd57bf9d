#include "nn/images/batch_norm.hpp"

#include "nn/activation.hpp"
#include "nn/column_sums.hpp"

namespace onebit::nn {
namespace {

/// Rows [g R, (g + 1) R) of a matrix.
template <class MatrixType>
MatrixType rows_of_group(const MatrixType& matrix, int group, int rows) {
  const std::size_t columns = matrix.extent(1);
  return MatrixType(matrix.data() + static_cast<std::size_t>(group) * rows * columns, rows, columns);
}

/// The gradient at the output of a normalisation where its ReLU passed it on, and the normalised input there.
template <class Exec, class Real>
struct NormTerms : ColumnTerms<Exec, Real> {
  static constexpr int sums = 2;
  MatrixRef<Exec, const Real> input, output, d_output;  ///< of a group
  const Real* mean;
  const Real* reciprocal_std;
  bool relu;

  KOKKOS_FORCEINLINE_FUNCTION Values<Real, 2> load(int r, int j) const {
    const Real passed = !relu || output(r, j) > 0 ? d_output(r, j) : Real(0);
    return {{passed, (input(r, j) - mean[j]) * reciprocal_std[j]}};
  }
  template <class Row, class Add>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(int, int, const Values<Real, 2>& loaded, const Row&, Real,
                                              const Add& add) const {
    add(0, loaded[0]);
    add(1, loaded[0] * loaded[1]);
  }
};

}  // namespace

template <class Exec, class Real>
void BatchNorms<Exec, Real>::take_statistics(const Exec& exec, const Norm& norm, Vector scratch) {
  const int rows = norm.rows_of_group(), columns = norm.mean.extent_int(1);
  Kokkos::deep_copy(exec, norm.mean, Real(0));
  Kokkos::deep_copy(exec, norm.reciprocal_std, Real(0));
  for (int group = 0; group < norm.groups(); ++group) {
    const ConstMatrix input = rows_of_group(norm.input, group, rows);
    const Matrix mean = rows_of_group(norm.mean, group, 1), square = rows_of_group(norm.reciprocal_std, group, 1);
    sum_columns(
        exec, "OneBit::nn::batch_mean", rows, columns, KOKKOS_LAMBDA(int r, int j) { return input(r, j); },
        KOKKOS_LAMBDA(int, int, Real value) { return value; }, scratch, Vector(mean.data(), columns), 1 / Real(rows));
    sum_columns(
        exec, "OneBit::nn::batch_variance", rows, columns,
        KOKKOS_LAMBDA(int r, int j) { return input(r, j) - mean(0, j); },
        KOKKOS_LAMBDA(int, int, Real value) { return value * value; }, scratch, Vector(square.data(), columns),
        1 / Real(rows));
  }
  const Matrix variance = norm.reciprocal_std;
  const Real epsilon = norm.epsilon;
  for_each_row(
      exec, "OneBit::nn::batch_reciprocal_std", norm.groups(), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int g) {
        team.for_each(
            columns, [&](int j) { return variance(g, j); },
            [&](int j, Real value) { variance(g, j) = 1 / math::sqrt(value + epsilon); });
      });
}

template <class Exec, class Real>
void BatchNorms<Exec, Real>::normalize(const Exec& exec, const Norm& norm) {
  const Norm own = norm;
  const int columns = norm.output.extent_int(1), rows = norm.rows_of_group();
  for_each_row(
      exec, "OneBit::nn::batch_normalize", norm.output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const int g = r / rows;
        team.for_each(
            columns,
            [&](int j) {
              return (own.input(r, j) - own.mean(g, j)) * own.reciprocal_std(g, j) * own.weight(j) + own.bias(j);
            },
            [&](int j, Real value) { own.output(r, j) = own.relu && value <= 0 ? Real(0) : value; });  // NaN stays
      });
}

template <class Exec, class Real>
void BatchNorms<Exec, Real>::backward(const Exec& exec, const Norm& norm, ConstMatrix d_output, bool add,
                                      Matrix d_input, Vector scratch, const BatchNormGradient<Exec, Real>& gradient) {
  const int rows = norm.rows_of_group(), columns = norm.mean.extent_int(1), groups = norm.groups();
  // Of each group: the sum of the gradients, and of the gradients times the normalised input.
  const Matrix sum(scratch.data(), groups, columns), product(sum.data() + sum.size(), groups, columns);
  const Vector partial(product.data() + product.size(), scratch.extent(0) - 2 * sum.size());
  Kokkos::deep_copy(exec, Vector(scratch.data(), 2 * sum.size()), Real(0));
  for (int group = 0; group < groups; ++group) {
    NormTerms<Exec, Real> terms;
    terms.input = rows_of_group(norm.input, group, rows);
    terms.output = rows_of_group(ConstMatrix(norm.output), group, rows);
    terms.d_output = rows_of_group(d_output, group, rows);
    terms.mean = rows_of_group(norm.mean, group, 1).data();
    terms.reciprocal_std = rows_of_group(norm.reciprocal_std, group, 1).data();
    terms.relu = norm.relu;
    sum_columns(exec, "OneBit::nn::batch_norm_sums", rows, columns, terms, partial,
                {{rows_of_group(sum, group, 1).data(), rows_of_group(product, group, 1).data()}});
  }
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
              const Real passed = !own.relu || own.output(r, j) > 0 ? d_output(r, j) : Real(0);
              const Real normalized = (own.input(r, j) - own.mean(g, j)) * own.reciprocal_std(g, j);
              const Real d = passed - (sum(g, j) + normalized * product(g, j)) / Real(rows);
              return own.weight(j) * own.reciprocal_std(g, j) * d + (add ? d_input(r, j) : Real(0));
            },
            [&](int j, Real value) { d_input(r, j) = value; });
      });
}

#define ONEBIT_INSTANTIATE(Exec)           \
  template struct BatchNorms<Exec, float>; \
  template struct BatchNorms<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
