#pragma once
/// \file energy.hpp
/// The energy that a run takes, from the counters of its hosts (RAPL, in Linux's powercap) and of its GPUs (NVML).

#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "base/device/gpus.hpp"
#include "base/kokkos.hpp"
#include "base/mpi.hpp"
#include "base/timer.hpp"

namespace onebit::train {

/// What cannot be read.
inline constexpr double no_energy = std::numeric_limits<double>::quiet_NaN();

/// The energy of a host's processors and of the memory whose counter they have, since construction. Linux lets root
/// alone read the counters, unless the administrator allows more.
class HostEnergy {
public:
  /// \param powercap directory of the zones
  explicit HostEnergy(const std::string& powercap = "/sys/class/powercap");

  /// Adds what the counters have counted. A counter begins again at 0 after some minutes, so this must be called more
  /// often.
  void sample();
  /// In joules, up to the last sample; `no_energy` without a processor's counter, or when one failed.
  double joules() const { return m_joules; }

private:
  struct Zone {
    std::string file;
    double range;  ///< of the counter, in microjoules
    double last;   ///< what it showed, in microjoules
  };
  std::vector<Zone> m_zones;
  double m_joules = no_energy;
};

/// The energy of an NVIDIA GPU since it was made, in joules; `no_energy` where NVML or the GPU does not count it.
class GpuEnergy {
public:
  /// \param pci_address as NVML writes it, such as "00000000:17:00.0"; empty for no GPU
  explicit GpuEnergy(const std::string& pci_address);
  double joules() const;

private:
  double counter() const;
  void* m_device = nullptr;
  int (*m_read)(void* device, unsigned long long* millijoules) = nullptr;
  double m_first;
};

/// The PCI address of the GPU that computes; empty for a host backend and for GPUs of other makers than NVIDIA.
template <class Exec>
std::string pci_address([[maybe_unused]] const Exec& exec) {
#if defined(KOKKOS_ENABLE_CUDA)
  if constexpr (!is_host<Exec>) {
    const auto& gpu = properties_of(exec);
    char text[32];
    std::snprintf(text, sizeof text, "%08x:%02x:%02x.0", gpu.pciDomainID, gpu.pciBusID, gpu.pciDeviceID);
    return text;
  }
#endif
  return "";
}

/// The energy of all hosts and GPUs of a run since construction. One rank reads each of them.
class Energy {
public:
  /// Collective.
  template <class Exec>
  Energy(const Exec& exec, const Communicator& communicator) : Energy(communicator, pci_address(exec)) {}

  /// To be called in each step; it reads at most once a second.
  void sample() {
    if (m_reads_host && m_since_sample.seconds() >= 1) m_host.sample(), m_since_sample.restart();
  }
  /// In joules, of all hosts, and of all GPUs; `no_energy` where one of them cannot be read.
  struct Joules {
    double hosts, gpus;
  };
  /// Collective.
  Joules total(const Communicator& communicator) const;

private:
  Energy(const Communicator& communicator, const std::string& pci_address);

  HostEnergy m_host;
  GpuEnergy m_gpu;
  bool m_reads_host, m_reads_gpu;
  Stopwatch m_since_sample;
};

}  // namespace onebit::train
