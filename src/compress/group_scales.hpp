#pragma once
/// \file group_scales.hpp
/// The scales of groups, from statistics of their elements that are reduced in a fixed order; and ‖δ‖₂.

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "base/device/parallel.hpp"
#include "compress/compressor.hpp"

namespace onebit::compress {

/// (blocks) group of each block, counted over all chunks.
inline std::vector<std::uint32_t> groups_of_blocks(const Layout& layout) {
  std::vector<std::uint32_t> groups;
  for (std::size_t group = 0; group + 1 < layout.group_blocks.size(); ++group)
    groups.resize(layout.group_blocks[group + 1], static_cast<std::uint32_t>(group));
  return groups;
}

/// Reduces the statistics of a codec over the blocks of a layout, then over the blocks of each group.
template <class Exec, class Codec>
class GroupScales {
public:
  /// \param group_begins the layout's, on the device
  GroupScales(const Layout& layout, const Codec& codec, const Vector<Exec, const std::size_t>& group_begins)
      : m_layout(layout),
        m_codec(codec),
        m_group_begins(group_begins),
        m_group_blocks(copy_to_device<Exec>("OneBit::compress::group_blocks", layout.group_blocks)),
        m_block_begins(copy_to_device<Exec>("OneBit::compress::block_begins", layout.block_begins)),
        m_block_groups(copy_to_device<Exec>("OneBit::compress::block_groups", groups_of_blocks(layout))),
        m_block_squares("OneBit::compress::block_squares", blocks()),
        m_square("OneBit::compress::square", 1),
        m_tree_of_squares(1, blocks()),
        m_tree_of_groups(groups(), longest_group()),
        m_block_statistics("OneBit::compress::block_statistics", statistics * blocks()),
        m_group_statistics("OneBit::compress::group_statistics", statistics * groups()),
        m_vector_statistics("OneBit::compress::vector_statistics", statistics) {}

  /// Takes the statistics of blocks [first_block, end_block) of c.
  void take_statistics(const Exec& exec, const Compression<Exec>& compression, std::size_t first_block,
                       std::size_t end_block) const {
    const std::size_t base = m_layout.chunk_begins[compression.first_chunk];
    for_each_statistic(
        [&](auto k) { take_statistic<decltype(k)::value>(exec, first_block, end_block, base, compression.feedback.c); },
        std::make_index_sequence<statistics>());
  }

  /// Writes the scales of each group into its chunk's message and the feedback; 0 for a group without elements.
  /// \param message_length words of a message
  void write(const Exec& exec, const Compression<Exec>& compression, std::size_t message_length) const {
    for_each_statistic([&](auto k) { join_statistic<decltype(k)::value>(exec, compression); },
                       std::make_index_sequence<statistics>());
    write_scales(exec, compression, message_length);
  }

  /// ‖δ‖₂ of some chunks; fences.
  double residual_l2(const Exec& exec, int first_chunk, int chunks, const Feedback<Exec>& feedback) const {
    const Region region("OneBit::compress::residual_l2");
    const Feedback<Exec> own = feedback;
    const Codec codec = m_codec;
    const auto block_begins = m_block_begins;
    const auto block_groups = m_block_groups;
    const std::size_t base = m_layout.chunk_begins[first_chunk], first_group = first_chunk * m_layout.groups;
    const std::size_t first_block = m_layout.group_blocks[first_group];
    const std::size_t count = m_layout.group_blocks[first_group + chunks * m_layout.groups] - first_block;
    const Vector<Exec, double> squares = Kokkos::subview(m_block_squares, std::make_pair(std::size_t{0}, count));
    reduce_blocks<Sum>(
        exec, "OneBit::compress::residual_squares",
        KOKKOS_LAMBDA(std::size_t block) { return block_begins(first_block + block); }, squares,
        KOKKOS_LAMBDA(std::size_t block, std::size_t i) {
          const std::size_t group = block_groups(first_block + block) - first_group;
          const auto values = codec.values(own.scales.data() + group * Codec::scales);
          const float c = own.c(i - base);
          const double residual = c - codec.decode(values, codec.encode(values, c));
          return residual * residual;
        });
    m_tree_of_squares.template join<Sum>(
        exec, "OneBit::compress::residual_l2",
        KOKKOS_LAMBDA(std::size_t end) { return end == 0 ? std::size_t{0} : count; }, squares, m_square);
    double square = 0;
    Kokkos::deep_copy(exec, Kokkos::View<double, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(&square),
                      Kokkos::subview(m_square, 0));
    fence(exec, "OneBit::compress::residual_l2");
    return std::sqrt(square);
  }

  // The parts of these. They are public because they hold lambdas for the device.

  /// Calls f(std::integral_constant<std::size_t, K>()) for each statistic K.
  template <class F, std::size_t... K>
  static void for_each_statistic(const F& f, std::index_sequence<K...>) {
    (f(std::integral_constant<std::size_t, K>()), ...);
  }

