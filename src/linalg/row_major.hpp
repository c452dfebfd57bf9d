#pragma once
/// \file row_major.hpp
/// Matrices as libraries take them. Without Kokkos, so that the compiler of the host can translate what includes it
/// (onednn.cpp).

#include <cstddef>

namespace onebit::linalg {

/// Whether a factor is transposed.
enum class Transpose { no, yes };
/// The other one.
constexpr Transpose flipped(Transpose op) { return op == Transpose::yes ? Transpose::no : Transpose::yes; }

/// A row-major matrix in memory of the execution space: element (i, j) is data[i * row_stride + j].
template <class T>
struct Rows {
  T* data;
  std::size_t row_stride;
};

/// Matrices of one shape, `step` elements from one to the next.
template <class T>
struct Stack {
  Rows<T> first;
  std::size_t step;
};

}  // namespace onebit::linalg
