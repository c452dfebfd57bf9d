/// \file faulty.cpp
/// See faulty.hpp.

#include "workload/faulty.hpp"

#include <chrono>
#include <thread>

namespace onebit::workload {
namespace {

/// values(0) ← values(0) + value
template <class Exec>
void add_to_first(const Exec& exec, const Vector<Exec, float>& values, float value) {
  const auto first = Kokkos::subview(values, std::make_pair(0, 1));
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), first);
  host(0) += value;
  Kokkos::deep_copy(exec, first, host);
  fence(exec, "OneBit::workload::fault");
}

[[noreturn]] void hang() {
  const Region region("OneBit::workload::fault");
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

}  // namespace

template <class Exec>
Faulty<Exec>::Faulty(std::unique_ptr<Workload<Exec>> workload, Fault kind, long step)
    : Wrapped<Exec>(std::move(workload)), m_kind(kind), m_step(step) {}

template <class Exec>
void Faulty<Exec>::initialize(const Exec& exec, const Vector<Exec, float>& x) {
  if (m_step == 0) hang();
  Wrapped<Exec>::initialize(exec, x);
}

template <class Exec>
double Faulty<Exec>::gradient(const Exec& exec, const Vector<Exec, float>& x, long step, const Vector<Exec, float>& g,
                              PhaseTimes& times, const GradientProgress& final_from) {
  if (step != m_step) return Wrapped<Exec>::gradient(exec, x, step, g, times, final_from);
  const Region region("OneBit::workload::fault");
  if (m_kind == Fault::desync) add_to_first(exec, x, 0.5f);
  if (m_kind == Fault::hang) hang();
  // What is said to be final may be averaged at once, so nothing is.
  const double loss = Wrapped<Exec>::gradient(exec, x, step, g, times, {});
  if (m_kind == Fault::nan) add_to_first(exec, g, std::numeric_limits<float>::quiet_NaN());
  return loss;
}

#define ONEBIT_INSTANTIATE(Exec) template class Faulty<Exec>;
ONEBIT_FOR_EACH_BACKEND(ONEBIT_INSTANTIATE)

}  // namespace onebit::workload
