#pragma once
/// \file compressed_average.hpp
/// The average over ranks, compressed with error feedback on both sides (Tang et al., ICML 2021, Section 4.3; Section 6
/// has the three phases of the compressed allreduce).

#include <memory>
#include <optional>
#include <vector>

#include "base/timer.hpp"
#include "comm/dense_average.hpp"
#include "compress/compressor.hpp"

namespace onebit::comm {

/// x ← CA(x): the average of all ranks' vectors, sent in compressed form.
///
/// 1. Rank i: c_i = x_i + f δ_i, δ_i ← c_i − C(c_i). Chunk k of C(c_i) goes to rank k (all-to-all).
/// 2. Rank k: a = (1/n) Σ_i C(c_i)_k + f δ̄_k, added in rank order, δ̄_k ← a − C(a).
/// 3. C(a) goes to all ranks (all-gather), which decompress the same bits.
///
/// The factor f is the same on every rank; by default it is 1. One rank alone sends nothing but compresses twice. Where
/// the transport overlaps, codes travel while the next ones are computed, and the times of the all-to-all and of the
/// all-gather are what is left to wait for.
///
/// Hierarchical, with r ranks on each of H hosts, the vector is cut into r shards. The ranks of a host average densely
/// (reduce-scatter), and its rank l gets shard l. The ranks l of all hosts do steps 1 to 3 for that shard, and each
/// host gathers the messages of all shards. A residual therefore belongs to a host's average, and a rank keeps the
/// residuals of its shard only. A host sends r times less than flat.
template <class Exec>
class CompressedAverage {
public:
  /// Flat. \param layout of the vectors, with one chunk for each rank of the transport
  /// \param error_feedback false sets both residuals to 0 before every call
  CompressedAverage(Messenger<Exec>& transport, const compress::Layout& layout, const compress::Options& options,
                    bool error_feedback = true);
  /// Hierarchical. \param shards of the vector in order, one for each rank of a host, with one chunk for each host
  CompressedAverage(const Hosts<Exec>& hosts, const std::vector<compress::Layout>& shards,
                    const compress::Options& options, bool error_feedback = true);

  /// Dense, for networks on which compression does not pay.
  explicit CompressedAverage(DenseAverage<Exec>& average);

  /// False for the dense average, which has no residuals.
  bool compresses() const { return !m_compressors.empty(); }

  /// \param x (length) this rank's vector, then the average
  /// \param residual_factor f
  void operator()(const Exec& exec, const Vector<Exec, float>& x, PhaseTimes& times, float residual_factor = 1);

  /// Whether `average_in_messages` can be called: whether this rank receives the messages of the whole average.
  bool keeps_messages() const { return compresses() && m_local == nullptr; }
  /// CA(x) that stays in its messages; x is only read. If `average` has an old value, it is `last()`, and what is
  /// averaged is m_i = old_share · m + new_share · (factor · x). Then m ← CA(m_i) needs no vector for m or for m_i.
  void average_in_messages(const Exec& exec, const Vector<Exec, float>& x, const compress::MovingAverage<Exec>& average,
                           PhaseTimes& times, float residual_factor = 1);
  /// `average_in_messages` in three parts, so that messages of several allreduces can travel at once: `begin` is step 1
  /// up to sending, `serve` receives and is step 2, `finish` receives what step 3 brings. Every rank begins the
  /// allreduces of a transport in the same order. Where the transport does not overlap, `begin` does everything.
  void begin(const Exec& exec, const Vector<Exec, float>& x, const compress::MovingAverage<Exec>& average,
             PhaseTimes& times, float residual_factor = 1);
  void serve(const Exec& exec, PhaseTimes& times);
  void finish(const Exec& exec, PhaseTimes& times) { finish(exec, nullptr, times); }
  /// The messages of the last average, of either kind of call. They stay valid during the next call.
  Vector<Exec, const std::uint32_t> last() const { return m_last; }
  compress::AnyDecoder<Exec> last_decoder() const { return own().decoder(m_last); }
  /// Whether all scales of `last()` are finite, the same on every rank. They are not where a rank's vector held NaN or
  /// infinity, or where a sum was beyond the numbers of float. Flat only; fences.
  bool last_is_finite(const Exec& exec) const;
  /// x ← the last average; does not fence. \param x (length)
  void decompress_last(const Exec& exec, const Vector<Exec, float>& x) const {
    own().decompress(exec, 0, m_across.ranks(), m_last, x);
  }

