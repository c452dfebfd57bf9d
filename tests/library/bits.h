#ifndef ONEBIT_TEST_BITS_H
#define ONEBIT_TEST_BITS_H
/* What the programs bits.cpp and bits.c of this folder share, and bits.py repeats. Each averages the same vectors with
 * the same options by the library's C++, C and Python, and prints hashes of the results, which must be equal. In C and
 * Python the last call is behind a restart: another object, with the residuals of the first. */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { vector_length = 1000, calls = 3, last_call = calls - 1 };

/* Element i of the vector of a rank in a call: in [−1, 1), the same bits in every language. */
static inline float element(uint32_t i, uint32_t rank, uint32_t call) {
  uint32_t word = i * 2654435761u + rank * 40503u + call * 2246822519u + 1u;
  word ^= word >> 15;
  word *= 2246822519u;
  word ^= word >> 13;
  return (float)((int32_t)word / 2147483648.0);
}

static inline void fill(float* x, int rank, int call) {
  for (uint32_t i = 0; i < vector_length; ++i) x[i] = element(i, (uint32_t)rank, (uint32_t)call);
}

/* FNV-1a of floats, from the hash of what came before; at first `no_hash`. */
static const uint64_t no_hash = 0xcbf29ce484222325u;
static inline uint64_t hash_of(uint64_t before, const float* values, size_t count) {
  unsigned char bytes[sizeof(float)];
  for (size_t i = 0; i < count; ++i) {
    memcpy(bytes, &values[i], sizeof bytes);
    for (size_t k = 0; k < sizeof bytes; ++k) before = (before ^ bytes[k]) * 0x100000001b3u;
  }
  return before;
}

/* Option set `number` of `cases`. From 16 on, chunks begin at tensors, groups are rows, and servers change averages. */
enum { cases = 32 };
static inline int is_served(int number) { return number & 16 ? 1 : 0; }
static inline int bits_of(int number) { return number & 1 ? 4 : 1; }
static inline size_t group_of(int number) { return !is_served(number) && number & 2 ? 64 : 0; }
static inline size_t row_of(int number) { return number & 2 ? 40 : 50; }
enum { tensors = 5 };
static const size_t tensor_begins[tensors] = {0, 100, 350, 400, 800};
/* Collectives, pairwise messages, or a grid. */
static inline int is_of_mpi_alone(int number) { return number & 4; }
static inline size_t message_bytes_of(int number) { return (number & 12) == 4 ? 256 : 0; }
static inline int grid_of(int number) { return (number & 12) == 12; }
static inline const char* scale_of(int number) { return (number & 3) == 2 ? "l2" : "l1"; }
static inline int error_feedback_of(int number) { return number & 8 ? 0 : 1; }
/* What servers make of element i of an average. */
static inline float served(float average, size_t i) { return 2.0f * average + (float)(i % 7); }
static inline float residual_factor_of(int call) { return call == last_call ? 0.5f : 1.0f; }

static inline void print_case(int number, int rank, uint64_t results, uint64_t residuals, uint64_t bytes) {
  printf("case %d rank %d results %016llx residuals %016llx bytes %llu\n", number, rank, (unsigned long long)results,
         (unsigned long long)residuals, (unsigned long long)bytes);
}

#endif
