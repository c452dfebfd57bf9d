/// \file timed.cpp
/// See timed.hpp.

#include "workload/timed.hpp"

#include <chrono>
#include <thread>

namespace onebit::workload {

template <class Exec>
Timed<Exec>::Timed(std::unique_ptr<Workload<Exec>> workload, double seconds)
    : Wrapped<Exec>(std::move(workload)), m_seconds(seconds) {}

template <class Exec>
double Timed<Exec>::gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                             PhaseTimes& times, const GradientProgress& final_from) {
  const Stopwatch watch;
  const auto sleep_until = [&](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds - watch.seconds()));
  };
  GradientProgress timed_final_from;
  if (final_from)
    timed_final_from = [&](std::size_t b) {
      if (b == 0) return;  // all is final when this function returns
      const double share = 1 - static_cast<double>(b) / static_cast<double>(this->tensors().size());
      sleep_until(m_seconds * (1 + 2 * share) / 3);
      final_from(b);
    };
  PhaseTimes computed;
  const double loss = Wrapped<Exec>::gradient(exec, x, step, g, computed, timed_final_from);
  if (watch.seconds() > m_seconds)
    ++m_overruns;
  else
    sleep_until(m_seconds);
  const double seconds = watch.seconds();
  times.add(Phase::forward, seconds / 3);
  times.add(Phase::backward, seconds * 2 / 3);
  return loss;
}

#define ONEBIT_INSTANTIATE(Exec) template class Timed<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
