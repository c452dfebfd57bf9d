/// \file energy_test.cpp
/// Counters of energy, in a directory that looks like Linux's powercap.

#include "train/results/energy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace onebit::train {
namespace {

class HostEnergyTest : public ::testing::Test {
protected:
  HostEnergyTest() : m_powercap(std::filesystem::path(::testing::TempDir()) / "powercap") {
    std::filesystem::remove_all(m_powercap);
    std::filesystem::create_directories(m_powercap);
  }
  ~HostEnergyTest() override { std::filesystem::remove_all(m_powercap); }

  void write(const std::string& zone, const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(m_powercap / zone);
    std::ofstream(m_powercap / zone / file) << text << '\n';
  }
  /// A zone whose counter goes up to a joule.
  void make_zone(const std::string& zone, const std::string& name) const {
    write(zone, "name", name);
    write(zone, "max_energy_range_uj", "1000000");
    count(zone, 900000);
  }
  void count(const std::string& zone, long microjoules) const { write(zone, "energy_uj", std::to_string(microjoules)); }

  const std::filesystem::path m_powercap;
};

TEST_F(HostEnergyTest, adds_processors_and_memory) {
  make_zone("intel-rapl:0", "package-0");
  make_zone("intel-rapl:0:0", "core");  // in the package
  make_zone("intel-rapl:0:1", "dram");
  make_zone("intel-rapl:1", "package-1");
  make_zone("intel-rapl:2", "psys");            // has all of them
  make_zone("intel-rapl-mmio:0", "package-0");  // the same package
  HostEnergy energy(m_powercap);
  EXPECT_EQ(energy.joules(), 0);
  for (const char* const zone : {"intel-rapl:0", "intel-rapl:0:0", "intel-rapl:2", "intel-rapl-mmio:0"})
    count(zone, 950000);
  count("intel-rapl:0:1", 910000);
  energy.sample();
  EXPECT_NEAR(energy.joules(), 0.06, 1e-12);
  energy.sample();
  EXPECT_NEAR(energy.joules(), 0.06, 1e-12);
}

TEST_F(HostEnergyTest, a_counter_may_begin_again) {
  make_zone("intel-rapl:0", "package-0");
  HostEnergy energy(m_powercap);
  for (const long microjoules : {100000, 300000, 50000}) {
    count("intel-rapl:0", microjoules);
    energy.sample();
  }
  EXPECT_NEAR(energy.joules(), 0.2 + 0.2 + 0.75, 1e-12);
}

TEST_F(HostEnergyTest, is_empty_where_a_counter_cannot_be_read) {
  EXPECT_TRUE(std::isnan(HostEnergy(m_powercap).joules()));
  EXPECT_TRUE(std::isnan(HostEnergy(m_powercap / "missing").joules()));
  make_zone("intel-rapl:0", "package-0");
  make_zone("intel-rapl:1", "package-1");
  write("intel-rapl:1", "energy_uj", "");
  EXPECT_TRUE(std::isnan(HostEnergy(m_powercap).joules()));
  count("intel-rapl:1", 0);
  HostEnergy energy(m_powercap);
  EXPECT_EQ(energy.joules(), 0);
  std::filesystem::remove(m_powercap / "intel-rapl:1" / "energy_uj");
  energy.sample();
  EXPECT_TRUE(std::isnan(energy.joules()));
}

TEST(GpuEnergyTest, is_empty_without_a_gpu) {
  EXPECT_TRUE(std::isnan(GpuEnergy("").joules()));
  EXPECT_TRUE(std::isnan(GpuEnergy("ffffffff:ff:1f.0").joules()));
}

}  // namespace
}  // namespace onebit::train
