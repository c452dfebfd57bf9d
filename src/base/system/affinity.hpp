#pragma once
/// \file affinity.hpp
/// On which processors a thread may run.

namespace onebit {

/// Lets the calling thread run wherever OpenMP may place one of its own (OMP_PLACES). With OMP_PROC_BIND, OpenMP pins
/// the first thread of the process to one place, and a thread that is no thread of OpenMP inherits that place, where
/// the first thread computes. Without OMP_PROC_BIND nothing is pinned, and nothing is changed.
void leave_first_place();

}  // namespace onebit