  /// Statistic K of blocks. \param base first element of c
  template <std::size_t K>
  void take_statistic(const Exec& exec, std::size_t first_block, std::size_t end_block, std::size_t base,
                      const Vector<Exec, float>& c) const {
    using Statistic = std::tuple_element_t<K, typename Codec::Statistics>;
    const Statistic term;
    const auto block_begins = m_block_begins;
    const std::size_t first = K * blocks();
    reduce_blocks<typename Statistic::Join>(
        exec, "OneBit::compress::block_statistic",
        KOKKOS_LAMBDA(std::size_t block) { return block_begins(first_block + block); },
        Vector<Exec, double>(
            Kokkos::subview(m_block_statistics, std::make_pair(first + first_block, first + end_block))),
        KOKKOS_LAMBDA(std::size_t i) { return term(c(i - base)); });
  }

  /// Statistic K of each group and, where all are one group, of the vector.
  template <std::size_t K>
  void join_statistic(const Exec& exec, const Compression<Exec>& compression) const {
    using Join = typename std::tuple_element_t<K, typename Codec::Statistics>::Join;
    const std::size_t first_group = compression.first_chunk * m_layout.groups;
    const std::size_t group_count = compression.chunks * m_layout.groups;
    const std::size_t first_block = K * blocks();
    const auto group_blocks = m_group_blocks;
    const Vector<Exec, double> of_blocks =
        Kokkos::subview(m_block_statistics, std::make_pair(first_block, first_block + blocks()));
    const Vector<Exec, double> of_groups = Kokkos::subview(
        m_group_statistics, std::make_pair(K * groups() + first_group, K * groups() + first_group + group_count));
    m_tree_of_groups.template join<Join>(
        exec, "OneBit::compress::group_statistic",
        KOKKOS_LAMBDA(std::size_t group) { return group_blocks(first_group + group); }, of_blocks, of_groups);
    if (is_one_group(compression))
      reduce_blocks<Join>(
          exec, "OneBit::compress::vector_statistic",
          KOKKOS_LAMBDA(std::size_t end) { return end == 0 ? std::size_t{0} : group_count; },
          Vector<Exec, double>(Kokkos::subview(m_vector_statistics, std::make_pair(K, K + 1))),
          KOKKOS_LAMBDA(std::size_t group) { return of_groups(group); });
  }

  void write_scales(const Exec& exec, const Compression<Exec>& compression, std::size_t message_length) const {
    const Codec codec = m_codec;
    const Compression<Exec> own = compression;
    const auto group_begins = m_group_begins;
    const auto group_statistics = m_group_statistics;
    const auto vector_statistics = m_vector_statistics;
    const std::size_t groups_of_chunk = m_layout.groups, all_groups = groups();
    const std::size_t first_group = own.first_chunk * groups_of_chunk;
    const std::size_t length = m_layout.length;
    const bool one_group = is_one_group(compression);
    Kokkos::parallel_for(
        "OneBit::compress::scales",
        light(Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::size_t>>(exec, 0, own.chunks * groups_of_chunk)),
        KOKKOS_LAMBDA(std::size_t group) {
          double taken[statistics];
          for (std::size_t k = 0; k < statistics; ++k)
            taken[k] = one_group ? vector_statistics(k) : group_statistics(k * all_groups + first_group + group);
          const std::size_t count =
              one_group ? length : group_begins(first_group + group + 1) - group_begins(first_group + group);
          float scales[Codec::scales] = {};
          if (count > 0) codec.set_scales(taken, static_cast<double>(count), scales);
          const std::size_t first = group / groups_of_chunk * message_length + group % groups_of_chunk * Codec::scales;
          for (int k = 0; k < Codec::scales; ++k) {
            own.messages(first + k) = as_bits(scales[k]);
            own.feedback.scales(group * Codec::scales + k) = as_bits(scales[k]);
          }
        });
  }

private:
  static constexpr std::size_t statistics = std::tuple_size_v<typename Codec::Statistics>;

  std::size_t blocks() const { return m_layout.block_begins.size() - 1; }
  std::size_t groups() const { return m_layout.group_begins.size() - 1; }
  /// Most blocks of a group.
  std::size_t longest_group() const {
    std::size_t most = 0;
    for (std::size_t group = 0; group < groups(); ++group)
      most = std::max(most, m_layout.group_blocks[group + 1] - m_layout.group_blocks[group]);
    return most;
  }
  /// True where all groups share the scales of the whole vector.
  bool is_one_group(const Compression<Exec>& compression) const {
    return m_layout.grouping == Grouping::vector && compression.chunks == m_layout.chunks;
  }

  Layout m_layout;
  Codec m_codec;
  Vector<Exec, const std::size_t> m_group_begins;
  Vector<Exec, std::size_t> m_group_blocks, m_block_begins;
  Vector<Exec, std::uint32_t> m_block_groups;      ///< (blocks) group, among all chunks'
  Vector<Exec, double> m_block_squares, m_square;  ///< (blocks), (1) of residuals
  BlockTree<Exec> m_tree_of_squares, m_tree_of_groups;
  Vector<Exec, double> m_block_statistics;   ///< (statistics * blocks)
  Vector<Exec, double> m_group_statistics;   ///< (statistics * chunks * S)
  Vector<Exec, double> m_vector_statistics;  ///< (statistics)
};

}  // namespace onebit::compress
