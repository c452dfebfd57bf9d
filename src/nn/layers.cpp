#include "nn/layers.hpp"

#include "nn/activation.hpp"

namespace onebit::nn {

using linalg::Transpose;

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

template <class Exec, class Real>
void Layers<Exec, Real>::add_bias(const Exec& exec, ConstVector bias, Matrix matrix) {
  const int columns = matrix.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::add_bias", matrix.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(columns, [&](int j) { matrix(r, j) += bias(j); });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::add_partial_sums(const Exec& exec, ConstMatrix partial, Vector total, Real scale) {
  const int blocks = partial.extent_int(0), columns = partial.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::add_partial_sums", (columns + lane_count - 1) / lane_count,
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int number) {
        const int begin = number * lane_count;
        const int length = columns - begin < lane_count ? columns - begin : lane_count;
        team.for_each(length, [&](int lane) {
          Real sum = 0;
          for (int block = 0; block < blocks; ++block) sum += partial(block, begin + lane);
          total(begin + lane) += scale * sum;
        });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::add_bias_backward(const Exec& exec, ConstMatrix d_output, Vector scratch, Vector d_bias,
                                           Real scale) {
  const int rows = d_output.extent_int(0), columns = d_output.extent_int(1), blocks = row_block_count<Exec>(rows);
  const Matrix sums(scratch.data(), blocks, columns);
  for_each_row(
      exec, "OneBit::nn::add_bias_backward", blocks, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int block) {
        const int begin = block * rows_per_block<Exec>;
        const int end = begin + rows_per_block<Exec> < rows ? begin + rows_per_block<Exec> : rows;
        team.for_each(columns, [&](int j) { sums(block, j) = d_output(begin, j); });
        for (int r = begin + 1; r < end; ++r) team.for_each(columns, [&](int j) { sums(block, j) += d_output(r, j); });
      });
  add_partial_sums(exec, sums, d_bias, scale);
}

template <class Exec, class Real>
void Layers<Exec, Real>::drop_out(const Exec& exec, const Dropout<Real>& dropout, Matrix matrix) {
  if (!dropout.active()) return;
  const int columns = matrix.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::drop_out", matrix.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(columns, dropout.row(r), [&](int j, Real factor) { matrix(r, j) *= factor; });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::bias_gelu(const Exec& exec, ConstVector bias, Matrix input, Matrix output) {
  const int columns = input.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::bias_gelu", input.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(columns, [&](int j) {
          const Real u = input(r, j) + bias(j);
          input(r, j) = u;
          output(r, j) = Gelu<Real>(u).value;
        });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::bias_gelu_backward(const Exec& exec, Matrix input, Matrix gradient, Vector scratch,
                                            Vector d_bias) {
  const int rows = input.extent_int(0), columns = input.extent_int(1), blocks = row_block_count<Exec>(rows);
  const Matrix sums(scratch.data(), blocks, columns);
  for_each_row(
      exec, "OneBit::nn::bias_gelu_backward", blocks, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int block) {
        const int begin = block * rows_per_block<Exec>;
        const int end = begin + rows_per_block<Exec> < rows ? begin + rows_per_block<Exec> : rows;
        team.for_each(columns, [&](int j) { sums(block, j) = 0; });
        for (int r = begin; r < end; ++r)
          team.for_each(columns, [&](int j) {
            const Gelu<Real> gelu(input(r, j));
            const Real d = gradient(r, j) * gelu.derivative;
            input(r, j) = gelu.value;
            gradient(r, j) = d;
            sums(block, j) += d;
          });
      });
  add_partial_sums(exec, sums, d_bias);
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
  const int columns = gradient.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::bias_tanh_backward", gradient.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(columns, [&](int j) { gradient(r, j) *= Real(1) - output(r, j) * output(r, j); });
      });
  add_bias_backward(exec, gradient, scratch, d_bias);
}

