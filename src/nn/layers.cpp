#include "nn/layers.hpp"

#include "nn/activation.hpp"
#include "nn/column_sums.hpp"

namespace onebit::nn {

using linalg::Transpose;

// What a device launches and must move is given for BERT-Large and 4096 tokens in float: N = 4096 rows, H = 1024 and
// F = 4096 channels, P = 640 predictions of V = 30522 words. A team has 8 warps. Nothing of it has been timed.

template <class Exec, class Real>
void Layers<Exec, Real>::dense(const Exec& exec, Product& product, const Factor& input, const Factor& weight,
                               Matrix output) {
  product(exec, Transpose::no, Transpose::yes, Real(1), input, weight, Real(0), output);
}

template <class Exec, class Real>
void Layers<Exec, Real>::dense_backward_input(const Exec& exec, Product& product, const Factor& d_output,
                                              const Factor& weight, bool add, Matrix d_input, Real scale) {
  product(exec, Transpose::no, Transpose::no, scale, d_output, weight, Real(add ? 1 : 0), d_input);
}

template <class Exec, class Real>
void Layers<Exec, Real>::dense_backward_weight(const Exec& exec, Product& product, const Factor& d_output,
                                               const Factor& input, bool add, Matrix d_weight, Real scale) {
  product(exec, Transpose::yes, Transpose::no, scale, d_output, input, Real(add ? 1 : 0), d_weight);
}

/// (N, 3 H): 512 teams, 101 MB.
template <class Exec, class Real>
void Layers<Exec, Real>::add_bias(const Exec& exec, ConstVector bias, ConstMatrix input, ConstMatrix addend,
                                  Matrix output) {
  const int columns = output.extent_int(1);
  const bool adds = addend.extent(0) > 0;
  for_each_row(
      exec, "OneBit::nn::add_bias", output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(
            columns,
            [&](int j) {
              const Real sum = input(r, j) + bias(j);
              return adds ? sum + addend(r, j) : sum;
            },
            [&](int j, Real sum) { output(r, j) = sum; });
      });
}

/// (N, 3 H): 768 teams (64 blocks of rows, 12 strips of columns), 50 MB; then 96 teams, 0.8 MB. (P, V): 1200 teams, 78
/// MB.
template <class Exec, class Real>
void Layers<Exec, Real>::add_bias_backward(const Exec& exec, ConstMatrix d_output, Vector scratch, Vector d_bias,
                                           Real scale) {
  sum_columns(
      exec, "OneBit::nn::add_bias_backward", d_output.extent_int(0), d_output.extent_int(1),
      KOKKOS_LAMBDA(int r, int j) { return d_output(r, j); }, KOKKOS_LAMBDA(int, int, Real d) { return d; }, scratch,
      d_bias, scale);
}

template <class Exec, class Real>
void Layers<Exec, Real>::drop_out(const Exec& exec, const Dropout<Real>& dropout, Matrix matrix) {
  if (!dropout.active()) return;
  const int columns = matrix.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::drop_out", matrix.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(
            columns, dropout.row(r), [&](int j) { return matrix(r, j); },
            [&](int j, Real value, Real factor) { matrix(r, j) = value * factor; });
      });
}

/// (N, F): 512 teams, 201 MB.
template <class Exec, class Real>
void Layers<Exec, Real>::bias_gelu(const Exec& exec, ConstVector bias, Matrix input, Matrix output) {
  const int columns = input.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::bias_gelu", input.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(
            columns, [&](int j) { return input(r, j) + bias(j); },
            [&](int j, Real u) {
              input(r, j) = u;
              output(r, j) = Gelu<Real>(u).value;
            });
      });
}

/// (N, F): 1024 teams (64 blocks of rows, 16 strips of columns), 268 MB; then 128 teams, 1 MB.
template <class Exec, class Real>
void Layers<Exec, Real>::bias_gelu_backward(const Exec& exec, Matrix input, Matrix gradient, Vector scratch,
                                            Vector d_bias) {
  using Loaded = Values<Real, 2>;
  sum_columns(
      exec, "OneBit::nn::bias_gelu_backward", input.extent_int(0), input.extent_int(1),
      KOKKOS_LAMBDA(int r, int j) {
        return Loaded{{input(r, j), gradient(r, j)}};
      },
      KOKKOS_LAMBDA(int r, int j, const Loaded& loaded) {
        const Gelu<Real> gelu(loaded[0]);
        input(r, j) = gelu.value;
        return gradient(r, j) = loaded[1] * gelu.derivative;
      },
      scratch, d_bias);
}

