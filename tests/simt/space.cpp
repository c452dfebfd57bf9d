#include "simt/space.hpp"

#include <ostream>

namespace onebit::simt {

void* Memory::allocate(const char* label, std::size_t bytes, std::size_t logical_bytes) const {
  void* const memory = simt::allocate(bytes);
  if (!memory) fail("no memory for %s", label);
  if (Kokkos::Profiling::profileLibraryLoaded())
    Kokkos::Profiling::allocateData(Kokkos::Profiling::make_space_handle(name()), label, memory,
                                    logical_bytes > 0 ? logical_bytes : bytes);
  return memory;
}

void Memory::deallocate(const char* label, void* memory, std::size_t bytes, std::size_t logical_bytes) const {
  if (Kokkos::Profiling::profileLibraryLoaded())
    Kokkos::Profiling::deallocateData(Kokkos::Profiling::make_space_handle(name()), label, memory,
                                      logical_bytes > 0 ? logical_bytes : bytes);
  release(memory);
}

namespace {

/// Tells Kokkos of the space, so that Kokkos::fence waits for it.
class Initializer : public Kokkos::Impl::ExecSpaceInitializerBase {
public:
  void initialize(const Kokkos::InitArguments&) override {}
  void finalize(bool) override { finish_all(); }
  void fence() override { finish_all(); }
  void print_configuration(std::ostream& stream, bool) override { stream << "simulated device\n"; }
};
const int registered = Kokkos::Impl::initialize_space_factory<Initializer>("200_Simt");

}  // namespace
}  // namespace onebit::simt
