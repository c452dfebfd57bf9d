/// \file device_test.cpp
/// What the simulated device finds, each against the same without the fault.

#include "../support.hpp"
#include "base/device/parallel.hpp"
#include "base/device/self_check.hpp"
#include "base/device/warps.hpp"
#include "comm/overlap/event.hpp"
#include "simt/faults.hpp"

namespace onebit {
namespace {

using Floats = Vector<GpuExec, float>;
using Policy = Kokkos::TeamPolicy<GpuExec>;

void fill(const GpuExec& exec, const Floats& values, float value) {
  for_each(
      exec, "OneBit::test::fill", values.extent(0), KOKKOS_LAMBDA(std::size_t i) { values(i) = value; });
}

TEST(Device, runs_work_as_late_as_the_fence) {
  float read = 0;
  const Floats values("OneBit::test::values", 1);
  fill(GpuExec(), values, 3);
  Kokkos::deep_copy(GpuExec(), Kokkos::View<float, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(&read),
                    Kokkos::subview(values, 0));
  EXPECT_EQ(read, 0);
  fence(GpuExec(), "OneBit::test::fence");
  EXPECT_EQ(read, 3);
}

/// How often a copy in one stream does not see what another stream wrote before it. \param ordered by an event
int stale_copies(bool ordered) {
  const InstanceOfItsOwn<GpuExec> writer, reader;
  int stale = 0;
  for (int i = 1; i <= 50; ++i) {
    const Floats from("OneBit::test::from", 1), to("OneBit::test::to", 1);
    comm::Event<GpuExec> written;
    fill(writer.get(), from, static_cast<float>(i));
    written.record(writer.get());
    if (ordered) written.hold(reader.get());
    Kokkos::deep_copy(reader.get(), to, from);
    fence(reader.get(), "OneBit::test::fence");
    stale += test::to_host(to)[0] != static_cast<float>(i);
  }
  return stale;
}

TEST(Device, streams_are_ordered_by_events_alone) {
  EXPECT_GT(stale_copies(false), 0);
  EXPECT_EQ(stale_copies(true), 0);
}

TEST(Device, events_happen_while_somebody_asks) {
  const Floats values("OneBit::test::values", 1);
  comm::Event<GpuExec> filled;
  fill(GpuExec(), values, 1);
  filled.record(GpuExec());
  int asked = 0;
  while (!filled.has_happened() && asked < 1000) ++asked;
  EXPECT_LT(asked, 1000);
}

TEST(Device, new_memory_holds_no_zeros) {
  const Floats values = make_uninitialized<GpuExec, float>("OneBit::test::values", 3);
  for (const float value : test::to_host(values)) EXPECT_TRUE(std::isnan(value));
}

TEST(Device, memory_is_not_the_hosts) {
  const Floats values("OneBit::test::values", 3);
  EXPECT_DEATH(values(1) = 2, "host code reads or writes device memory");
}

TEST(Device, writes_beside_a_view_are_found) {
  const Floats values("OneBit::test::values", 3);
  EXPECT_DEATH(
      {
        for_each(
            GpuExec(), "OneBit::test::beside", 5, KOKKOS_LAMBDA(std::size_t i) { values(i) = 1; });
        fence(GpuExec(), "OneBit::test::fence");
      },
      "a kernel wrote beside an allocation");
}

TEST(Device, a_barrier_that_some_threads_miss_is_shown) {
  EXPECT_DEATH(
      {
        Kokkos::parallel_for(
            Policy(GpuExec(), 1, 2, 32), KOKKOS_LAMBDA(const Policy::member_type& team) {
              if (team.team_rank() == 0) team.team_barrier();
            });
        fence(GpuExec(), "OneBit::test::fence");
      },
      "wait at different places, a warp a line:\nbarrier barrier");
}

TEST(Device, teams_that_are_too_large_are_refused) {
  EXPECT_DEATH(Policy(GpuExec(), 1, 33, 32), "a team of 33 x 32 threads");
  EXPECT_DEATH(
      {
        Kokkos::parallel_for(Policy(GpuExec(), 1, 1, 32).set_scratch_size(0, Kokkos::PerTeam(48 * 1024)),
                             KOKKOS_LAMBDA(const Policy::member_type&){});
        fence(GpuExec(), "OneBit::test::fence");
      },
      "bytes of shared memory");
}

TEST(Launch, that_failed_is_seen_at_the_fence) {
  fence(GpuExec(), "OneBit::test::fence");
  simt::set_last_error(simt::invalid_configuration);
  try {
    fence(GpuExec(), "OneBit::test::broken");
    ADD_FAILURE() << "the fence saw no error";
  } catch (const RunError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("OneBit::test::broken failed: invalid configuration"), std::string::npos) << message;
  }
  simt::set_last_error(simtSuccess);
  EXPECT_NO_THROW(fence(GpuExec(), "OneBit::test::fence"));
}

}  // namespace
}  // namespace onebit
