#pragma once
/// \file reference.hpp
/// The averages of n ranks, simulated serially in plain loops: the definitions that compressed_average.hpp and, for 16
/// bits, dense_average.hpp are tested against, bit for bit.

#include <functional>
#include <vector>

#include "base/device/reference.hpp"
#include "base/random.hpp"
#include "comm/dense_average.hpp"
#include "compress/reference.hpp"

namespace onebit::comm {

/// The dense average in 16 bits.
struct DenseAverageRef {
  DenseType type;
  std::vector<std::vector<int>> hosts;  ///< the ranks of each, ascending; one each if averages are not hierarchical

  /// The average that every rank gets. \param x (ranks) vectors of one length
  std::vector<float> operator()(const std::vector<std::vector<float>>& x) const {
    std::vector<float> result;
    for (std::size_t j = 0; j < x.front().size(); ++j) {
      float sum_of_hosts = 0;
      for (const std::vector<int>& host : hosts) {
        float sum = 0;
        for (const int rank : host) sum += x[rank][j];
        sum_of_hosts += rounded(sum / static_cast<float>(host.size()));
      }
      result.push_back(rounded(sum_of_hosts / static_cast<float>(hosts.size())));
    }
    return result;
  }

private:
  float rounded(float value) const {
    const FloatTypeRef& of = type == DenseType::bf16 ? bfloat16_ref : float16_ref;
    return static_cast<float>(of.nearest(value));
  }
};

/// n ranks with their residuals.
class CompressedAllreduceRef {
public:
  /// Overwrites a chunk of the average, whose first element is element `first` of the vector.
  using Server = std::function<void(std::vector<float>& chunk, std::size_t first)>;

  CompressedAllreduceRef(const compress::LayoutRef& layout, const compress::Options& options,
                         bool error_feedback = true)
      : m_layout(layout), m_options(options), m_error_feedback(error_feedback) {
    for (int rank = 0; rank < layout.chunks; ++rank) {
      worker_residuals.emplace_back(layout.length, 0.0f);
      server_residuals.emplace_back(layout.begins[rank + 1] - layout.begins[rank], 0.0f);
    }
  }

  /// The average that every rank gets. \param x (ranks) vectors of (length) \param serve empty for the average itself
  std::vector<float> operator()(const std::vector<std::vector<float>>& x, float residual_factor = 1,
                                const Server& serve = {}) {
    const int ranks = m_layout.chunks;
    const std::size_t words = compress::message_words_ref(m_layout, m_options);
    if (!m_error_feedback)
      for (auto* const residuals : {&worker_residuals, &server_residuals})
        for (std::vector<float>& residual : *residuals) residual.assign(residual.size(), 0.0f);

    std::vector<std::vector<std::uint32_t>> sent;
    for (int rank = 0; rank < ranks; ++rank)
      sent.push_back(
          compress::compress_ref(m_layout, m_options, 0, ranks, x[rank], worker_residuals[rank], residual_factor));

    std::vector<std::uint32_t> gathered;
    for (int server = 0; server < ranks; ++server) {
      std::vector<std::uint32_t> received;
      for (int rank = 0; rank < ranks; ++rank)
        received.insert(received.end(), sent[rank].begin() + server * words, sent[rank].begin() + (server + 1) * words);
      std::vector<float> mean = compress::average_ref(m_layout, m_options, server, ranks, received);
      if (serve) serve(mean, m_layout.begins[server]);
      const std::vector<std::uint32_t> message =
          compress::compress_ref(m_layout, m_options, server, 1, mean, server_residuals[server], residual_factor);
      gathered.insert(gathered.end(), message.begin(), message.end());
    }
    return compress::decompress_ref(m_layout, m_options, gathered);
  }

  std::vector<std::vector<float>> worker_residuals;  ///< (ranks) δ_i of (length)
  std::vector<std::vector<float>> server_residuals;  ///< (ranks) δ̄_k of (elements of chunk k)

private:
  compress::LayoutRef m_layout;
  compress::Options m_options;
  bool m_error_feedback;
};

/// The hierarchical average of hosts with equal numbers of ranks: for each shard, the compressed allreduce of the
/// averages of the hosts. Rank l of host h keeps the residuals of host h for shard l.
class HierarchicalAllreduceRef {
public:
  /// \param shards of the vector in order, one for each rank of a host, with one chunk for each host
  /// \param hosts  (hosts) their ranks, ascending
  HierarchicalAllreduceRef(const std::vector<compress::LayoutRef>& shards, const std::vector<std::vector<int>>& hosts,
                           const compress::Options& options, bool error_feedback = true)
      : m_hosts(hosts) {
    for (const compress::LayoutRef& shard : shards) {
      m_lengths.push_back(shard.length);
      this->shards.emplace_back(shard, options, error_feedback);
    }
  }

  /// The average that every rank gets. \param x (ranks) vectors of (length)
  std::vector<float> operator()(const std::vector<std::vector<float>>& x, float residual_factor = 1) {
    std::vector<float> result;
    for (std::size_t shard = 0; shard < shards.size(); ++shard) {
      const std::size_t begin = result.size(), end = begin + m_lengths[shard];
      std::vector<std::vector<float>> averages;
      for (const std::vector<int>& ranks : m_hosts) {
        std::vector<float> average;
        for (std::size_t j = begin; j < end; ++j) {
          float sum = 0;
          for (const int rank : ranks) sum += x[rank][j];
          average.push_back(sum / static_cast<float>(ranks.size()));
        }
        averages.push_back(average);
      }
      const std::vector<float> average = shards[shard](averages, residual_factor);
      result.insert(result.end(), average.begin(), average.end());
    }
    return result;
  }

  std::vector<CompressedAllreduceRef> shards;  ///< rank h of shard l stands for rank l of host h

private:
  std::vector<std::vector<int>> m_hosts;
  std::vector<std::size_t> m_lengths;
};

}  // namespace onebit::comm