template <class Exec, class Real>
void Layers<Exec, Real>::bias_tanh(const Exec& exec, ConstVector bias, Matrix matrix) {
  const int columns = matrix.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::bias_tanh", matrix.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(columns, [&](int j) { matrix(r, j) = math::tanh(matrix(r, j) + bias(j)); });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::bias_tanh_backward(const Exec& exec, ConstMatrix output, Matrix gradient, Vector scratch,
                                            Vector d_bias) {
  using Loaded = Values<Real, 2>;
  sum_columns(
      exec, "OneBit::nn::bias_tanh_backward", gradient.extent_int(0), gradient.extent_int(1),
      KOKKOS_LAMBDA(int r, int j) {
        return Loaded{{output(r, j), gradient(r, j)}};
      },
      KOKKOS_LAMBDA(int r, int j, const Loaded& loaded) {
        return gradient(r, j) = loaded[1] * (Real(1) - loaded[0] * loaded[0]);
      },
      scratch, d_bias);
}

/// Row r of norm.output, norm.mean and norm.reciprocal_std.
template <class Exec, class Real>
KOKKOS_FORCEINLINE_FUNCTION void normalize_row(const RowTeam<Exec>& team, int r, const LayerNorm<Exec, Real>& norm) {
  const int columns = norm.input.extent_int(1);
  const auto input = [&](int j) -> Real { return norm.input(r, j); };
  const Real mean = team.sum(columns, input, [](int, Real value) { return value; }) / columns;
  const Real variance = team.sum(columns, input, [&](int, Real value) {
    const Real difference = value - mean;
    return difference * difference;
  }) / columns;
  const Real reciprocal_std = Real(1) / math::sqrt(variance + norm.epsilon);
  team.for_each(
      columns,
      [&](int j) {
        return Values<Real, 3>{{norm.input(r, j), norm.weight(j), norm.bias(j)}};
      },
      [&](int j, const Values<Real, 3>& loaded) {
        norm.output(r, j) = (loaded[0] - mean) * reciprocal_std * loaded[1] + loaded[2];
      });
  team.once([&] {
    norm.mean(r) = mean;
    norm.reciprocal_std(r) = reciprocal_std;
  });
}

template <class Exec, class Real>
void Layers<Exec, Real>::layer_norm(const Exec& exec, const Norm& norm) {
  for_each_row(
      exec, "OneBit::nn::layer_norm", norm.input.extent_int(0),
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) { normalize_row(team, r, norm); });
}

/// (N, H): 512 teams, 67 MB. Later passes read the row again, from the second-level cache with Kokkos before 4.0, which
/// gives most of the first level to shared memory.
template <class Exec, class Real>
void Layers<Exec, Real>::residual_layer_norm(const Exec& exec, ConstMatrix residual, ConstVector bias,
                                             const Dropout<Real>& dropout, const Norm& norm) {
  const int columns = norm.input.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::residual_layer_norm", norm.input.extent_int(0),
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(
            columns, dropout.row(r),
            [&](int j) {
              return Values<Real, 3>{{residual(r, j), norm.input(r, j), bias(j)}};
            },
            [&](int j, const Values<Real, 3>& loaded, Real factor) {
              norm.input(r, j) = loaded[0] + factor * (loaded[1] + loaded[2]);
            });
        normalize_row(team, r, norm);
      });
}

/// The gradient of a normalisation, and the terms of its weight's, its bias's and the branch's bias's.
template <class Exec, class Real, bool add_to_input, bool has_branch>
struct LayerNormTerms : ColumnTerms<Exec, Real> {
  static constexpr int sums = has_branch ? 3 : 2;
  static constexpr bool whole_rows = true;
  struct Row {
    Real mean, reciprocal_std, mean_a, mean_ax;
  };
  using Loaded = Values<Real, add_to_input ? 4 : 3>;
  LayerNorm<Exec, Real> norm;
  MatrixRef<Exec, const Real> d_output;
  MatrixRef<Exec, Real> d_input, d_branch;
  Dropout<Real> mask;

