#pragma once
/// \file optim_reference.hpp
/// Every algorithm of docs/reference/algorithms/README.md as one plain function in double precision, n ranks simulated
/// serially. It shares no code with src/optim, src/comm and src/compress; only the random numbers of the stochastic
/// rounding are theirs.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "base/tensor_table.hpp"
#include "config/input.hpp"
#include "newton_schulz_reference.hpp"
#include "rates_reference.hpp"

namespace onebit::test {

using Values = std::vector<double>;

/// All ranks of a run in one place, and what they do together.
struct SimulatedRanks {
  const config::Input& input;
  const TensorTable& tensors;
  int ranks;
  std::vector<Values> x;             ///< (ranks) of (d)
  Values m, v;                       ///< (d) where all ranks hold the same
  std::vector<Values> own_m, own_v;  ///< (ranks) where each has its own
  Values anchor, outer_momentum;     ///< (d) x̄ and b of DiLoCo
  double earlier_steps = 0;          ///< of which v is the average at the start, for its bias correction
  /// Least distance of a decision (a sign, a stochastic rounding) from its border, in units of what single precision
  /// may err: below 1 it may decide otherwise.
  double margin = std::numeric_limits<double>::infinity();
  double sign_error = 1e-6;  ///< that much of the numbers that a sign depends on

  SimulatedRanks(const config::Input& input, const TensorTable& tensors, int ranks, const Values& initial)
      : input(input),
        tensors(tensors),
        ranks(ranks),
        x(ranks, initial),
        m(tensors.size()),
        v(tensors.size()),
        own_m(ranks, m),
        own_v(ranks, m),
        anchor(initial),
        outer_momentum(tensors.size()),
        m_worker(ranks, m),
        m_server(tensors.size()),
        m_update(tensors.size()) {}

  std::size_t size() const { return m.size(); }
  double beta1() const { return input.optimizer.beta1; }
  double beta2() const { return input.optimizer.beta2; }

  /// (1/n) Σ of the ranks' vectors.
  Values average(const std::vector<Values>& vectors) const {
    Values mean(size());
    for (const Values& one : vectors)
      for (std::size_t i = 0; i < size(); ++i) mean[i] += one[i] / ranks;
    return mean;
  }

  /// The average gradient, clipped by its own norm.
  Values clipped_average(const std::vector<Values>& g) const {
    Values mean = average(g);
    scale(mean, clip_factor(std::sqrt(square(mean))));
    return mean;
  }

  /// The ranks' gradients, clipped by the root of their mean square norm.
  std::vector<Values> clipped(std::vector<Values> g) const {
    double mean_square = 0;
    for (const Values& one : g) mean_square += square(one) / ranks;
    for (Values& one : g) scale(one, clip_factor(std::sqrt(mean_square)));
    return g;
  }

  /// x_i ← x_i − f γ (direction + λ x_i) on one rank.
  void move(int rank, const Values& direction, double lr) {
    for (std::size_t i = 0; i < size(); ++i) {
      const RateOf rate(input, tensors, i);
      x[rank][i] -= rate.lr_factor * lr * (direction[i] + rate.weight_decay * x[rank][i]);
    }
  }
  /// x ← x − γ (m / (√v + η) + λ x) on one rank. \param t of the bias corrections; 0 corrects nothing
  void adam_move(int rank, const Values& momentum, const Values& variance, long t, double lr) {
    move(rank, direction_of(momentum, variance, t), lr);
  }
  /// The same after T_w = t: elements with v = 0 rest.
  void frozen_move(int rank, long t, double lr) { move(rank, frozen_direction(t), lr); }
  Values frozen_direction(long t) const {
    Values direction = direction_of(m, v, t);
    for (std::size_t i = 0; i < size(); ++i)
      if (v[i] == 0) direction[i] = 0;
    return direction;
  }
  /// m / (√v + η) \param t as for adam_move
  Values direction_of(const Values& momentum, const Values& variance, long t) const {
    const auto correction = [&](double beta, double count) {
      return input.optimizer.bias_correction && count > 0 ? 1 / (1 - std::pow(beta, count)) : 1;
    };
    const double c1 = correction(beta1(), t), c2 = correction(beta2(), t + earlier_steps);
    Values direction(size());
    for (std::size_t i = 0; i < size(); ++i)
      direction[i] = c1 * momentum[i] / (std::sqrt(c2 * variance[i]) + input.optimizer.epsilon);
    return direction;
  }

