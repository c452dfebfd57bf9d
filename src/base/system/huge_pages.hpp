#pragma once
/// \file huge_pages.hpp
/// Large Views of the host on huge pages. A step reads gigabytes, and a product reads a matrix in many rows at a time,
/// so with pages of 4 KiB a processor looks up addresses more often than its tables of pages hold.

namespace onebit {

/// Asks Linux for huge pages under the host Views of some MiB that are made from now on. Kokkos must have been started.
/// Does nothing where the system has no such request; the system may also refuse it.
void use_huge_pages();

}  // namespace onebit
