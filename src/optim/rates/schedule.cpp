/// \file schedule.cpp
/// The learning rate of each step. The paper's BERT runs warm up over 12.5k steps and then multiply by 0.99 every 520
/// steps (Tang et al., ICML 2021, Section 7.1).

#include <cmath>

#include "optim/algorithm.hpp"

namespace onebit::optim {

double learning_rate(const config::Input& input, long step) {
  const auto& schedule = input.schedule;
  const double peak = input.optimizer.lr;
  const long warmup = schedule.warmup_steps;
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);

  const long length = input.train.steps - warmup;
  const double passed = length > 0 ? static_cast<double>(step - warmup) / static_cast<double>(length) : 1.0;
  switch (schedule.decay) {
    case Decay::constant:
    case Decay::averaging:
      return peak;
    case Decay::exponential:
      return peak * std::pow(schedule.rate, static_cast<double>((step - warmup) / schedule.every));
    case Decay::step:
      return peak * std::pow(schedule.rate, static_cast<double>(step / schedule.every));
    case Decay::linear:
      return peak * (1.0 - passed);
    case Decay::cosine:
      return peak * 0.5 * (1.0 + std::cos(M_PI * passed));
  }
  return peak;
}

}  // namespace onebit::optim
