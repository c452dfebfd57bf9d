#pragma once
/// \file faults.hpp
/// Faults of a device on purpose, for tests.

#include "simt/runtime.hpp"

namespace onebit::simt {

inline constexpr simtError_t invalid_configuration = 9;

/// What the runtime says from now on when it is asked for its last error.
void set_last_error(simtError_t error);

}  // namespace onebit::simt