  /// With x̂ the normalised row and a = d_output · weight: d_input = (a − mean(a) − x̂ mean(a x̂)) / std.
  KOKKOS_FORCEINLINE_FUNCTION Row row(const RowTeam<Exec>& team, int r) const {
    const int columns = norm.input.extent_int(1);
    const Real mean = norm.mean(r), reciprocal_std = norm.reciprocal_std(r);
    const auto load = [&](int j) { return Values<Real, 3>{{d_output(r, j), norm.weight(j), norm.input(r, j)}}; };
    const Real mean_a =
        team.sum(columns, load, [](int, const Values<Real, 3>& loaded) { return loaded[0] * loaded[1]; }) / columns;
    const Real mean_ax = team.sum(columns, load, [&](int, const Values<Real, 3>& loaded) {
      return loaded[0] * loaded[1] * (loaded[2] - mean);
    }) * reciprocal_std / columns;
    return {mean, reciprocal_std, mean_a, mean_ax};
  }
  KOKKOS_FORCEINLINE_FUNCTION DropoutRow<Real> dropout(int r) const { return mask.row(r); }
  KOKKOS_FORCEINLINE_FUNCTION Loaded load(int r, int j) const {
    if constexpr (add_to_input)
      return {{norm.input(r, j), d_output(r, j), norm.weight(j), d_input(r, j)}};
    else
      return {{norm.input(r, j), d_output(r, j), norm.weight(j)}};
  }
  template <class Add>
  KOKKOS_FORCEINLINE_FUNCTION void operator()(int r, int j, const Loaded& loaded, const Row& row, Real factor,
                                              const Add& add) const {
    const Real normalized = (loaded[0] - row.mean) * row.reciprocal_std;
    const Real d = loaded[1];
    add(0, d * normalized);
    add(1, d);
    Real d_sum = row.reciprocal_std * (d * loaded[2] - row.mean_a - normalized * row.mean_ax);
    if constexpr (add_to_input) d_sum = loaded[3] + d_sum;
    d_input(r, j) = d_sum;
    if constexpr (has_branch) {
      const Real d_dropped = factor * d_sum;
      d_branch(r, j) = d_dropped;
      add(2, d_dropped);
    }
  }
};

/// (N, H) with dropout: 256 teams of 16 rows each, 67 MB, and 34 MB again from the caches, because a row's sums come
/// first; then 96 teams, 3 MB.
template <class Exec, class Real>
void Layers<Exec, Real>::layer_norm_backward(const Exec& exec, const Norm& norm, ConstMatrix d_output, bool add,
                                             Matrix d_input, const Dropout<Real>& dropout, Matrix d_branch,
                                             Vector scratch, const LayerNormGradient<Exec, Real>& gradient) {
  const auto run = [&](auto add_to_input, auto has_branch) {
    using Terms = LayerNormTerms<Exec, Real, decltype(add_to_input)::value, decltype(has_branch)::value>;
    Kokkos::Array<Real*, Terms::sums> totals{{gradient.d_weight.data(), gradient.d_bias.data()}};
    if constexpr (decltype(has_branch)::value) totals[2] = gradient.d_branch_bias.data();
    Terms terms;
    terms.norm = norm;
    terms.d_output = d_output;
    terms.d_input = d_input;
    terms.d_branch = d_branch;
    terms.mask = dropout;
    sum_columns(exec, "OneBit::nn::layer_norm_backward", d_output.extent_int(0), d_output.extent_int(1), terms, scratch,
                totals);
  };
  using Yes = std::true_type;
  using No = std::false_type;
  if (gradient.d_branch_bias.extent(0) > 0)
    add ? run(Yes(), Yes()) : run(No(), Yes());
  else
    add ? run(Yes(), No()) : run(No(), No());
}