  /// β1 m + (1−β1) g and β2 v + (1−β2) g².
  Values next_momentum(const Values& momentum, const Values& g) const {
    Values next(size());
    for (std::size_t i = 0; i < size(); ++i) next[i] = beta1() * momentum[i] + (1 - beta1()) * g[i];
    return next;
  }
  Values next_variance(const Values& variance, const Values& g) const {
    Values next(size());
    for (std::size_t i = 0; i < size(); ++i) next[i] = beta2() * variance[i] + (1 - beta2()) * g[i] * g[i];
    return next;
  }
  std::vector<Values> local_momenta(const std::vector<Values>& g) const {
    std::vector<Values> local;
    for (const Values& one : g) local.push_back(next_momentum(m, one));
    return local;
  }

  /// β m + (1−β) g of each rank, with its own momentum.
  std::vector<Values> own_averages(const std::vector<Values>& g, double beta) const {
    std::vector<Values> all(ranks, Values(size()));
    for (int rank = 0; rank < ranks; ++rank)
      for (std::size_t i = 0; i < size(); ++i) all[rank][i] = beta * own_m[rank][i] + (1 - beta) * g[rank][i];
    return all;
  }

  /// +1 or −1, a fair coin for an element in step t. \param tosser i + 1 for a 0 of rank i, 0 for a tie
  double coin(int t, int tosser, std::size_t element) const {
    const Philox4 random = philox(stream_key(static_cast<std::uint64_t>(input.run.seed), Stream::votes), element / 128,
                                  static_cast<std::uint64_t>(t) << 32 | static_cast<std::uint64_t>(tosser));
    return (random.word[element / 32 % 4] >> element % 32 & 1u) != 0 ? 1 : -1;
  }

  /// The sum of the signs of n vectors in step t, divided by n; or the sign of it. A coin decides for 0.
  Values vote(const std::vector<Values>& vectors, Vote kind, int t) {
    std::vector<int> sum(size());
    for (int rank = 0; rank < ranks; ++rank) {
      const Values& c = vectors[rank];
      const double scale = std::sqrt(square(c) / static_cast<double>(size()));
      for (std::size_t i = 0; i < size(); ++i) {
        decide_sign(c[i], scale);
        sum[i] += c[i] > 0 || (c[i] == 0 && coin(t, rank + 1, i) > 0) ? 1 : -1;
      }
    }
    Values result(size());
    for (std::size_t i = 0; i < size(); ++i) {
      const double sign = sum[i] > 0 ? 1 : sum[i] < 0 ? -1 : coin(t, 0, i);
      result[i] = kind == Vote::majority ? sign : static_cast<double>(sum[i]) / ranks;
    }
    return result;
  }

  /// Whether ranks that drift apart are averaged after step t.
  bool averages(int t) const { return t % input.optimizer.local_steps == 0 || t == input.train.steps; }
  void average_on_all_ranks(std::vector<Values>& vectors) const { vectors.assign(ranks, average(vectors)); }

  /// The compressed allreduce with the compressor `sign`, in a step with this γ.
  Values compressed_average(std::vector<Values> vectors, double lr = 0) {
    add(m_server, average_of_compressed(std::move(vectors), lr));
    return take_signs(m_server, groups());  // all servers at once: no group crosses a chunk
  }

  /// The average of what workers send to servers in it; residuals of servers are carried over too.
  Values average_of_compressed(std::vector<Values> vectors, double lr) {
    carry_residuals(lr);
    for (int rank = 0; rank < ranks; ++rank) {
      add(m_worker[rank], vectors[rank]);
      vectors[rank] = take_signs(m_worker[rank], config::scale_group(input).word == "vector" ? buckets() : groups());
    }
    return average(vectors);
  }

  /// C(u + ε), ε ← u + ε − C(u + ε), each server for its chunk.
  Values compressed_by_servers(const Values& u) {
    if (!input.compression.error_feedback) scale(m_update, 0);
    add(m_update, u);
    return take_signs(m_update, groups());
  }

  /// u = γ m / (√v + η), of which the quotient is at most κ; x ← x − f (C(u + ε) + γ λ x), ε ← u + ε − C(u + ε), each
  /// server for its chunk. \param t T_w
  void move_by_sent_update(long t, double lr) {
    const double bound = std::max(1.0, (1 - beta1()) / std::sqrt(1 - beta2()));
    Values u = frozen_direction(t);
    for (double& one : u) one = lr * std::clamp(one, -bound, bound);
    const Values sent = compressed_by_servers(u);
    for (int rank = 0; rank < ranks; ++rank)
      for (std::size_t i = 0; i < size(); ++i) {
        const RateOf rate(input, tensors, i);
        x[rank][i] -= rate.lr_factor * (sent[i] + lr * rate.weight_decay * x[rank][i]);
      }
  }

