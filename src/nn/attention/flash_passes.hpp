#pragma once
/// \file flash_passes.hpp
/// The passes of attention on a device (Dao 2023, "FlashAttention-2", algorithms 1 and 2): forward, dQ, and dK with dV.

#include "nn/attention/flash_pass.hpp"

namespace onebit::nn::flash {

/// context and log_sums of 64 queries (Dao 2023, algorithm 1).
template <class Exec, class Real, bool tensor, int channels>
struct Forward : Pass<Exec, Real, tensor, channels> {
  using Base = Pass<Exec, Real, tensor, channels>;
  using Base::columns;
  static constexpr int teams_of_multiprocessor = tensor && channels <= 64 ? 3 : 2;  // of three: 168 registers
  Real *context, *log_sums;

  KOKKOS_FUNCTION void operator()(const typename Base::Member& member) const {
    const auto place = this->place(member);
    const auto memory = this->scratch(member);
    const Lane<Exec> lane = this->lane();
    const int T = this->sequence, warp_first = member.team_rank() * warp_rows, first = place.first + warp_first;
    const int team_end = place.first + Base::team_rows, end = this->causal && team_end < T ? team_end : T;
    const Real scale = this->scale(), kept = this->dropout.row(0, 0, 0, T).scale;

    Real queries[lane.elements(channels)], sums[lane.elements(channels)], scores[lane.elements(columns)];
    Real largest[lane.rows], total[lane.rows];
    int seen[lane.rows];
    this->load_factor(lane, this->third(this->qkv, 0, place), first, queries);
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) sums[e] = 0;
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) {
      largest[s] = lowest_number<Real>;
      total[s] = 0;
      seen[s] = this->keys_seen(first + lane.row(s)) - lane.first_column();
    }
    const auto draw = [&](int key) {
      if (this->dropout.active() && key % dropout_block == 0)
        this->draw(member, place, place.first, Base::team_rows, key, memory.mask);
    };
    const HeadMatrix<const Real> keys = this->third(this->qkv, 1, place), values = this->third(this->qkv, 2, place);
    this->for_each_tile(member, memory, keys, values, 0, end, draw, [&](int key) {
      multiply_rows<tensor, columns, channels>(lane, queries, memory.first, scores);
      rescale(lane, key, scale, scores, seen, largest, total, sums);
      ONEBIT_UNROLL
      for (int e = 0; e < lane.elements(columns); ++e) {
        const int slot = lane.slot(columns, e), row = lane.row(slot), offset = lane.offset(columns, e);
        const Real power = offset < seen[slot] - key ? power_of_e(scale * scores[e] - largest[slot]) : Real(0);
        total[slot] += power;
        scores[e] = power * this->factor(memory.mask, warp_first + row, key + lane.first_column() + offset, kept);
      }
      multiply_add<tensor, columns, channels>(lane, scores, memory.second, sums);
    });
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) {
      total[s] = lane.sum_over_row(total[s]);
      const int row = first + lane.row(s);
      if (lane.member() == 0 && row < T) this->rows(log_sums, place)[row] = largest[s] + math::log(total[s]);
      total[s] = 1 / total[s];
    }
    this->store(lane, sums, this->head(context, place), first, [&](int slot) { return total[slot]; });
  }

private:
  /// largest ← the largest score so far; what was summed follows it.
  KOKKOS_FORCEINLINE_FUNCTION void rescale(Lane<Exec> lane, int key, Real scale, const Real* scores, const int* seen,
                                           Real* largest, Real* total, Real* sums) const {
    Real change[lane.rows];
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) change[s] = largest[s];
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(columns); ++e) {
      const int slot = lane.slot(columns, e);
      const Real score = scale * scores[e];
      if (lane.offset(columns, e) < seen[slot] - key && largest[slot] < score) largest[slot] = score;
    }
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) {
      largest[s] = lane.over_row(largest[s], [](Real a, Real b) { return a < b ? b : a; });
      change[s] = power_of_e(change[s] - largest[s]);
      total[s] *= change[s];
    }
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) sums[e] *= change[lane.slot(channels, e)];
  }
};

/// dQ of 64 queries, and products ← rowsum(dO ∘ O) (Dao 2023, algorithm 2, lines 4 and 15).
template <class Exec, class Real, bool tensor, int channels>
struct QueryGradient : Pass<Exec, Real, tensor, channels> {
  using Base = Pass<Exec, Real, tensor, channels>;
  using Base::columns;
  const Real *context, *d_context, *log_sums;
  Real *products, *d_qkv;

