/// \file algorithm.cpp
/// The factory of each algorithm. An algorithm is its file, a row here and a row of config::algorithms.

#include "optim/algorithm.hpp"

#include <iterator>

#include "optim/muon/muon.hpp"
#include "optim/onebit_adam.hpp"
#include "optim/others/compressed_adam.hpp"
#include "optim/others/diloco.hpp"
#include "optim/others/distributed_lion.hpp"
#include "optim/others/efficient_adam.hpp"
#include "optim/others/onebit_lamb.hpp"
#include "optim/others/onebit_lion.hpp"
#include "optim/others/sgd.hpp"
#include "optim/others/zero_one_adam.hpp"
#include "optim/sharded/sharded_adam.hpp"

namespace onebit::optim {
namespace {

template <class Exec>
struct Factory {
  std::string_view name;
  std::unique_ptr<Algorithm<Exec>> (*make)(const Setup<Exec>&);
};

template <class Exec, template <class> class Which, auto... options>
std::unique_ptr<Algorithm<Exec>> make(const Setup<Exec>& setup) {
  return std::make_unique<Which<Exec>>(setup, options...);
}

template <class Exec>
constexpr Factory<Exec> factories[] = {
    {"adam", make<Exec, Adam, SecondPhase::none>},
    {"onebit_adam", make<Exec, Adam, SecondPhase::compressed_momentum>},
    {"onebit_adam_32bit", make<Exec, Adam, SecondPhase::dense_momentum>},
    {"adam_1bit_naive", make<Exec, CompressedAdam, VarianceFrom::compressed_gradient>},
    {"adam_nbit_variance", make<Exec, CompressedAdam, VarianceFrom::quantized_average>},
    {"adam_lazy_variance", make<Exec, CompressedAdam, VarianceFrom::own_gradient>},
    {"sgd", make<Exec, Sgd, Averaged::gradient, false>},
    {"momentum_sgd", make<Exec, Sgd, Averaged::gradient, true>},
    {"double_squeeze", make<Exec, Sgd, Averaged::compressed_gradient, false>},
    {"ef_momentum_sgd", make<Exec, Sgd, Averaged::compressed_momentum, true>},
    {"local_sgd", make<Exec, Sgd, Averaged::parameters, false>},
    {"local_momentum_sgd", make<Exec, Sgd, Averaged::parameters, true>},
    {"onebit_sgd", make<Exec, Sgd, Averaged::column_gradient, true>},
    {"zero_one_adam", make<Exec, ZeroOneAdam>},
    {"onebit_lamb", make<Exec, OnebitLamb>},
    {"onebit_lion", make<Exec, OnebitLion>},
    {"signum", make<Exec, DistributedLion, VoteOn::momentum>},
    {"distributed_lion", make<Exec, DistributedLion, VoteOn::update>},
    {"diloco", make<Exec, Diloco>},
    {"efficient_adam", make<Exec, EfficientAdam>},
    {"sharded_adam", make<Exec, ShardedAdam, Compressed::nothing>},
    {"sharded_onebit_adam", make<Exec, ShardedAdam, Compressed::momentum>},
    {"server_onebit_adam", make<Exec, ShardedAdam, Compressed::gradient>},
    {"muon", make<Exec, Muon, false>},
    {"onebit_muon", make<Exec, Muon, true>},
};

template <class Exec>
constexpr bool has_every_algorithm() {
  if (std::size(factories<Exec>) != std::size(config::algorithms)) return false;
  for (std::size_t row = 0; row < std::size(config::algorithms); ++row)
    if (factories<Exec>[row].name != config::algorithms[row].name) return false;
  return true;
}

}  // namespace

template <class Exec>
std::unique_ptr<Algorithm<Exec>> make_algorithm(const Setup<Exec>& setup) {
  static_assert(has_every_algorithm<Exec>(), "the rows must be those of config::algorithms, in the same order");
  const config::AlgorithmTraits& algorithm = config::traits(setup.input.optimizer.algorithm);
  return factories<Exec>[&algorithm - config::algorithms].make(setup);
}

#define ONEBIT_INSTANTIATE(Exec) template std::unique_ptr<Algorithm<Exec>> make_algorithm(const Setup<Exec>&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
