#include "base/system/huge_pages.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "base/kokkos.hpp"

namespace onebit {
namespace {

/// The callback of a tool, which comes first. Global, because the callbacks of Kokkos are plain functions.
Kokkos::Tools::Experimental::EventSet& before() {
  static Kokkos::Tools::Experimental::EventSet callbacks{};
  return callbacks;
}

/// Kokkos calls this before anything writes to a new View, so the first touch of each part of it takes a huge page.
void allocated(const Kokkos::Tools::SpaceHandle space, const char* label, const void* data, const std::uint64_t size) {
  if (before().allocate_data) before().allocate_data(space, label, data, size);
#ifdef MADV_HUGEPAGE
  constexpr std::uintptr_t huge_page = std::uintptr_t{2} << 20;
  if (std::strcmp(space.name, Kokkos::HostSpace::name()) != 0) return;
  // Only whole huge pages inside the View: it takes no more memory than it would with small ones.
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = (address + huge_page - 1) / huge_page * huge_page;
  const std::uintptr_t end = (address + size) / huge_page * huge_page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace

void use_huge_pages() {
  before() = Kokkos::Tools::Experimental::get_callbacks();
  Kokkos::Tools::Experimental::set_allocate_data_callback(allocated);
}

}  // namespace onebit
