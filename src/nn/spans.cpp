#include "nn/spans.hpp"

#include <limits>

namespace onebit::nn {

template <class Exec, class Real>
void Spans<Exec, Real>::gather(const Exec& exec, Indices ends, ConstMatrix scores, Matrix logits) {
  const int T = logits.extent_int(1);
  const Real never = -std::numeric_limits<Real>::infinity();
  for_each_row(
      exec, "OneBit::nn::Spans::gather", logits.extent_int(0), KOKKOS_LAMBDA(const RowTeam<Exec>& team, int p) {
        const int b = p / 2, first = ends(2 * b), last = ends(2 * b + 1);
        team.for_each(
            T,
            [&](int t) {
              const int r = b * T + t;
              return first <= r && r <= last ? scores(r, p % 2) : never;
            },
            [&](int t, Real value) { logits(p, t) = value; });
      });
}

template <class Exec, class Real>
void Spans<Exec, Real>::gather_backward(const Exec& exec, ConstMatrix d_logits, Matrix d_scores) {
  const int T = d_logits.extent_int(1);
  for_each(
      exec, "OneBit::nn::Spans::gather_backward", d_scores.size(), KOKKOS_LAMBDA(std::size_t i) {
        const int r = static_cast<int>(i / 2), k = static_cast<int>(i % 2);
        d_scores(r, k) = d_logits(2 * (r / T) + k, r % T);
      });
}

template <class Exec, class Real>
void Spans<Exec, Real>::measure(const Exec& exec, SpanMeasure of, Indices ends, Indices target, ConstMatrix logits,
                                VectorRef<Exec, Real> result) {
  const int T = logits.extent_int(1);
  for_each(
      exec, "OneBit::nn::Spans::measure", logits.extent(0) / 2, KOKKOS_LAMBDA(std::size_t i) {
        const int b = static_cast<int>(i), first = ends(2 * b) - b * T, last = ends(2 * b + 1) - b * T;
        // The best start for each end is the best one so far.
        int start = first, answer_start = -1, answer_end = -1;
        Real best = 0;
        for (int end = first; end <= last; ++end) {
          if (logits(2 * b, end) > logits(2 * b, start)) start = end;
          const Real sum = logits(2 * b, start) + logits(2 * b + 1, end);
          if (!(sum > best) && !(answer_end < 0 && sum == sum)) continue;
          best = sum;
          answer_start = start;
          answer_end = end;
        }
        const int right_start = target(2 * b), right_end = target(2 * b + 1);
        const int common = 1 + (answer_end < right_end ? answer_end : right_end) -
                           (answer_start > right_start ? answer_start : right_start);
        const int tokens = answer_end - answer_start + right_end - right_start + 2;
        const bool is_exact = answer_start == right_start && answer_end == right_end;
        const Real f1 = common > 0 && answer_end >= 0 ? Real(2 * common) / Real(tokens) : Real(0);
        result(2 * b) = result(2 * b + 1) = of == SpanMeasure::f1 ? f1 : Real(is_exact);
      });
}

#define ONEBIT_INSTANTIATE(Exec, Real) template struct Spans<Exec, Real>;
ONEBIT_INSTANTIATE_FOR_EACH_BACKEND_AND_REAL

}  // namespace onebit::nn
