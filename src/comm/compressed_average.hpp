#pragma once
/// \file compressed_average.hpp
/// The average over ranks, compressed with error feedback on both sides (Tang et al., ICML 2021, Section 4.3; Section 6
/// has the three phases of the compressed allreduce).

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/timer.hpp"
#include "comm/transport/transport.hpp"
#include "compress/compressor.hpp"

namespace onebit::comm {

/// What the server of a chunk makes of the average before it is sent to all: it overwrites the chunk, and adds its time
/// to a phase. \param chunk (elements of the chunk) (1/n) Σ_i C(c_i)
template <class Exec>
using Server = std::function<void(const Exec& exec, const Vector<Exec, float>& chunk, PhaseTimes& times)>;

/// What a rank puts into an average.
template <class Exec>
struct Contribution {
  Vector<Exec, float> x;  ///< (length) overwritten where the average is hierarchical or has a server
  /// With shares, the rank contributes m_i = β m + (1−β) g_i, where m is the last average and x is g_i.
  std::optional<compress::MomentumShares> momentum = {};
  float residual_factor = 1;  ///< f
  Server<Exec> server = {};   ///< empty: the average itself is sent to all
};

/// x ← CA(x): the average of all ranks' vectors, sent in compressed form.
///
/// 1. Rank i, a worker: c_i = x_i + f δ_i, δ_i ← c_i − C(c_i). Chunk k of C(c_i) goes to rank k (all-to-all).
/// 2. Rank k, the server of chunk k: a = (1/n) Σ_i C(c_i)_k, added in rank order, and then what the caller's server
///    makes of a. c̄ = a + f δ̄_k, δ̄_k ← c̄ − C(c̄). With a server of the caller's, f is 1 here: a has another unit.
/// 3. C(c̄) goes to all ranks (all-gather), which decompress the same bits.
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

  /// x ← CA(x). \param x (length) \param residual_factor f
  void operator()(const Exec& exec, const Vector<Exec, float>& x, PhaseTimes& times, float residual_factor = 1);

  /// The average in three parts, so that messages of several averages can travel at once: `begin` is step 1 up to
  /// sending, `serve` receives and is step 2, `finish` receives what step 3 brings. The average stays in its messages.
  /// Every rank begins the averages of a transport in the same order. Where the transport does not overlap, `begin`
  /// does everything.
  void begin(const Exec& exec, const Contribution<Exec>& contribution, PhaseTimes& times);
  void serve(const Exec& exec, PhaseTimes& times);
  void finish(const Exec& exec, PhaseTimes& times) { finish(exec, nullptr, times); }

  /// A range of the vector, and what decodes its last average.
  struct Piece {
    Range elements;
    compress::AnyDecoder<Exec> decoder;
  };
  /// The last average: one piece if flat, else one for each shard. It stays valid while the next call reads it.
  std::vector<Piece> last() const;
  /// The words of that piece; flat only. \returns (chunks * message_words of the compressor)
  Vector<Exec, const std::uint32_t> last_messages() const { return m_last; }
  /// Whether all scales of the last average are finite, the same on every rank. They are not where a rank's vector held
  /// NaN or infinity, or where a sum was beyond the numbers of float. Flat only; fences.
  bool last_is_finite(const Exec& exec) const;
  /// x ← the last average; does not fence. \param x (length)
  void decompress_last(const Exec& exec, const Vector<Exec, float>& x) const;
  /// chunk ← this rank's chunk of the last average; flat only; does not fence. \param chunk (elements of the chunk)
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
  /// Copies the residuals, so that `roll_back` can undo the next call.
  void save_residuals(const Exec& exec);
  /// Undoes the call since `save_residuals`: the residuals, and `last`. Flat only; does not fence.
  void roll_back(const Exec& exec);
  /// Where a rank's residuals stand among those of all ranks: δ_i is elements [begin, end) of row `row` of a matrix
  /// (rows, length), δ̄_k is elements [server_begin, server_end) of a vector (length).
  struct ResidualExtents {
    std::size_t row, rows, begin, end, server_begin, server_end;
  };
  ResidualExtents residual_extents() const;

private:
  using Words = Vector<Exec, std::uint32_t>;

  CompressedAverage(Messenger<Exec>& across, Transport<Exec>* local, const std::vector<compress::Layout>& shards,
                    const compress::Options& options, bool error_feedback);
  const compress::Compressor<Exec>& own() const { return *m_compressors[m_shard]; }
  /// An average between `begin` and `finish`.
  struct InFlight {
    compress::Compression<Exec> worker, server;
    Vector<Exec, float> chunk;  ///< of the contribution: memory for the average, where the caller has a server
    Server<Exec> make_of_average;
    std::unique_ptr<Transfer<Exec>> all_to_all, all_gather;  ///< nullptr where the transport does not overlap
  };

  /// Hierarchical: x ← this rank's vector. \returns the average over the host's ranks of this rank's shard
  Vector<Exec, float> average_on_host(const Exec& exec, const Contribution<Exec>& contribution, PhaseTimes& times);
  void exchange_by_phases(const Exec& exec, PhaseTimes& times);
  /// Compresses for all ranks and sends. A rank compresses for its successor first and for itself last, when its other
  /// messages are already under way.
  void send_codes(const Exec& exec, PhaseTimes& times);
  /// Calls the caller's server, if there is one, for the average of what has been received.
  void call_server(const Exec& exec, PhaseTimes& times);
  /// \param x where the average is written as well; may be nullptr
  void finish(const Exec& exec, const Vector<Exec, float>* x, PhaseTimes& times);
  /// Of a message, in the order in which they are sent: the codes part by part, then the scales, which are known last.
  std::vector<Range> sent_ranges() const;
  /// Sends what could not be sent while it was encoded.
  void send_rest(const Exec& exec, Transfer<Exec>& transfer, int to, const Words& message) const;
  Words message(const Words& messages, int number) const;
  /// Words of m_last that hold a shard, and the shard's elements.
  Words last_of(std::size_t shard) const;
  Range elements_of(std::size_t shard) const { return {m_shard_begins[shard], m_shard_begins[shard + 1]}; }
  /// The rank `distance` places after this one.
  int other(int distance) const { return (m_across.rank() + distance + m_across.ranks()) % m_across.ranks(); }

  Messenger<Exec>& m_across;
  Transport<Exec>* m_local;  ///< nullptr if flat
  bool m_error_feedback;
  int m_shard;                                                                   ///< of this rank
  std::vector<std::shared_ptr<const compress::Compressor<Exec>>> m_compressors;  ///< one for each shard
  std::vector<std::size_t> m_shard_begins;                                       ///< (shards + 1)
  compress::Feedback<Exec> m_worker, m_server;
  compress::Feedback<Exec> m_saved_worker, m_saved_server;  ///< made by the first `save_residuals`
  Words m_send, m_received, m_gathered;  ///< (chunks * message) C(c_i) by destination, C(c_i)_k by sender, C(c̄)
  Words m_recompressed;                  ///< (message) C(c̄) of this rank's chunk
  /// The last call's C(c̄): (chunks * message) if flat, else (shards, longest shard's chunks * message).
  Words m_last;
  Words m_shard_messages;  ///< m_gathered padded to the longest shard's; hierarchical
  std::optional<InFlight> m_in_flight;
};

}  // namespace onebit::comm