/// Row r of norm.output, norm.mean and norm.reciprocal_std.
template <class Exec, class Real>
KOKKOS_FORCEINLINE_FUNCTION void normalize_row(const RowTeam<Exec>& team, int r, const LayerNorm<Exec, Real>& norm) {
  const int columns = norm.input.extent_int(1);
  const Real mean = team.sum(columns, [&](int j) -> Real { return norm.input(r, j); }) / columns;
  const Real variance = team.sum(columns, [&](int j) {
    const Real difference = norm.input(r, j) - mean;
    return difference * difference;
  }) / columns;
  const Real reciprocal_std = Real(1) / math::sqrt(variance + norm.epsilon);
  team.for_each(columns, [&](int j) {
    norm.output(r, j) = (norm.input(r, j) - mean) * reciprocal_std * norm.weight(j) + norm.bias(j);
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

template <class Exec, class Real>
void Layers<Exec, Real>::residual_layer_norm(const Exec& exec, ConstMatrix residual, ConstVector bias,
                                             const Dropout<Real>& dropout, const Norm& norm) {
  const int columns = norm.input.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::residual_layer_norm", norm.input.extent_int(0),
      KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(columns, dropout.row(r), [&](int j, Real factor) {
          norm.input(r, j) = residual(r, j) + factor * (norm.input(r, j) + bias(j));
        });
        normalize_row(team, r, norm);
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::layer_norm_backward(const Exec& exec, const Norm& norm, ConstMatrix d_output, bool add,
                                             Matrix d_input, const Dropout<Real>& dropout, Matrix d_branch,
                                             Vector scratch, const LayerNormGradient<Exec, Real>& gradient) {
  const int rows = norm.input.extent_int(0), columns = norm.input.extent_int(1), blocks = row_block_count<Exec>(rows);
  const Matrix weight_sums(scratch.data(), blocks, columns);
  const Matrix bias_sums(weight_sums.data() + weight_sums.size(), blocks, columns);
  const Matrix branch_sums(bias_sums.data() + bias_sums.size(), blocks, columns);
  const bool has_branch = gradient.d_branch_bias.extent(0) > 0;
  for_each_row(
      exec, "OneBit::nn::layer_norm_backward", blocks, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int block) {
        const int begin = block * rows_per_block<Exec>;
        const int end = begin + rows_per_block<Exec> < rows ? begin + rows_per_block<Exec> : rows;
        team.for_each(columns, [&](int j) {
          weight_sums(block, j) = 0;
          bias_sums(block, j) = 0;
          branch_sums(block, j) = 0;
        });
        for (int r = begin; r < end; ++r) {
          // With x̂ the normalised row and a = d_output · weight: d_input = (a − mean(a) − x̂ mean(a x̂)) / std.
          const Real mean = norm.mean(r), reciprocal_std = norm.reciprocal_std(r);
          const Real mean_a = team.sum(columns, [&](int j) { return d_output(r, j) * norm.weight(j); }) / columns;
          const Real mean_ax = team.sum(columns, [&](int j) {
            return d_output(r, j) * norm.weight(j) * (norm.input(r, j) - mean);
          }) * reciprocal_std / columns;
          team.for_each(columns, [&](int j) {
            const Real normalized = (norm.input(r, j) - mean) * reciprocal_std;
            const Real d = d_output(r, j);
            weight_sums(block, j) += d * normalized;
            bias_sums(block, j) += d;
            const Real d_normalization = reciprocal_std * (d * norm.weight(j) - mean_a - normalized * mean_ax);
            d_input(r, j) = add ? d_input(r, j) + d_normalization : d_normalization;
          });
          if (has_branch)
            team.for_each(columns, dropout.row(r), [&](int j, Real factor) {
              const Real d = factor * d_input(r, j);
              d_branch(r, j) = d;
              branch_sums(block, j) += d;
            });
        }
      });
  add_partial_sums(exec, weight_sums, gradient.d_weight);
  add_partial_sums(exec, bias_sums, gradient.d_bias);
  if (has_branch) add_partial_sums(exec, branch_sums, gradient.d_branch_bias);
}

template <class Exec, class Real>
void Layers<Exec, Real>::embed(const Exec& exec, int sequence, Indices tokens, ConstMatrix word, ConstMatrix position,
                               ConstVector type, Matrix output) {
  const int columns = output.extent_int(1);
  const bool has_type = type.extent(0) > 0;
  for_each_row(
      exec, "OneBit::nn::embed", output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        const int token = tokens(r), t = r % sequence;
        team.for_each(columns, [&](int j) { output(r, j) = word(token, j) + position(t, j); });
        if (has_type) team.for_each(columns, [&](int j) { output(r, j) += type(j); });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::embed_backward(const Exec& exec, int sequence, Indices tokens, ConstMatrix d_output,
                                        VectorRef<Exec, int> links, Matrix d_word, Matrix d_position) {
  const int rows = d_output.extent_int(0), columns = d_output.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::embed_backward::position", sequence, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int t) {
        for (int r = t; r < rows; r += sequence)
          team.for_each(columns, [&](int j) { d_position(t, j) += d_output(r, j); });
      });

  // Each row points to the next one with its token. The search costs at most N²/2 comparisons of integers, few beside
  // the N · (number of parameters) multiplications of the matrix products.
  const VectorRef<Exec, int> next(links.data(), rows), is_first(links.data() + rows, rows);
  Kokkos::deep_copy(exec, is_first, 1);
  Kokkos::parallel_for(
      "OneBit::nn::embed_backward::link", Kokkos::RangePolicy<Exec>(exec, 0, rows), KOKKOS_LAMBDA(int r) {
        int s = r + 1;
        while (s < rows && tokens(s) != tokens(r)) ++s;
        next(r) = s;
        if (s < rows) is_first(s) = 0;
      });
  for_each_row(
      exec, "OneBit::nn::embed_backward::word", rows, KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        if (!is_first(r)) return;
        const int token = tokens(r);
        for (int s = r; s < rows; s = next(s))
          team.for_each(columns, [&](int j) { d_word(token, j) += d_output(s, j); });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::gather_rows(const Exec& exec, Indices rows, ConstMatrix input, Matrix output) {
  const int columns = output.extent_int(1);
  for_each_row(
      exec, "OneBit::nn::gather_rows", output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int p) {
        const int r = rows(p);
        team.for_each(columns, [&](int j) { output(p, j) = input(r, j); });
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
        team.for_each(columns, [&](int j) { d_input(r, j) = d_output(p, j); });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::mean_rows(const Exec& exec, ConstMatrix input, Matrix output) {
  const int columns = output.extent_int(1), rows = input.extent_int(0) / output.extent_int(0);
  for_each_row(
      exec, "OneBit::nn::mean_rows", output.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int p) {
        team.for_each(columns, [&](int j) {
          Real sum = 0;
          for (int t = 0; t < rows; ++t) sum += input(p * rows + t, j);
          output(p, j) = sum / Real(rows);
        });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::mean_rows_backward(const Exec& exec, ConstMatrix d_output, Matrix d_input) {
  const int columns = d_output.extent_int(1), rows = d_input.extent_int(0) / d_output.extent_int(0);
  for_each_row(
      exec, "OneBit::nn::mean_rows_backward", d_input.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int r) {
        team.for_each(columns, [&](int j) { d_input(r, j) = d_output(r / rows, j) / Real(rows); });
      });
}

template <class Exec, class Real>
void Layers<Exec, Real>::cross_entropy(const Exec& exec, ConstVector bias, Indices target, CrossEntropyOutput output,
                                       Matrix logits, Vector losses) {
  const int columns = logits.extent_int(1);
  const bool has_bias = bias.extent(0) > 0, wants_gradient = output == CrossEntropyOutput::gradient;
  for_each_row(
      exec, "OneBit::nn::cross_entropy", logits.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int p) {
        if (has_bias) team.for_each(columns, [&](int j) { logits(p, j) += bias(j); });
        const Real target_logit = logits(p, target(p));  // read before `max`: after it lanes overwrite the logits
        const Real largest = team.max(columns, [&](int j) -> Real { return logits(p, j); });
        Real sum = 0;
        if (wants_gradient) {
          sum = team.sum(columns, [&](int j) {
            const Real power = exp(logits(p, j) - largest);
            logits(p, j) = power;
            return power;
          });
          const Real reciprocal = Real(1) / sum;
          team.for_each(columns, [&](int j) { logits(p, j) *= reciprocal; });
        } else {
          sum = team.sum(columns, [&](int j) { return exp(logits(p, j) - largest); });
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
  for_each_row(
      exec, "OneBit::nn::is_right", logits.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int p) {
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

#define ONEBIT_INSTANTIATE(Exec)       \
  template struct Layers<Exec, float>; \
  template struct Layers<Exec, double>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::nn