  /// The same of elements [begin, begin + length) of the ranks' vectors, which have residuals and chunks of their own.
  /// The dense average with the compressor `none`.
  Values average_of_range(const std::vector<Values>& range, std::size_t begin) {
    const std::size_t length = range.front().size();
    if (input.compression.compressor == CompressorKind::none) {
      Values mean(length);
      for (const Values& one : range)
        for (std::size_t i = 0; i < length; ++i) mean[i] += one[i] / ranks;
      return mean;
    }
    if (length == size()) return compressed_average(range);
    auto& [table, part] = m_ranges[begin];
    if (!part) {
      table.add("range", {length}, true);
      part = std::make_unique<SimulatedRanks>(input, table, ranks, Values(length));
    }
    part->sign_error = sign_error;
    const Values mean = part->compressed_average(range);
    margin = std::min(margin, part->margin);
    return mean;
  }

  /// The compressed allreduce with the compressor `column`. A stripe is whole columns, so which server has a column
  /// does not matter.
  Values column_average(std::vector<Values> vectors, double lr) {
    carry_residuals(lr);
    for (int rank = 0; rank < ranks; ++rank) {
      add(m_worker[rank], vectors[rank]);
      vectors[rank] = take_columns(m_worker[rank]);
    }
    add(m_server, average(vectors));
    return take_columns(m_server);
  }

  /// The average of non-negative vectors, each rounded to `variance_bits` bits on the largest element of its block.
  Values quantized_average(std::vector<Values> vectors, int t) {
    const double levels = std::pow(2.0, input.optimizer.variance_bits) - 1;
    for (int rank = 0; rank < ranks; ++rank) {
      Values& values = vectors[rank];
      for (std::size_t begin = 0; begin < size();) {
        const std::size_t chunk_end = (begin / chunk_length() + 1) * chunk_length();
        const std::size_t end = std::min({begin + 512, chunk_end, size()});
        const double largest = *std::max_element(values.begin() + begin, values.begin() + end);
        for (std::size_t i = begin; i < end && largest > 0; ++i) {
          const Philox4 random =
              philox(stream_key(static_cast<std::uint64_t>(input.run.seed), Stream::variance_rounding), i / 4,
                     static_cast<std::uint64_t>(t) << 32 | static_cast<std::uint64_t>(rank));
          const double level = values[i] / largest * levels + uniform(random.word[i % 4]);
          // The largest element is L exactly in every precision, and 0 is 0.
          const double error = 4 * std::numeric_limits<float>::epsilon() * (levels + 1);
          if (values[i] != largest && values[i] != 0)
            margin = std::min({margin, (level - std::floor(level)) / error, (std::floor(level) + 1 - level) / error});
          values[i] = std::floor(level) / levels * largest;
        }
        begin = end;
      }
    }
    return average(vectors);
  }

  /// A server's chunk of a vector of this length: whole words.
  std::size_t chunk_length(std::size_t length) const { return ((length + 31) / 32 + ranks - 1) / ranks * 32; }
  std::size_t chunk_length() const { return chunk_length(size()); }
  /// Elements of a bucket that is averaged by itself: whole blocks of 1024.
  std::size_t bucket_length() const {
    const std::size_t bytes = input.comm.compressed_bucket_bytes;
    return bytes == 0 ? size() : (std::max<std::size_t>(bytes / 4, 1) + 1023) / 1024 * 1024;
  }

private:
  static double square(const Values& c) { return std::inner_product(c.begin(), c.end(), c.begin(), 0.0); }
  static void scale(Values& c, double factor) {
    for (double& one : c) one *= factor;
  }
  static void add(Values& c, const Values& other) {
    for (std::size_t i = 0; i < c.size(); ++i) c[i] += other[i];
  }
  double clip_factor(double norm) const {
    const double clip = input.optimizer.clip;
    return clip > 0 && norm > clip ? clip / norm : 1;
  }
  /// What the next average adds of the residuals: all, nothing without error feedback, or γ_{t−1}/γ_t times all.
  void carry_residuals(double lr) {
    const bool scales = input.compression.scale_residual_by_lr && m_last_lr > 0 && lr > 0;
    const double factor = !input.compression.error_feedback ? 0 : scales ? m_last_lr / lr : 1;
    for (Values& one : m_worker) scale(one, factor);
    scale(m_server, factor);
    m_last_lr = lr;
  }

