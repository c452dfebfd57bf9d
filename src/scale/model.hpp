#pragma once
/// \file model.hpp
/// The time of averages over ranks in the α-β-γ model, as closed forms (docs/reference/prediction.md).
///
/// A message costs latency α, the time of its bytes at bandwidth β, and an overhead o of its sender's processor. Work
/// costs γ for each element. A host's link has a bandwidth in each direction, which all ranks of the host share. Inside
/// a host each rank has a channel of its own. Ranks are numbered host by host. Hockney 1994; Thakur, Rabenseifner and
/// Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.

#include <limits>
#include <string>
#include <vector>

namespace onebit::scale {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Times in seconds, bandwidths in bytes per second.
struct Machine {
  double latency = 0;                  ///< α between hosts
  double bandwidth = infinity;         ///< β of a host's link that messages reach, each direction
  double burst = 0;                    ///< bytes of a call that an idle link passes at once (token bucket)
  double overhead = 0;                 ///< o of each message
  double inside_latency = 0;           ///< α inside a host
  double inside_bandwidth = infinity;  ///< of a rank's channel inside its host, each direction
  double reduce = 0;                   ///< γ of adding an element to another
  double compress = 0;                 ///< γ of compressing an element with its residual
  double average = 0;                  ///< γ of averaging and recompressing, for each element received
  double decompress = 0;               ///< γ of decompressing an element
};

/// What an element takes in messages.
struct Width {
  double dense_bytes = 4;   ///< of the dense forms but those in 16 bits, and of the reduce-scatter inside hosts
  int compressed_bits = 1;  ///< of the compressed forms
};

/// One of the costs γ.
using Cost = double Machine::*;

/// Hosts with the same number of ranks each.
struct Cluster {
  int hosts = 1, ranks_per_host = 1;
  int ranks() const { return hosts * ranks_per_host; }
};

/// Ways to average a vector over all ranks.
enum class Form {
  ring,                 ///< reduce-scatter and all-gather around a ring, the ranks in order
  tree,                 ///< recursive doubling with the whole vector
  rabenseifner,         ///< recursive halving, then recursive doubling
  pairwise,             ///< each rank sends every other rank its chunk, and the sums of its own chunk back
  hierarchical,         ///< reduce-scatter inside hosts, rings between hosts, all-gather inside hosts
  pairwise_bf16,        ///< dense in 16 bits: all-to-all and all-gather, all messages direct
  hierarchical_bf16,    ///< reduce-scatter in float inside hosts, pairwise_bf16 between, all-gather inside
  compressed,           ///< a bit or a few an element: all-to-all and all-gather, as an MPI library would choose them
  pairwise_compressed,  ///< a bit or a few an element, all messages direct, overlapped with compression and average
  hierarchical_compressed  ///< dense reduce-scatter inside hosts, pairwise_compressed between, all-gather inside
};
inline constexpr int form_count = 10;

/// The name of a form in `predict.collectives`.
const char* name(Form form);
Form form_of(const std::string& name);
/// Whether a form sends compressed vectors.
inline bool is_compressed(Form form) { return form >= Form::compressed; }

/// Parts of a call, in order.
enum class Part { allreduce, reduce_scatter, compress, all_to_all, average, all_gather, decompress };
inline constexpr int part_count = 7;

/// A lower bound of a stage's time: a chain of messages that wait for each other, or what one link, one channel or one
/// processor has to do.
struct Bound {
  double messages = 0;  ///< of α between hosts
  double bytes = 0;     ///< through one host's link
  double inside_messages = 0;
  double inside_bytes = 0;  ///< through one rank's channel
  double overheads = 0;     ///< messages that one processor starts

  double seconds(const Machine& machine) const;
};

/// One step of a call: messages, which take as long as the longest of the bounds, or work.
struct Stage {
  Part part;
  std::vector<Bound> bounds;
  double link_bytes = 0;     ///< that leave a host
  bool logarithmic = false;  ///< a round of Bruck's algorithm
  bool overlaps = false;     ///< begins with the stage before it, which is work: the longer of the two counts
  double elements = 0;       ///< of work, each at `cost`
  Cost cost = nullptr;

  /// The longest bound; nullptr for a stage without messages.
  const Bound* longest(const Machine& machine) const;
  double seconds(const Machine& machine) const;
};

/// The stages of one call. \param machine decides between algorithms as an MPI library would
std::vector<Stage> stages(Form form, const Cluster& cluster, double parameters, const Width& width,
                          const Machine& machine);

/// Seconds of each part, indexed by Part. For overlapped messages, what is left to wait for.
std::vector<double> part_seconds(const std::vector<Stage>& stages, const Machine& machine);
/// Their sum.
double total_seconds(const std::vector<Stage>& stages, const Machine& machine);

/// Blocks in a message of Bruck's all-gather or all-to-all, in the round with `distance`.
int bruck_blocks(Part part, int ranks, int distance);

/// Bytes of a compressed message: words of codes and a scale.
double message_bytes(double elements, int bits);

}  // namespace onebit::scale
