#pragma once
/// \file algorithms.hpp
/// The properties of each algorithm that the input, a run and the results depend on.
/// docs/reference/algorithms/README.md says what each one computes, and src/optim/algorithm.cpp makes it.

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

struct AlgorithmTraits {
  std::string_view name;
  bool compresses;  ///< some of its steps average with the compressor of section `compression`
  Variance variance;
  bool starts_from_variance;   ///< it takes `freeze.from`, and T_w may be 0
  bool scales_residual_by_lr;  ///< x is linear in what is compressed, step t with the weight γ_t
  bool shards_state = false;   ///< each rank has the state of a shard of the parameters
  bool has_buckets = false;    ///< it takes `comm.compressed_bucket_bytes`

  bool freezes() const { return variance == Variance::frozen_at_T_w; }
};

// clang-format off
inline constexpr AlgorithmTraits algorithms[] = {
    // name                compresses  variance                 starts_from_variance  scales_residual shards buckets
    {"adam",               false,      Variance::never_frozen,  true,                 false},
    {"onebit_adam",        true,       Variance::frozen_at_T_w, true,                 true,           false, true},
    {"onebit_adam_32bit",  false,      Variance::frozen_at_T_w, true,                 false},
    {"adam_1bit_naive",    true,       Variance::never_frozen,  false,                false},
    {"adam_nbit_variance", true,       Variance::never_frozen,  false,                false},
    {"adam_lazy_variance", true,       Variance::never_frozen,  false,                false},
    {"sgd",                false,      Variance::none,          false,                false},
    {"momentum_sgd",       false,      Variance::none,          false,                false},
    {"double_squeeze",     true,       Variance::none,          false,                true},
    {"ef_momentum_sgd",    true,       Variance::none,          false,                true},
    {"local_sgd",          false,      Variance::none,          false,                false},
    {"local_momentum_sgd", false,      Variance::none,          false,                false},
    {"onebit_sgd",         true,       Variance::none,          false,                true},
    {"zero_one_adam",      true,       Variance::frozen_at_F,   false,                false},
    {"onebit_lamb",        true,       Variance::frozen_at_T_w, false,                false},
    {"onebit_lion",        true,       Variance::none,          false,                false},
    {"signum",             false,      Variance::none,          false,                false},
    {"distributed_lion",   false,      Variance::none,          false,                false},
    {"diloco",             true,       Variance::never_frozen,  false,                false},
    {"efficient_adam",     true,       Variance::never_frozen,  false,                true},
    {"sharded_adam",       false,      Variance::never_frozen,  true,                 false,          true},
    {"sharded_onebit_adam", true,      Variance::frozen_at_T_w, true,                 true,           true},
    {"server_onebit_adam", true,       Variance::frozen_at_T_w, true,                 true,           true},
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
inline std::vector<std::string> algorithm_names(bool AlgorithmTraits::*trait = nullptr) {
  std::vector<std::string> names;
  for (const AlgorithmTraits& algorithm : algorithms)
    if (trait == nullptr || algorithm.*trait) names.emplace_back(algorithm.name);
  return names;
}

}  // namespace onebit::config
