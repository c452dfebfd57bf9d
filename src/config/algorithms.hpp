#pragma once
/// \file algorithms.hpp
/// The table of algorithms: what the input, a run and the results depend on. docs/reference/algorithms/README.md says
/// what each one computes, and src/optim/algorithm.cpp makes it.

#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace onebit::config {

/// When an algorithm's variance changes.
enum class Variance {
  none,           ///< it has no variance, and so no bias correction
  never_frozen,   ///< in every step
  frozen_at_T_w,  ///< up to T_w of section `freeze`
  frozen_at_F     ///< in some steps up to F of section `zero_one`
};

/// What a step averages, beside the gradients of dense steps.
enum class Averages {
  nothing,
  floats,      ///< vectors in float: parameters, variances or momenta
  compressed,  ///< CA
  compressed_and_floats,
  columns,          ///< CA with the compressor `column`
  variances,        ///< CA, and the quantised average of v
  votes,            ///< the majority of signs
  averaged_votes,   ///< as `optimizer.vote` says
  shard_momentum,   ///< CA of the momentum, and the update of each shard
  shard_gradients,  ///< CA whose servers make the update of each shard
  tensors,          ///< the same of whole tensors, with a momentum at the server
};

/// What is true of few algorithms; a sum of these.
enum Trait : unsigned {
  no_trait = 0,
  starts_from_variance = 1,   ///< it takes `freeze.from`, and T_w may be 0
  scales_residual_by_lr = 2,  ///< x is linear in what is compressed, step t with the weight γ_t
  shards_state = 4,           ///< each rank has the state of a shard of the parameters
  has_buckets = 8,            ///< it takes `comm.compressed_bucket_bytes`
  serves_tensors = 16,        ///< the server of a matrix needs all of it
  variance_of_tables = 32     ///< its variance is one of tables alone (optim/muon)
};

struct AlgorithmTraits {
  std::string_view name;
  bool compresses;  ///< some of its steps average with the compressor of section `compression`
  Variance variance;
  Averages averages;
  int vectors_before;  ///< vectors of d, or of a shard, beside x and g: up to T_w, or in all steps
  int vectors_after;   ///< from T_w on; of the first such step, when the momentum is in floats still
  unsigned traits;

  bool has(Trait trait) const { return (traits & trait) != 0; }
  bool freezes() const { return variance == Variance::frozen_at_T_w; }
  /// Whether its state is divided among all ranks, so that it cannot average by hosts.
  bool is_flat() const { return has(shards_state) || has(serves_tensors); }
};

// clang-format off
inline constexpr AlgorithmTraits algorithms[] = {
    // name               compresses  variance                 averages                    vectors  traits
    {"adam",                false, Variance::never_frozen,  Averages::nothing,               2, 2,
     starts_from_variance},
    {"onebit_adam",         true,  Variance::frozen_at_T_w, Averages::compressed,            2, 2,
     starts_from_variance | scales_residual_by_lr | has_buckets},
    {"onebit_adam_32bit",   false, Variance::frozen_at_T_w, Averages::floats,                2, 2,
     starts_from_variance},
    {"adam_1bit_naive",     true,  Variance::never_frozen,  Averages::compressed,            2, 2, no_trait},
    {"adam_nbit_variance",  true,  Variance::never_frozen,  Averages::variances,             2, 2, no_trait},
    {"adam_lazy_variance",  true,  Variance::never_frozen,  Averages::compressed_and_floats, 2, 2, no_trait},
    {"sgd",                 false, Variance::none,          Averages::nothing,               0, 0, no_trait},
    {"momentum_sgd",        false, Variance::none,          Averages::nothing,               1, 1, no_trait},
    {"double_squeeze",      true,  Variance::none,          Averages::compressed,            0, 0,
     scales_residual_by_lr},
    {"ef_momentum_sgd",     true,  Variance::none,          Averages::compressed,            1, 1,
     scales_residual_by_lr},
    {"local_sgd",           false, Variance::none,          Averages::floats,                0, 0, no_trait},
    {"local_momentum_sgd",  false, Variance::none,          Averages::floats,                1, 1, no_trait},
    {"onebit_sgd",          true,  Variance::none,          Averages::columns,               1, 1,
     scales_residual_by_lr},
    // m, v, u, x of the last exchange
    {"zero_one_adam",       true,  Variance::frozen_at_F,   Averages::compressed,            4, 4, no_trait},
    // m, v, w
    {"onebit_lamb",         true,  Variance::frozen_at_T_w, Averages::compressed,            2, 3, no_trait},
    {"onebit_lion",         true,  Variance::none,          Averages::compressed,            1, 1, no_trait},
    {"signum",              false, Variance::none,          Averages::votes,                 1, 1, no_trait},
    {"distributed_lion",    false, Variance::none,          Averages::averaged_votes,        1, 1, no_trait},
    // m, v, outer parameters and momentum
    {"diloco",              true,  Variance::never_frozen,  Averages::compressed,            4, 4, no_trait},
    {"efficient_adam",      true,  Variance::never_frozen,  Averages::compressed,            2, 2,
     scales_residual_by_lr},
    {"sharded_adam",        false, Variance::never_frozen,  Averages::nothing,               2, 2,
     starts_from_variance | shards_state},
    {"sharded_onebit_adam", true,  Variance::frozen_at_T_w, Averages::shard_momentum,        2, 2,
     starts_from_variance | scales_residual_by_lr | shards_state},
    {"server_onebit_adam",  true,  Variance::frozen_at_T_w, Averages::shard_gradients,       2, 2,
     starts_from_variance | scales_residual_by_lr | shards_state},
    {"muon",                false, Variance::never_frozen,  Averages::nothing,               1, 1,
     shards_state | serves_tensors | variance_of_tables},
    {"onebit_muon",         true,  Variance::never_frozen,  Averages::tensors,               1, 1,
     serves_tensors | variance_of_tables},
};
// clang-format on

/// The row of an algorithm. \throws InputError for a name that has none
inline const AlgorithmTraits& traits(std::string_view name) {
  for (const AlgorithmTraits& algorithm : algorithms)
    if (algorithm.name == name) return algorithm;
  throw InputError("optimizer.algorithm", "algorithm '" + std::string(name) + "' is not in this build",
                   "see `onebit list`");
}

/// The names of all algorithms, or of those with a trait.
inline std::vector<std::string> algorithm_names(Trait trait = no_trait) {
  std::vector<std::string> names;
  for (const AlgorithmTraits& algorithm : algorithms)
    if (trait == no_trait || algorithm.has(trait)) names.emplace_back(algorithm.name);
  return names;
}

}  // namespace onebit::config