  KOKKOS_FUNCTION void operator()(const typename Base::Member& member) const {
    const auto place = this->place(member);
    const auto memory = this->scratch(member);
    const Lane<Exec> lane = this->lane();
    const int T = this->sequence, warp_first = member.team_rank() * warp_rows, first = place.first + warp_first;
    const int team_end = place.first + Base::team_rows, end = this->causal && team_end < T ? team_end : T;
    const Real scale = this->scale(), kept = this->dropout.row(0, 0, 0, T).scale;

    Real queries[lane.elements(channels)], d_output[lane.elements(channels)], sums[lane.elements(channels)];
    Real scores[lane.elements(columns)], gradients[lane.elements(columns)], log_sum[lane.rows], product[lane.rows];
    int seen[lane.rows];
    this->load_factor(lane, this->third(this->qkv, 0, place), first, queries);
    this->load_rows(lane, this->head(d_context, place), first, d_output);
    row_products(lane, place, first, d_output, product);
    this->round_factor(lane, d_output);
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) {
      const int row = first + lane.row(s);
      log_sum[s] = row < T ? this->rows(log_sums, place)[row] : Real(0);
      seen[s] = this->keys_seen(row) - lane.first_column();
      if (lane.member() == 0 && row < T) this->rows(products, place)[row] = product[s];
    }
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) sums[e] = 0;
    const auto draw = [&](int key) {
      if (this->dropout.active() && key % dropout_block == 0)
        this->draw(member, place, place.first, Base::team_rows, key, memory.mask);
    };
    const HeadMatrix<const Real> keys = this->third(this->qkv, 1, place), values = this->third(this->qkv, 2, place);
    this->for_each_tile(member, memory, keys, values, 0, end, draw, [&](int key) {
      multiply_rows<tensor, columns, channels>(lane, queries, memory.first, scores);
      multiply_rows<tensor, columns, channels>(lane, d_output, memory.second, gradients);
      ONEBIT_UNROLL
      for (int e = 0; e < lane.elements(columns); ++e) {
        const int slot = lane.slot(columns, e), offset = lane.offset(columns, e);
        const Real p = offset < seen[slot] - key ? power_of_e(scale * scores[e] - log_sum[slot]) : Real(0);
        const Real factor =
            this->factor(memory.mask, warp_first + lane.row(slot), key + lane.first_column() + offset, kept);
        scores[e] = p * (factor * gradients[e] - product[slot]);
      }
      multiply_add<tensor, columns, channels>(lane, scores, memory.first, sums);
    });
    this->store(lane, sums, this->third(d_qkv, 0, place), first, [&](int) { return scale; });
  }

private:
  KOKKOS_FORCEINLINE_FUNCTION void row_products(Lane<Exec> lane, const typename Base::Place& place, int first,
                                                const Real* d_output, Real* product) const {
    Real output[lane.elements(channels)];
    this->load_rows(lane, this->head(context, place), first, output);
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) product[s] = 0;
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) product[lane.factor_slot(channels, e)] += output[e] * d_output[e];
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) product[s] = lane.sum_over_row(product[s]);
  }
};

/// dK and dV of 64 keys, from transposed scores: a row belongs to a key (Dao 2023, algorithm 2).
template <class Exec, class Real, bool tensor, int channels>
struct KeyGradient : Pass<Exec, Real, tensor, channels> {
  using Base = Pass<Exec, Real, tensor, channels>;
  using Base::columns;
  const Real *d_context, *log_sums, *products;
  Real* d_qkv;

  KOKKOS_FUNCTION void operator()(const typename Base::Member& member) const {
    const auto place = this->place(member);
    const auto memory = this->scratch(member);
    const Lane<Exec> lane = this->lane();
    const int T = this->sequence, first = place.first + member.team_rank() * warp_rows;
    const int begin = this->causal ? place.first / columns * columns : 0;
    const Real scale = this->scale(), kept = this->dropout.row(0, 0, 0, T).scale;

    Real keys[lane.elements(channels)], values[lane.elements(channels)];
    Real d_keys[lane.elements(channels)], d_values[lane.elements(channels)];
    Real scores[lane.elements(columns)], gradients[lane.elements(columns)];
    int first_query[lane.rows];
    ONEBIT_UNROLL
    for (int s = 0; s < lane.rows; ++s) first_query[s] = this->first_query(first + lane.row(s)) - lane.first_column();
    this->load_factor(lane, this->third(this->qkv, 1, place), first, keys);
    this->load_factor(lane, this->third(this->qkv, 2, place), first, values);
    ONEBIT_UNROLL
    for (int e = 0; e < lane.elements(channels); ++e) d_keys[e] = d_values[e] = 0;
    const auto beside = [&](int query) {
      Kokkos::parallel_for(Kokkos::TeamVectorRange(member, +columns), [&](int i) {
        memory.log_sums[i] = query + i < T ? this->rows(log_sums, place)[query + i] : Real(0);
        memory.products[i] = query + i < T ? this->rows(products, place)[query + i] : Real(0);
      });
      if (this->dropout.active()) this->draw(member, place, query, columns, place.first, memory.mask);
    };
    const HeadMatrix<const Real> queries = this->third(this->qkv, 0, place), d_outputs = this->head(d_context, place);
    this->for_each_tile(member, memory, queries, d_outputs, begin, T, beside, [&](int query) {
      multiply_rows<tensor, columns, channels>(lane, keys, memory.first, scores);
      multiply_rows<tensor, columns, channels>(lane, values, memory.second, gradients);
      ONEBIT_UNROLL
      for (int e = 0; e < lane.elements(columns); ++e) {
        const int slot = lane.slot(columns, e), offset = lane.offset(columns, e), i = lane.first_column() + offset;
        const Real p =
            offset >= first_query[slot] - query ? power_of_e(scale * scores[e] - memory.log_sums[i]) : Real(0);
        const Real factor = this->factor(memory.mask, i, first + lane.row(slot), kept);
        scores[e] = p * factor;
        gradients[e] = p * (factor * gradients[e] - memory.products[i]);
      }
      multiply_add<tensor, columns, channels>(lane, scores, memory.second, d_values);
      multiply_add<tensor, columns, channels>(lane, gradients, memory.first, d_keys);
    });
    this->store(lane, d_keys, this->third(d_qkv, 1, place), first, [&](int) { return scale; });
    this->store(lane, d_values, this->third(d_qkv, 2, place), first, [](int) { return Real(1); });
  }
};

}  // namespace onebit::nn::flash
