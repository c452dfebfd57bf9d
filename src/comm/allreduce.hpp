#pragma once
/// \file allreduce.hpp
/// Averages over ranks: dense, and compressed to one or a few bits an element with error feedback on both sides
/// (Tang et al., ICML 2021, Section 4.3; Section 6 has the three phases of the compressed allreduce).

#include <memory>
#include <vector>

#include "base/timer.hpp"
#include "comm/transport.hpp"
#include "compress/compressor.hpp"

namespace onebit::comm {

/// values ← (1/n) Σ_i values_i. \param values (any length)
template <class Exec>
void average(const Exec& exec, Transport<Exec>& transport, int ranks, const Vector<Exec, float>& values,
             PhaseTimes& times);

/// x ← CA(x): the average of all ranks' vectors as it travels compressed.
///
/// 1. c_i = x_i + f δ_i; δ_i ← c_i − C(c_i); chunk k of C(c_i) goes to rank k (all-to-all).
/// 2. Rank k: a = (1/n) Σ_i C(c_i)_k + f δ̄_k, in rank order; δ̄_k ← a − C(a).
/// 3. All-gather of C(a); every rank decompresses the same bits.
/// The factor f of a call is the same on every rank, and 1 unless a caller says otherwise.
/// With one rank nothing travels, but both compressions take place. Where the transport can exchange in parts, the codes
/// of one part travel while the next one is compressed or averaged, and the times of all-to-all and all-gather are what
/// is then left to wait for.
///
/// Hierarchical, with r ranks on each of H hosts, the vector is cut into r shards, and rank l of a host stands for the host
/// in shard l: the host's ranks average it densely (reduce-scatter), the hosts' l-th ranks do 1 to 3 among themselves,
/// and the messages are gathered inside each host. So residuals belong to a host's average and not to a rank's vector,
/// a rank keeps those of its shard only, and r times less leaves a host.
template <class Exec>
class CompressedAllreduce {
public:
  /// Flat. \param layout of the vectors, with as many chunks as the transport has ranks
  /// \param error_feedback false drops both residuals: δ_i = δ̄_k = 0 at the begin of every call
  CompressedAllreduce(Transport<Exec>& transport, const compress::Layout& layout, const compress::Options& options,
                      bool error_feedback = true);
  /// Hierarchical. \param shards of the vector in order, one for each rank of a host, cut for as many chunks as hosts
  CompressedAllreduce(const Hosts<Exec>& hosts, const std::vector<compress::Layout>& shards,
                      const compress::Options& options, bool error_feedback = true);

  /// Without compression: a dense average, for networks on which compression does not pay.
  explicit CompressedAllreduce(Transport<Exec>& transport);

  /// False for the dense average, which has no residuals.
  bool compresses() const { return !m_compressors.empty(); }

  /// \param x (length) this rank's vector, then the average
  /// \param residual_factor f, by which this call multiplies both residuals before it adds them
  void operator()(const Exec& exec, const Vector<Exec, float>& x, PhaseTimes& times, float residual_factor = 1);

  /// Whether the average can stay as the messages that brought it: where this rank has all of them, side by side.
  bool keeps_messages() const { return compresses() && m_local == nullptr; }
  /// The same without writing the average to x, which then is only read. Where `average` has an old value, `last()`, it
  /// is what is averaged, with x as its new term: m_i = old_share · m + new_share · (factor · x) and m ← CA(m_i) move
  /// neither m nor m_i.
  void average_in_messages(const Exec& exec, const Vector<Exec, float>& x, const compress::MovingAverage<Exec>& average,
                           PhaseTimes& times, float residual_factor = 1);
  /// The last average, of either kind of call, as its messages; they stay as they are for one more call.
  Vector<Exec, const std::uint32_t> last() const { return m_last; }
  compress::AnyDecoder<Exec> last_decoder() const { return own().decoder(m_last); }
  /// x ← the last average; does not fence. \param x (length)
  void decompress_last(const Exec& exec, const Vector<Exec, float>& x) const {
    own().decompress(exec, 0, m_across.ranks(), m_last, x);
  }

  /// δ_i (length of the shard; flat: of the vector) and δ̄_k (chunk length, padding 0): what the last call's compressions
  /// lost; zero at first.
  Vector<Exec, float> worker_residual(const Exec& exec) const;
  Vector<Exec, float> server_residual(const Exec& exec) const;
  double worker_residual_l2(const Exec& exec) const { return own().residual_l2(exec, 0, m_across.ranks(), m_worker); }
  double server_residual_l2(const Exec& exec) const { return own().residual_l2(exec, m_across.rank(), 1, m_server); }
  /// Goes on from these residuals, of the lengths above.
  void set_residuals(const Exec& exec, const Vector<Exec, const float>& worker,
                     const Vector<Exec, const float>& server);
  /// Where they belong: δ_i is elements [begin, end) of row `row` of a matrix (rows, length) of all ranks' ones, δ̄_k elements
  /// [server_begin, server_end) of a vector (length).
  struct Places {
    std::size_t row, rows, begin, end, server_begin, server_end;
  };
  Places places() const;

private:
  using Words = Vector<Exec, std::uint32_t>;

  CompressedAllreduce(Transport<Exec>& across, Transport<Exec>* local, const std::vector<compress::Layout>& shards,
                      const compress::Options& options, bool error_feedback);
  const compress::Compressor<Exec>& own() const { return *m_compressors[m_shard]; }
  /// All but the begin and end of a hierarchical average. \param decompresses writes the average to `shard` too
  void exchange(const Exec& exec, const Vector<Exec, float>& shard, const compress::MovingAverage<Exec>& average,
                bool decompresses, float residual_factor, PhaseTimes& times);
  void exchange_in_parts(const Exec& exec, const compress::Compression<Exec>& worker,
                         const compress::Compression<Exec>& server, const Vector<Exec, float>& shard, bool decompresses,
                         PhaseTimes& times);
  void exchange_at_once(const Exec& exec, const compress::Compression<Exec>& worker,
                        const compress::Compression<Exec>& server, const Vector<Exec, float>& shard, bool decompresses,
                        PhaseTimes& times);
  Words block(const Words& blocks, int number) const;

  Transport<Exec>& m_across;
  Transport<Exec>* m_local;  ///< none where the average is flat
  bool m_error_feedback;
  int m_shard;                                                                   ///< this rank's
  std::vector<std::unique_ptr<const compress::Compressor<Exec>>> m_compressors;  ///< of each shard
  std::vector<std::size_t> m_shard_begins;                                       ///< (shards + 1)
  compress::Feedback<Exec> m_worker, m_server;
  Words m_send, m_received, m_gathered;    ///< (chunks * message) C(c_i) by destination, C(c_i)_k by sender, C(a)
  Words m_last;                            ///< (chunks * message) the last call's C(a); flat only
  Words m_recompressed;                    ///< (message) C(a) of this rank's chunk
  Words m_shard_messages, m_all_messages;  ///< (longest chunks * message), of all shards; where hierarchical
};

}  // namespace onebit::comm
