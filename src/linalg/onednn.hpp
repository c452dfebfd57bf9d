#pragma once
/// \file onednn.hpp
/// Products by oneDNN on the calling thread alone, in float or of factors in bfloat16.

#include <cstdint>
#include <string>

#include "linalg/gemm.hpp"

namespace onebit::linalg {

/// Whether this build has oneDNN, and this processor AVX-512: then oneDNN makes the products in float. Measured on Zen 5,
/// it is a tenth faster than OpenBLAS in tiles of 256 and 384 rows, and a third in attention's of 128.
bool onednn_is_faster();

/// Whether it multiplies bfloat16 here, which needs AVX512_BF16.
bool onednn_has_bfloat16();

/// As "oneDNN-2.6.3"; empty without it.
std::string onednn_version();

/// gemm in host memory by the calling thread. Both need a SingleThreadedBlas (blas.hpp) around the parallel region,
/// because oneDNN takes as many threads as OpenMP would start.
void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, float alpha, Rows<const float> a,
                    Rows<const float> b, float beta, Rows<float> c);

/// c (m, n) ← op(a) (m, k) · op(b) (k, n) + β c of factors in bfloat16, of which a number is the 16 bits. oneDNN prepares
/// for a shape; that is kept, so a shape costs it once for each thread.
void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, Rows<const std::uint16_t> a,
                    Rows<const std::uint16_t> b, float beta, Rows<float> c);

}  // namespace onebit::linalg
