#pragma once
/// \file reference.hpp
/// The compressed allreduce of n ranks, simulated serially in plain loops: the definition that allreduce.hpp is tested
/// against, bit for bit.

#include <vector>

#include "compress/reference.hpp"

namespace onebit::comm {

/// n ranks with their residuals.
class CompressedAllreduceRef {
public:
  CompressedAllreduceRef(const compress::LayoutRef& layout, compress::Scale scale) : m_layout(layout), m_scale(scale) {
    for (int rank = 0; rank < layout.chunks; ++rank) {
      worker_residuals.emplace_back(layout.length, 0.0f);
      server_residuals.emplace_back(layout.begin(rank + 1) - layout.begin(rank), 0.0f);
    }
  }

  /// The average that every rank holds afterwards. \param x (ranks) vectors of (length)
  std::vector<float> operator()(const std::vector<std::vector<float>>& x) {
    const int ranks = m_layout.chunks;
    const std::size_t block = m_layout.message_words();
    std::vector<std::vector<std::uint32_t>> sent;
    for (int rank = 0; rank < ranks; ++rank)
      sent.push_back(compress::compress_ref(m_layout, m_scale, 0, ranks, x[rank], worker_residuals[rank]));

    std::vector<std::uint32_t> gathered;
    for (int server = 0; server < ranks; ++server) {
      std::vector<std::uint32_t> received;
      for (int rank = 0; rank < ranks; ++rank)
        received.insert(received.end(), sent[rank].begin() + server * block, sent[rank].begin() + (server + 1) * block);
      const std::vector<float> mean = compress::average_ref(m_layout, server, ranks, received);
      const std::vector<std::uint32_t> message =
          compress::compress_ref(m_layout, m_scale, server, 1, mean, server_residuals[server]);
      gathered.insert(gathered.end(), message.begin(), message.end());
    }
    return compress::decompress_ref(m_layout, gathered);
  }

  std::vector<std::vector<float>> worker_residuals;  ///< (ranks) δ_i of (length)
  std::vector<std::vector<float>> server_residuals;  ///< (ranks) δ̄_k of (chunk's elements)

private:
  compress::LayoutRef m_layout;
  compress::Scale m_scale;
};

}  // namespace onebit::comm
