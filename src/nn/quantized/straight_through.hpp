#pragma once
/// \file straight_through.hpp
/// The straight-through estimator of layers of one bit: the gradient of sign(t) is 1 where |t| < 1, and 0 elsewhere.

#include "base/kokkos.hpp"

namespace onebit::nn {

/// Whether the straight-through estimator passes a gradient to t.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION bool is_inside(Real t) {
  return t < Real(1) && t > Real(-1);
}

}  // namespace onebit::nn