  /// \param c 0 is exactly 0 in every precision \param scale of the numbers that c was made from
  void decide_sign(double c, double scale) {
    if (c != 0) margin = std::min(margin, std::fabs(c) / (sign_error * scale));
  }

  /// The bucket of each element.
  std::vector<std::size_t> buckets() const {
    std::vector<std::size_t> of(size());
    for (std::size_t i = 0; i < size(); ++i) of[i] = i / bucket_length();
    return of;
  }

  /// First element of each server's chunk where none has a part of a matrix: the border nearest to k d/n, of two the
  /// lower. Borders are tensors' begins and, in a table, those of rows, or of whole words where it is one row.
  std::vector<std::size_t> chunks_of_tensors() const {
    std::vector<std::size_t> borders, begins;
    for (const Tensor& tensor : tensors.tensors()) {
      const bool matrix = tensor.shape.size() == 2 && tensor.matrices > 0, table = !matrix && tensor.decays;
      const std::size_t step = matrix                     ? tensor.size() / tensor.matrices
                               : !table                   ? tensor.size()
                               : tensor.shape.size() == 1 ? 32
                                                          : tensor.shape[1];
      for (std::size_t at = 0; at < tensor.size(); at += step) borders.push_back(tensor.offset + at);
    }
    borders.push_back(size());
    for (int k = 0; k <= ranks; ++k) {
      const double wanted = static_cast<double>(size()) * k / ranks;
      std::size_t nearest = 0;
      for (const std::size_t border : borders)
        if (std::fabs(border - wanted) < std::fabs(nearest - wanted)) nearest = border;
      begins.push_back(nearest);
    }
    return begins;
  }

  /// The group of each element, as a server's chunk has them.
  std::vector<std::size_t> groups() const {
    const bool of_tensors = config::traits(input.optimizer.algorithm).has(config::serves_tensors);
    const std::vector<std::size_t> chunks = of_tensors ? chunks_of_tensors() : std::vector<std::size_t>();
    const config::NumberOrWord group = config::scale_group(input);
    std::vector<std::size_t> of(size());
    std::size_t last_part = 0;
    for (std::size_t i = 0; i < size(); ++i) {
      const std::size_t place = i % bucket_length(), bucket_end = std::min(size(), i - place + bucket_length());
      std::size_t place_in_chunk = place % chunk_length(bucket_end - (i - place));
      if (of_tensors) place_in_chunk = i - *(std::upper_bound(chunks.begin(), chunks.end(), i) - 1);
      const Tensor& tensor = tensors.at_element(i);
      const std::size_t part = group.word == "tensor" ? tensor.offset
                               : group.word == "row"  ? i - (i - tensor.offset) % tensor.shape.back()
                               : group.word.empty()   ? place_in_chunk / group.number
                                                      : 0;
      const bool opens = i > 0 && (place_in_chunk == 0 || part != last_part);
      of[i] = i == 0 ? 0 : of[i - 1] + (opens ? 1 : 0);
      last_part = part;
    }
    return of;
  }

  /// C(c) of the compressor `sign`; c becomes c − C(c).
  Values take_signs(Values& c, const std::vector<std::size_t>& group) {
    const bool l1 = input.compression.scale == Scale::l1;
    Values norm(c.size() + 1), count(c.size() + 1), compressed;
    for (std::size_t i = 0; i < c.size(); ++i) {
      norm[group[i]] += l1 ? std::fabs(c[i]) : c[i] * c[i];
      count[group[i]] += 1;
    }
    for (std::size_t i = 0; i < c.size(); ++i) {
      const double mean = norm[group[i]] / count[group[i]], scale = l1 ? mean : std::sqrt(mean);
      compressed.push_back(c[i] >= 0 ? scale : -scale);
      decide_sign(c[i], scale);
      c[i] -= compressed.back();
    }
    return compressed;
  }