/// (N, H): 512 teams, 34 MB.
template <class Exec, class Real>
void Layers<Exec, Real>::embed(const Exec& exec, const Embeddings<Exec, Real>& embeddings, Indices tokens,
                               Matrix output) {
  const auto word = embeddings.word, position = embeddings.position, type = embeddings.type;
  const int columns = output.extent_int(1), sequence = embeddings.sequence, second_text = embeddings.second_text;
  const bool has_type = type.extent(0) > 0;
  for_each_row(
      exec, "OneBit::nn::embed", output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const int token = tokens(r), t = r % sequence, text = t < second_text ? 0 : 1;
        const auto store = [&](int j, Real sum) { output(r, j) = sum; };
        team.for_each(
            columns, [&](int j) { return word(token, j) + position(t, j); }, store);
        if (has_type)
          team.for_each(
              columns, [&](int j) { return output(r, j) + type(text, j); }, store);
      });
}

/// total(begin + i) += Σ matrix(r, begin + i) for i in [0, length) over the rows r = first, next(first), … below
/// `rows`, in this order. Eight rows are added at a time, so their loads are in flight together.
template <class Team, class Matrix, class Vector, class Next>
KOKKOS_FORCEINLINE_FUNCTION void add_rows(const Team& team, int first, const Next& next, const Matrix& matrix,
                                          int begin, int length, const Vector& total) {
  constexpr int at_once = 8;
  const int rows = matrix.extent_int(0);
  for (int r = first; r < rows;) {
    int number[at_once], count = 0;
    for (int k = 0; k < at_once; ++k) {
      number[k] = r;
      if (r < rows) {
        r = next(r);
        ++count;
      }
    }
    if (count == at_once)
      team.for_each(length, [&](int i) {
        auto sum = total(begin + i);
        for (int k = 0; k < at_once; ++k) sum += matrix(number[k], begin + i);
        total(begin + i) = sum;
      });
    else
      for (int k = 0; k < at_once; ++k)
        if (k < count) team.for_each(length, [&](int i) { total(begin + i) += matrix(number[k], begin + i); });
  }
}

/// Positions: 512 teams, 17 MB. Links: 512 teams, which read 16 KB again and again. Words: 16384 teams, of which those
/// of a token's first row work, 17 MB and 8 KB for each different token. 490 rows of one token, the share of [MASK],
/// are 62 rounds of 8 rows for each of 32 warps.
template <class Exec, class Real>
void Layers<Exec, Real>::embed_backward(const Exec& exec, int sequence, Indices tokens, ConstMatrix d_output,
                                        VectorRef<Exec, int> links, Matrix d_word, Matrix d_position) {
  const int rows = d_output.extent_int(0), columns = d_output.extent_int(1);
  for_each_row_part(
      exec, "OneBit::nn::embed_backward::position", sequence, columns,
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int t, int begin, int length) {
        const Vector total(&d_position(t, 0), columns);
        add_rows(
            team, t, [&](int r) { return r + sequence; }, d_output, begin, length, total);
      });

  // Each row points to the next one with its token. The search costs at most N²/2 comparisons of integers, few beside
  // the N · (number of parameters) multiplications of the matrix products.
  const VectorRef<Exec, int> next(links.data(), rows), is_first(links.data() + rows, rows);
  Kokkos::deep_copy(exec, is_first, 1);
  for_each_row(
      exec, "OneBit::nn::embed_backward::link", rows, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        constexpr int width = 128;
        const int token = tokens(r);
        int found = rows;
        for (int begin = r + 1; begin < rows && found == rows; begin += width)
          found -= team.max(rows - begin < width ? rows - begin : width,
                            [&](int i) { return tokens(begin + i) == token ? rows - begin - i : 0; });
        team.once([&] {
          next(r) = found;
          if (found < rows) is_first(found) = 0;
        });
      });
  for_each_row_part(
      exec, "OneBit::nn::embed_backward::word", rows, columns,
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r, int begin, int length) {
        if (!is_first(r)) return;
        const Vector total(&d_word(tokens(r), 0), columns);
        add_rows(team, r, next, d_output, begin, length, total);
      });
}