  /// chunk ← this rank's chunk of the last average; does not fence. \param chunk (elements of the chunk)
  void decompress_own(const Exec& exec, const Vector<Exec, float>& chunk) const {
    own().decompress(exec, m_across.rank(), 1, message(m_last, m_across.rank()), chunk);
  }
  /// The compressor of this rank's shard, to be used between two calls.
  std::shared_ptr<const compress::Compressor<Exec>> compressor() const { return m_compressors[m_shard]; }

  /// δ_i (length; of the shard if hierarchical) and δ̄_k (chunk length, padding 0) after the last call; 0 at first.
  Vector<Exec, float> worker_residual(const Exec& exec) const;
  Vector<Exec, float> server_residual(const Exec& exec) const;
  double worker_residual_l2(const Exec& exec) const { return own().residual_l2(exec, 0, m_across.ranks(), m_worker); }
  double server_residual_l2(const Exec& exec) const { return own().residual_l2(exec, m_across.rank(), 1, m_server); }
  /// Sets the residuals of the next call, of the lengths above.
  void set_residuals(const Exec& exec, const Vector<Exec, const float>& worker,
                     const Vector<Exec, const float>& server);
  /// Copies the residuals, so that `take_back` can undo the next call.
  void keep(const Exec& exec);
  /// Undoes the call since `keep`: the residuals, and `last()`. Flat only; does not fence.
  void take_back(const Exec& exec);
  /// Where a rank's residuals stand among those of all ranks: δ_i is elements [begin, end) of row `row` of a matrix
  /// (rows, length), δ̄_k is elements [server_begin, server_end) of a vector (length).
  struct Places {
    std::size_t row, rows, begin, end, server_begin, server_end;
  };
  Places places() const;

private:
  using Words = Vector<Exec, std::uint32_t>;

  CompressedAverage(Messenger<Exec>& across, Transport<Exec>* local, const std::vector<compress::Layout>& shards,
                    const compress::Options& options, bool error_feedback);
  const compress::Compressor<Exec>& own() const { return *m_compressors[m_shard]; }
  /// An average between `begin` and `finish`.
  struct UnderWay {
    compress::Compression<Exec> worker, server;
    std::unique_ptr<Transfer<Exec>> all_to_all, all_gather;  ///< nullptr where the transport does not overlap
  };

  void exchange_by_phases(const Exec& exec, PhaseTimes& times);
  /// Compresses for all ranks and sends. A rank compresses for its successor first and for itself last, when its other
  /// messages are already under way.
  void send_codes(const Exec& exec, PhaseTimes& times);
  /// \param shard where the average is written as well; may be nullptr
  void finish(const Exec& exec, const Vector<Exec, float>* shard, PhaseTimes& times);
  /// Of a message, in the order in which they are sent: the codes part by part, then the scales, which are known last.
  std::vector<Range> sent_ranges() const;
  /// Sends what could not be sent while it was encoded.
  void send_rest(const Exec& exec, Transfer<Exec>& transfer, int to, const Words& message) const;
  Words message(const Words& messages, int number) const;
  /// The rank `distance` places after this one.
  int other(int distance) const { return (m_across.rank() + distance + m_across.ranks()) % m_across.ranks(); }

  DenseAverage<Exec>* m_dense = nullptr;  ///< instead of compression
  Messenger<Exec>& m_across;
  Transport<Exec>* m_local;  ///< nullptr if flat
  bool m_error_feedback;
  int m_shard;                                                                   ///< of this rank
  std::vector<std::shared_ptr<const compress::Compressor<Exec>>> m_compressors;  ///< one for each shard
  std::vector<std::size_t> m_shard_begins;                                       ///< (shards + 1)
  compress::Feedback<Exec> m_worker, m_server;
  compress::Feedback<Exec> m_kept_worker, m_kept_server;  ///< made by the first `keep`
  Words m_send, m_received, m_gathered;  ///< (chunks * message) C(c_i) by destination, C(c_i)_k by sender, C(a)
  Words m_last;                          ///< (chunks * message) the last call's C(a); flat only
  Words m_recompressed;                  ///< (message) C(a) of this rank's chunk
  std::optional<UnderWay> m_under_way;
  Words m_shard_messages,
      m_all_messages;  ///< m_gathered padded to the longest shard's, and of all shards; hierarchical
};

}  // namespace onebit::comm