  /// C(c) of the compressor `column`; c becomes c − C(c). A column of CNTK's (in, out) matrix is a row of ours, and a
  /// vector is one column.
  Values take_columns(Values& c) {
    Values compressed(c.size());
    for (const Tensor& tensor : tensors.tensors()) {
      const std::size_t rows = tensor.shape.size() > 1 ? tensor.shape[0] : 1, length = tensor.size() / rows;
      for (std::size_t begin = tensor.offset; begin < tensor.offset + tensor.size(); begin += length) {
        double negatives = 0, others = 0, negative_sum = 0, other_sum = 0;
        double least = c[begin], greatest = c[begin];
        for (std::size_t i = begin; i < begin + length; ++i) {
          (c[i] < 0 ? negatives : others) += 1;
          (c[i] < 0 ? negative_sum : other_sum) += c[i];
          least = std::min(least, c[i]);
          greatest = std::max(greatest, c[i]);
        }
        double low = negatives > 0 ? negative_sum / negatives : 0, high = others > 0 ? other_sum / others : 0;
        if (input.compression.reconstruction == Reconstruction::range) {
          low = least + 0.25 * (greatest - least);
          high = least + 0.75 * (greatest - least);
        }
        for (std::size_t i = begin; i < begin + length; ++i) {
          compressed[i] = c[i] < 0 ? low : high;
          decide_sign(c[i], std::max(std::fabs(low), std::fabs(high)));
          c[i] -= compressed[i];
        }
      }
    }
    return compressed;
  }

  std::vector<Values> m_worker;  ///< residuals δ_i
  Values m_server;               ///< residuals δ̄_k of all chunks
  Values m_update;               ///< residuals ε_k of all chunks
  double m_last_lr = 0;          ///< γ_{t−1} of the last compression
  std::map<std::size_t, std::pair<TensorTable, std::unique_ptr<SimulatedRanks>>> m_ranges;  ///< by their begins
};

/// One step of an algorithm on all ranks. \param g (ranks) of (d)
using ReferenceStep = void (*)(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr);

inline void adam(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const Values mean = all.clipped_average(g);
  all.m = all.next_momentum(all.m, mean);
  all.v = all.next_variance(all.v, mean);
  for (int rank = 0; rank < all.ranks; ++rank) all.adam_move(rank, all.m, all.v, t, lr);
}

inline void onebit_adam(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const long t_w = all.input.freeze.step.number;
  if (t <= t_w) return adam(all, g, t, lr);
  all.m = all.compressed_average(all.local_momenta(all.clipped(g)), lr);
  for (int rank = 0; rank < all.ranks; ++rank) all.frozen_move(rank, t_w, lr);
}

inline void sharded_onebit_adam(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const long t_w = all.input.freeze.step.number;
  if (t <= t_w) return adam(all, g, t, lr);
  all.m = all.compressed_average(all.local_momenta(all.clipped(g)), lr);
  all.move_by_sent_update(t_w, lr);
}

inline void server_onebit_adam(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const long t_w = all.input.freeze.step.number;
  if (t <= t_w) return adam(all, g, t, lr);
  all.m = all.next_momentum(all.m, all.average_of_compressed(all.clipped(g), lr));
  all.move_by_sent_update(t_w, lr);
}

inline void onebit_adam_32bit(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const long t_w = all.input.freeze.step.number;
  if (t <= t_w) return adam(all, g, t, lr);
  all.m = all.average(all.local_momenta(all.clipped(g)));
  for (int rank = 0; rank < all.ranks; ++rank) all.frozen_move(rank, t_w, lr);
}

inline void adam_1bit_naive(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const Values mean = all.compressed_average(all.clipped(g));
  all.m = all.next_momentum(all.m, mean);
  all.v = all.next_variance(all.v, mean);
  for (int rank = 0; rank < all.ranks; ++rank) all.adam_move(rank, all.m, all.v, t, lr);
}

inline void adam_nbit_variance(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const std::vector<Values> local = all.clipped(g);
  std::vector<Values> variances;
  for (const Values& one : local) variances.push_back(all.next_variance(all.v, one));
  all.m = all.compressed_average(all.local_momenta(local));
  all.v = all.quantized_average(variances, t);
  for (int rank = 0; rank < all.ranks; ++rank) all.adam_move(rank, all.m, all.v, t, lr);
}

inline void adam_lazy_variance(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const std::vector<Values> local = all.clipped(g);
  all.m = all.compressed_average(all.local_momenta(local));
  for (int rank = 0; rank < all.ranks; ++rank) {
    all.own_v[rank] = all.next_variance(all.own_v[rank], local[rank]);
    all.adam_move(rank, all.m, all.own_v[rank], t, lr);
  }
  if (!all.averages(t)) return;
  all.average_on_all_ranks(all.x);
  all.average_on_all_ranks(all.own_v);
  all.v = all.own_v[0];
}

/// u_i = m_i / (√v_i + η) is what is compressed.
inline void efficient_adam(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const auto corrected = [&](double beta) {
    return all.input.optimizer.bias_correction ? 1 / (1 - std::pow(beta, t)) : 1;
  };
  const double c1 = corrected(all.beta1()), c2 = corrected(all.beta2());
  const std::vector<Values> local = all.clipped(g);
  std::vector<Values> updates(all.ranks, Values(all.size()));
  for (int rank = 0; rank < all.ranks; ++rank) {
    Values &m = all.own_m[rank], &v = all.own_v[rank];
    m = all.next_momentum(m, local[rank]);
    v = all.next_variance(v, local[rank]);
    for (std::size_t i = 0; i < all.size(); ++i)
      updates[rank][i] = c1 * m[i] / (std::sqrt(c2 * v[i]) + all.input.optimizer.epsilon);
  }
  const Values u = all.compressed_average(updates, lr);
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, u, lr);
}

