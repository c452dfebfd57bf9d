#include "train/results/energy.hpp"

#include <dlfcn.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

namespace onebit::train {
namespace {

/// The first number of a file, or `no_energy`.
double number_in(const std::string& path) {
  double value = no_energy;
  std::ifstream file(path);
  file >> value;
  return file ? value : no_energy;
}

/// Whether a zone of powercap is a processor or its memory. A processor contains its zones `core` and `uncore`, and
/// `psys` contains the processors.
bool counts(const std::string& zone) {
  std::string name;
  std::ifstream(zone + "/name") >> name;
  return name.rfind("package", 0) == 0 || name == "dram";
}

}  // namespace

HostEnergy::HostEnergy(const std::string& powercap) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(powercap, error)) {
    const std::string zone = entry.path();
    // intel-rapl is also the name of AMD's; intel-rapl-mmio counts the same processor once more.
    if (entry.path().filename().string().rfind("intel-rapl:", 0) != 0 || !counts(zone)) continue;
    const std::string file = zone + "/energy_uj";
    m_zones.push_back({file, number_in(zone + "/max_energy_range_uj"), number_in(file)});
  }
  if (!m_zones.empty()) m_joules = 0;
  for (const Zone& zone : m_zones) m_joules += 0 * (zone.range + zone.last);  // NaN if one cannot be read
}

void HostEnergy::sample() {
  for (Zone& zone : m_zones) {
    const double now = number_in(zone.file);
    m_joules += 1e-6 * (now - zone.last + (now < zone.last ? zone.range : 0));
    zone.last = now;
  }
}

GpuEnergy::GpuEnergy(const std::string& pci_address) : m_first(no_energy) {
  if (pci_address.empty()) return;
  void* const nvml = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);  // comes with the driver
  if (nvml == nullptr) return;
  const auto initialize = reinterpret_cast<int (*)()>(::dlsym(nvml, "nvmlInit_v2"));
  const auto find = reinterpret_cast<int (*)(const char*, void**)>(::dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2"));
  const auto read = reinterpret_cast<decltype(m_read)>(::dlsym(nvml, "nvmlDeviceGetTotalEnergyConsumption"));
  if (initialize == nullptr || find == nullptr || read == nullptr || initialize() != 0) return;
  if (find(pci_address.c_str(), &m_device) != 0) return;
  m_read = read;
  m_first = counter();
}

double GpuEnergy::counter() const {
  unsigned long long millijoules = 0;
  if (m_read == nullptr || m_read(m_device, &millijoules) != 0) return no_energy;
  return 1e-3 * static_cast<double>(millijoules);
}

double GpuEnergy::joules() const { return counter() - m_first; }

Energy::Energy(const Communicator& communicator, const std::string& pci_address) : m_gpu(pci_address) {
  const std::vector<int> hosts = communicator.hosts();
  // The instances of a GPU have one address and one counter.
  const double gpu = static_cast<double>(std::hash<std::string>()(pci_address) >> 11);
  const std::vector<int> sharers = lowest_sharers(hosts, communicator.gather(&gpu, 1));
  m_reads_host = hosts[communicator.rank()] == communicator.rank();
  m_reads_gpu = sharers[communicator.rank()] == communicator.rank();
}

Energy::Joules Energy::total(const Communicator& communicator) const {
  HostEnergy host = m_host;
  host.sample();
  double sums[2] = {m_reads_host ? host.joules() : 0, m_reads_gpu ? m_gpu.joules() : 0};
  communicator.sum(sums, 2);
  return {sums[0], sums[1]};
}

}  // namespace onebit::train