/// (P, H): 80 teams, 5 MB.
template <class Exec, class Real>
void Layers<Exec, Real>::gather_rows(const Exec& exec, Indices rows, ConstMatrix input, Matrix output) {
  const int columns = output.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::gather_rows", output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int p) {
        const int r = rows(p);
        team.for_each(
            columns, [&](int j) { return input(r, j); }, [&](int j, Real value) { output(p, j) = value; });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::gather_rows_backward(const Exec& exec, Indices rows, ConstMatrix d_output, Matrix d_input) {
  const int columns = d_output.extent_int(1);
  Kokkos::deep_copy(exec, d_input, Real(0));
  for_each_row(
      exec, "OneBit::nn::gather_rows_backward", d_output.extent_int(0),
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int p) {
        const int r = rows(p);
        team.for_each(
            columns, [&](int j) { return d_output(p, j); }, [&](int j, Real value) { d_input(r, j) = value; });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::mean_rows(const Exec& exec, ConstMatrix input, Matrix output) {
  const int columns = output.extent_int(1), rows = input.extent_int(0) / output.extent_int(0);
  for_each_row_part(
      exec, "OneBit::nn::mean_rows", output.extent_int(0), columns,
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int p, int begin, int length) {
        team.for_each(length, [&](int i) {
          Real sum = 0;
          for (int t = 0; t < rows; ++t) sum += input(p * rows + t, begin + i);
          output(p, begin + i) = sum / Real(rows);
        });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::mean_rows_backward(const Exec& exec, ConstMatrix d_output, Matrix d_input) {
  const int columns = d_output.extent_int(1), rows = d_input.extent_int(0) / d_output.extent_int(0);
  for_each_row(
      exec, "OneBit::nn::mean_rows_backward", d_input.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(
            columns, [&](int j) { return d_output(r / rows, j) / Real(rows); },
            [&](int j, Real value) { d_input(r, j) = value; });
      });
}

/// (P, V): 640 teams, 78 MB for each of 7 passes (read and write: bias, powers, scale; read: maximum) of 122 KB a row.
template <class Exec, class Real>
void Layers<Exec, Real>::cross_entropy(const Exec& exec, ConstVector bias, Indices target, CrossEntropyOutput output,
                                       Matrix logits, Vector losses) {
  const int columns = logits.extent_int(1);
  const bool has_bias = bias.extent(0) > 0, wants_gradient = output == CrossEntropyOutput::gradient;
  for_each_wide_row(
      exec, "OneBit::nn::cross_entropy", logits.extent_int(0), KOKKOS_LAMBDA(const WideRowTeam<Exec>& team, int p) {
        const auto logit = [&](int j) -> Real { return logits(p, j); };
        const auto store = [&](int j, Real value) { logits(p, j) = value; };
        if (has_bias)
          team.for_each(
              columns, [&](int j) { return logits(p, j) + bias(j); }, store);
        const Real target_logit = logits(p, target(p));  // read before `max`: after it lanes overwrite the logits
        const Real largest = team.max(columns, logit);
        Real sum = 0;
        if (wants_gradient) {
          sum = team.sum(columns, logit, [&](int j, Real value) {
            const Real power = exp(value - largest);
            logits(p, j) = power;
            return power;
          });
          const Real reciprocal = Real(1) / sum;
          team.for_each(
              columns, [&](int j) { return logits(p, j) * reciprocal; }, store);
        } else {
          sum = team.sum(columns, logit, [&](int, Real value) { return exp(value - largest); });
        }
        team.once([&] {
          losses(p) = math::log(sum) + largest - target_logit;
          if (wants_gradient) logits(p, target(p)) -= Real(1);
        });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::is_right(const Exec& exec, Indices target, ConstMatrix logits, Vector right) {
  const int columns = logits.extent_int(1);
  for_each_wide_row(
      exec, "OneBit::nn::is_right", logits.extent_int(0), KOKKOS_LAMBDA(const WideRowTeam<Exec>& team, int p) {
        const int wanted = target(p);
        const Real logit = logits(p, wanted);
        // Written so that a NaN counts too.
        const Real as_good = team.sum(columns, [&](int j) {
          const Real other = logits(p, j);
          return Real(j < wanted ? !(other < logit) : j > wanted ? !(other <= logit) : other != logit);
        });
        team.once([&] { right(p) = Real(as_good == 0); });
      });
}

#define ONEBIT_INSTANTIATE(Exec, Real) template struct Layers<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