/// What a tensor is to Muon.
inline bool is_vector(const Tensor& tensor) { return tensor.shape.size() == 1 && !tensor.decays; }
inline bool is_matrix(const Tensor& tensor) { return tensor.shape.size() == 2 && tensor.matrices > 0; }

/// The direction of matrices and tables, from their momentum; `all.v` is the variance of tables.
inline Values muon_direction(SimulatedRanks& all, const Values& m, int t) {
  const auto& in = all.input;
  const auto corrected = [&](double beta) { return in.optimizer.bias_correction ? 1 / (1 - std::pow(beta, t)) : 1; };
  Values u(all.size());
  for (const Tensor& tensor : all.tensors.tensors()) {
    if (is_vector(tensor)) continue;
    if (is_matrix(tensor)) {
      const std::size_t rows = tensor.shape[0] / tensor.matrices, columns = tensor.shape[1];
      for (int k = 0; k < tensor.matrices; ++k) {
        const auto begin = m.begin() + tensor.offset + k * rows * columns;
        const Values o = newton_schulz(Values(begin, begin + rows * columns), rows, columns, in.muon.iterations);
        const double scale = in.muon.lr_factor * std::sqrt(std::max(1.0, static_cast<double>(rows) / columns));
        for (std::size_t i = 0; i < o.size(); ++i) u[tensor.offset + k * rows * columns + i] = scale * o[i];
      }
    } else {
      for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i) {
        all.v[i] = all.beta2() * all.v[i] + (1 - all.beta2()) * m[i] * m[i];
        u[i] = corrected(in.muon.table_beta1) * m[i] /
               (std::sqrt(corrected(all.beta2()) * all.v[i]) + in.optimizer.epsilon);
      }
    }
  }
  return u;
}

/// β1 m + (1−β1) g with the β1 of each element; 0 for vectors.
inline Values muon_momentum(const SimulatedRanks& all, const Values& m, const Values& g) {
  Values next(all.size());
  for (const Tensor& tensor : all.tensors.tensors()) {
    if (is_vector(tensor)) continue;
    const double beta = is_matrix(tensor) ? all.beta1() : all.input.muon.table_beta1;
    for (std::size_t i = tensor.offset; i < tensor.offset + tensor.size(); ++i)
      next[i] = beta * m[i] + (1 - beta) * g[i];
  }
  return next;
}

/// Adam's direction of vectors, added to u. \param mean the average gradient
inline void add_adam_of_vectors(SimulatedRanks& all, const Values& mean, int t, Values& u) {
  Values &m = all.anchor, &v = all.outer_momentum;  // which Muon has no other use for
  if (t == 1) m.assign(all.size(), 0);
  for (const Tensor& tensor : all.tensors.tensors())
    for (std::size_t i = tensor.offset; is_vector(tensor) && i < tensor.offset + tensor.size(); ++i) {
      m[i] = all.beta1() * m[i] + (1 - all.beta1()) * mean[i];
      v[i] = all.beta2() * v[i] + (1 - all.beta2()) * mean[i] * mean[i];
    }
  const Values direction = all.direction_of(m, v, t);
  for (const Tensor& tensor : all.tensors.tensors())
    for (std::size_t i = tensor.offset; is_vector(tensor) && i < tensor.offset + tensor.size(); ++i)
      u[i] = direction[i];
}

inline void muon(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const Values mean = all.clipped_average(g);
  all.m = muon_momentum(all, all.m, mean);
  Values u = muon_direction(all, all.m, t);
  add_adam_of_vectors(all, mean, t, u);
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, u, lr);
}

