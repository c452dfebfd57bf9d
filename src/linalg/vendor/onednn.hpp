#pragma once
/// \file onednn.hpp
/// Products by oneDNN on the calling thread, of factors in float, in bfloat16 or in 8 bits. In a build for CUDA the
/// compiler of the host translates onednn.cpp: dnnl.hpp ends nvcc with an internal error (CUDA 13.0 in C++20).

#include <cstdint>
#include <string>

#include "linalg/row_major.hpp"

namespace onebit::linalg {

/// Whether oneDNN computes the products in float: if this build has it, and the processor AVX-512. On Zen 5 it was
/// measured a tenth faster than OpenBLAS in tiles of 256 and 384 rows, and a third faster in attention's of 128.
bool onednn_is_faster();

/// Whether oneDNN multiplies bfloat16 here; it needs AVX512_BF16.
bool onednn_has_bfloat16();

/// E.g. "oneDNN-2.6.3"; empty without oneDNN.
std::string onednn_version();

/// gemm in host memory on the calling thread. All of these functions need a SingleThreadedBlas (blas.hpp) around the
/// parallel region, because oneDNN takes as many threads as OpenMP would start.
void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, float alpha, Rows<const float> a,
                    Rows<const float> b, float beta, Rows<float> c);

/// c (m, n) ← op(a) (m, k) · op(b) (k, n) + β c of factors in bfloat16, given by their 16 bits. Each thread keeps what
/// oneDNN prepares for a shape.
void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, Rows<const std::uint16_t> a,
                    Rows<const std::uint16_t> b, float beta, Rows<float> c);

/// The same with c rounded to bfloat16.
void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, Rows<const std::uint16_t> a,
                    Rows<const std::uint16_t> b, float beta, Rows<std::uint16_t> c);

/// c (m, n) ← op(a) (m, k) · op(b) (k, n) of factors in 8 bits, for benchmarks. Without VNNI, sums of two terms
/// saturate in 16 bits.
void onednn_product(Transpose op_a, Transpose op_b, int m, int n, int k, Rows<const std::int8_t> a,
                    Rows<const std::int8_t> b, Rows<std::int32_t> c);

}  // namespace onebit::linalg
