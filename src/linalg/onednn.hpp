#pragma once
/// \file onednn.hpp
/// Products by oneDNN on the calling thread alone, in float or of factors in bfloat16.

#include <cstdint>

#include "linalg/gemm.hpp"

namespace onebit::linalg {

/// Whether this build has oneDNN and this processor the instructions (AVX-512) for which its products in float are the
/// faster ones: measured on Zen 5, a tenth faster than OpenBLAS in tiles of 256, a quarter in attention's of 128.
bool onednn_is_faster();

/// gemm in host memory by the calling thread; needs a SingleThreadedBlas (blas.hpp) around the parallel region, because
/// oneDNN plans for as many threads as OpenMP would start. Plans are kept, so a shape costs that once for each thread.
/// \tparam Factor float, or the 16 bits of a bfloat16
template <class Factor>
void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, float alpha, Rows<const Factor> a,
                    Rows<const Factor> b, float beta, Rows<float> c);

}  // namespace onebit::linalg