/// h_i ← h_i + C(m_i − h_i); m̄ is the mean of the h_i, which the servers know; x moves by C of the direction.
inline void onebit_muon(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const std::vector<Values> local = all.clipped(g);
  std::vector<Values> changes(all.ranks, Values(all.size()));
  for (int rank = 0; rank < all.ranks; ++rank) {
    const Values next = muon_momentum(all, all.own_m[rank], local[rank]);
    for (std::size_t i = 0; i < all.size(); ++i) changes[rank][i] = next[i] - all.own_m[rank][i];
    all.own_m[rank] = next;
  }
  all.sign_error = 1e-5;  // Newton–Schulz multiplies single precision's error
  const Values sent = all.average_of_compressed(changes, 0);
  for (std::size_t i = 0; i < all.size(); ++i) all.m[i] += sent[i];
  Values u = all.compressed_by_servers(muon_direction(all, all.m, t));
  add_adam_of_vectors(all, all.average(local), t, u);
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, u, lr);
}

inline void sgd(SimulatedRanks& all, const std::vector<Values>& g, int, double lr) {
  const Values mean = all.clipped_average(g);
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, mean, lr);
}

inline void momentum_sgd(SimulatedRanks& all, const std::vector<Values>& g, int, double lr) {
  all.m = all.next_momentum(all.m, all.clipped_average(g));
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, all.m, lr);
}

inline void double_squeeze(SimulatedRanks& all, const std::vector<Values>& g, int, double lr) {
  const Values mean = all.compressed_average(all.clipped(g), lr);
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, mean, lr);
}

inline void ef_momentum_sgd(SimulatedRanks& all, const std::vector<Values>& g, int, double lr) {
  all.m = all.compressed_average(all.local_momenta(all.clipped(g)), lr);
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, all.m, lr);
}

inline void onebit_sgd(SimulatedRanks& all, const std::vector<Values>& g, int, double lr) {
  all.m = all.next_momentum(all.m, all.column_average(all.clipped(g), lr));
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, all.m, lr);
}

inline void local_sgd(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const std::vector<Values> local = all.clipped(g);
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, local[rank], lr);
  if (all.averages(t)) all.average_on_all_ranks(all.x);
}

inline void local_momentum_sgd(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const std::vector<Values> local = all.clipped(g);
  for (int rank = 0; rank < all.ranks; ++rank) {
    all.own_m[rank] = all.next_momentum(all.own_m[rank], local[rank]);
    all.move(rank, all.own_m[rank], lr);
  }
  if (!all.averages(t)) return;
  all.average_on_all_ranks(all.x);
  all.average_on_all_ranks(all.own_m);
  all.m = all.own_m[0];
}

inline void signum(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  all.own_m = all.own_averages(all.clipped(g), all.beta1());
  const Values majority = all.vote(all.own_m, Vote::majority, t);
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, majority, lr);
}

inline void distributed_lion(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  const std::vector<Values> local = all.clipped(g);
  const Values delta = all.vote(all.own_averages(local, all.beta1()), all.input.optimizer.vote, t);
  all.own_m = all.own_averages(local, all.beta2());
  for (int rank = 0; rank < all.ranks; ++rank) all.move(rank, delta, lr);
}

/// Δ = the average of x̄ − x_i; b ← μ b + Δ; x̄ ← x̄ − γ_o (Δ + μ b); x_i ← x̄, for elements [begin, end).
inline void outer_step(SimulatedRanks& all, std::size_t begin, std::size_t end) {
  std::vector<Values> differences(all.ranks);
  for (int rank = 0; rank < all.ranks; ++rank)
    for (std::size_t i = begin; i < end; ++i) differences[rank].push_back(all.anchor[i] - all.x[rank][i]);
  const Values delta = all.average_of_range(differences, begin);
  const double mu = all.input.diloco.outer_momentum;
  for (std::size_t i = begin; i < end; ++i) {
    all.outer_momentum[i] = mu * all.outer_momentum[i] + delta[i - begin];
    all.anchor[i] -= all.input.diloco.outer_lr * (delta[i - begin] + mu * all.outer_momentum[i]);
    for (Values& x : all.x) x[i] = all.anchor[i];
  }
}

inline void diloco(SimulatedRanks& all, const std::vector<Values>& g, int t, double lr) {
  all.sign_error = 1e-5;  // x̄ − x_i is small beside x_i
  const std::vector<Values> local = all.clipped(g);
  for (int rank = 0; rank < all.ranks; ++rank) {
    all.own_m[rank] = all.next_momentum(all.own_m[rank], local[rank]);
    all.own_v[rank] = all.next_variance(all.own_v[rank], local[rank]);
    all.adam_move(rank, all.own_m[rank], all.own_v[rank], t, lr);
  }
  const int fragments = all.input.diloco.fragments, interval = all.input.optimizer.local_steps;
  const std::size_t words = (all.size() + 31) / 32;
  for (int p = 0; p < fragments; ++p) {
    const std::size_t begin = std::min(all.size(), 32 * (p * words / fragments));
    const std::size_t end = std::min(all.size(), 32 * ((p + 1) * words / fragments));
    const bool due = t % interval == p * interval / fragments || t == all.input.train.steps;
    if (begin < end && due) outer_step(all, begin, end);
  }
}

