/// \file algorithm.cpp
/// The table of algorithms: adding one is its file and one line here (and its name in config::algorithm_names).

#include "optim/algorithm.hpp"

#include "base/error.hpp"
#include "optim/adam.hpp"
#include "optim/compressed_adam.hpp"
#include "optim/onebit_lamb.hpp"
#include "optim/onebit_lion.hpp"
#include "optim/sgd.hpp"
#include "optim/zero_one_adam.hpp"

namespace onebit::optim {

template <class Exec>
std::unique_ptr<Algorithm<Exec>> make_algorithm(const Setup<Exec>& setup) {
  const std::string& name = setup.input.optimizer.algorithm;
  if (name == "adam") return std::make_unique<Adam<Exec>>(setup, SecondPhase::none);
  if (name == "onebit_adam") return std::make_unique<Adam<Exec>>(setup, SecondPhase::compressed_momentum);
  if (name == "onebit_adam_32bit") return std::make_unique<Adam<Exec>>(setup, SecondPhase::dense_momentum);
  if (name == "adam_1bit_naive")
    return std::make_unique<CompressedAdam<Exec>>(setup, VarianceFrom::compressed_gradient);
  if (name == "adam_nbit_variance")
    return std::make_unique<CompressedAdam<Exec>>(setup, VarianceFrom::quantized_average);
  if (name == "adam_lazy_variance") return std::make_unique<CompressedAdam<Exec>>(setup, VarianceFrom::own_gradient);
  if (name == "sgd") return std::make_unique<Sgd<Exec>>(setup, Averaged::gradient, false);
  if (name == "momentum_sgd") return std::make_unique<Sgd<Exec>>(setup, Averaged::gradient, true);
  if (name == "double_squeeze") return std::make_unique<Sgd<Exec>>(setup, Averaged::compressed_gradient, false);
  if (name == "ef_momentum_sgd") return std::make_unique<Sgd<Exec>>(setup, Averaged::compressed_momentum, true);
  if (name == "onebit_sgd") return std::make_unique<Sgd<Exec>>(setup, Averaged::column_gradient, true);
  if (name == "local_sgd") return std::make_unique<Sgd<Exec>>(setup, Averaged::parameters, false);
  if (name == "local_momentum_sgd") return std::make_unique<Sgd<Exec>>(setup, Averaged::parameters, true);
  if (name == "zero_one_adam") return std::make_unique<ZeroOneAdam<Exec>>(setup);
  if (name == "onebit_lamb") return std::make_unique<OnebitLamb<Exec>>(setup);
  if (name == "onebit_lion") return std::make_unique<OnebitLion<Exec>>(setup);
  throw InputError(setup.input.where("optimizer.algorithm"), "algorithm '" + name + "' is not in this build",
                   "see `onebit list`");
}

bool compresses(const std::string& algorithm) {
  for (const char* dense : {"adam", "onebit_adam_32bit", "sgd", "momentum_sgd", "local_sgd", "local_momentum_sgd"})
    if (algorithm == dense) return false;
  return true;
}

#define ONEBIT_INSTANTIATE(Exec) template std::unique_ptr<Algorithm<Exec>> make_algorithm(const Setup<Exec>&);
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::optim