/// The references by the algorithms' names.
inline const std::map<std::string, ReferenceStep>& references() {
  static const std::map<std::string, ReferenceStep> all = {
      {"adam", adam},
      {"onebit_adam", onebit_adam},
      {"onebit_adam_32bit", onebit_adam_32bit},
      {"adam_1bit_naive", adam_1bit_naive},
      {"adam_nbit_variance", adam_nbit_variance},
      {"adam_lazy_variance", adam_lazy_variance},
      {"sgd", sgd},
      {"momentum_sgd", momentum_sgd},
      {"double_squeeze", double_squeeze},
      {"ef_momentum_sgd", ef_momentum_sgd},
      {"onebit_sgd", onebit_sgd},
      {"local_sgd", local_sgd},
      {"local_momentum_sgd", local_momentum_sgd},
      {"signum", signum},
      {"distributed_lion", distributed_lion},
      {"diloco", diloco},
      {"efficient_adam", efficient_adam},
      {"sharded_adam", adam},
      {"sharded_onebit_adam", sharded_onebit_adam},
      {"server_onebit_adam", server_onebit_adam},
      {"muon", muon},
      {"onebit_muon", onebit_muon},
  };
  return all;
}

/// Gradients of all ranks: a mean that they share and noise of their own, different from tensor to tensor.
inline std::vector<Values> random_gradients(std::size_t size, int ranks, int step, std::int64_t seed) {
  std::vector<Values> g(ranks);
  for (int rank = 0; rank < ranks; ++rank)
    for (std::size_t i = 0; i < size; ++i) {
      const std::uint64_t own_place = static_cast<std::uint64_t>(step) * 64 + static_cast<std::uint64_t>(rank) + 1;
      const std::uint64_t key = stream_key(static_cast<std::uint64_t>(seed), Stream::noise);
      const Philox4 shared = philox(key, i, 0), own = philox(key, i, own_place);
      const double noise = normal(shared.word[0], shared.word[1]) + normal(own.word[0], own.word[1]);
      g[rank].push_back(static_cast<float>(0.1 * static_cast<double>(1 + i / 100) * noise));
    }
  return g;
}

/// The same for these tensors; 0 in tensors named "unused", which the loss does not read.
inline std::vector<Values> random_gradients(const TensorTable& tensors, int ranks, int step, std::int64_t seed) {
  std::vector<Values> g = random_gradients(tensors.size(), ranks, step, seed);
  for (const Tensor& tensor : tensors.tensors())
    if (tensor.name == "unused")
      for (Values& one : g) std::fill_n(one.begin() + tensor.offset, tensor.size(), 0.0);
  return g;
}

/// Initial parameters, as floats.
inline Values initial_parameters(std::size_t size) {
  Values x;
  for (std::size_t i = 0; i < size; ++i) x.push_back(static_cast<float>(0.01 * static_cast<double>(i % 17) - 0.05));
  return x;
}

/// The input with the first seed, from its own on, with whose random gradients (and, for `adam_nbit_variance`,
/// roundings) the reference decides nothing within single precision's error of a border. \param variance that the
/// algorithm starts with; empty for 0 \param lr of a step, where decisions depend on it
inline config::Input with_clear_decisions(
    config::Input input, const TensorTable& tensors, int ranks, const Values& variance = {},
    const std::function<double(const config::Input&, int)>& lr = [](const config::Input&, int) { return 0.0; }) {
  for (;; ++input.run.seed) {
    SimulatedRanks all(input, tensors, ranks, initial_parameters(tensors.size()));
    if (!variance.empty()) all.v = variance;
    for (int t = 1; t <= input.train.steps && all.margin > 1; ++t)
      references().at(input.optimizer.algorithm)(all, random_gradients(tensors, ranks, t, input.run.seed), t,
                                                 lr(input, t));
    if (all.margin > 1) return input;
  }
}

/// ‖a − b‖₂ / ‖b‖₂; ‖a‖₂ where b = 0.
template <class T>
double relative_difference(const std::vector<T>& a, const Values& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(size > 0 ? difference / size : difference);
}

}  // namespace onebit::test
