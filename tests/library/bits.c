/* The hashes of bits.h by the C functions of libonebit.so, with a restart before the last call, and the errors that
 * these functions return. Compiled as C. */

#include "bits.h"

#include <onebit.h>
#include <stdlib.h>

static int failures = 0;

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "bits.c:%d: not so: %s; the last error is \"%s\"\n", line, what, onebit_last_error());
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)
#define EXPECT_ERROR(call, text) \
  EXPECT((call) == ONEBIT_BAD_INPUT && strstr(onebit_last_error(), text) && strstr(onebit_last_error(), "remedy: "))

static float* floats(size_t count) { return (float*)calloc(count, sizeof(float)); }

struct residuals {
  size_t worker_length, server_length;
  float *worker, *server;
};

static struct residuals residuals_of(const onebit_allreduce* allreduce) {
  struct residuals all;
  EXPECT(onebit_allreduce_residual_lengths(allreduce, &all.worker_length, &all.server_length) == ONEBIT_SUCCESS);
  all.worker = floats(all.worker_length);
  all.server = floats(all.server_length);
  EXPECT(onebit_allreduce_get_residuals(allreduce, all.worker, all.server) == ONEBIT_SUCCESS);
  return all;
}

static void free_residuals(struct residuals all) {
  free(all.worker);
  free(all.server);
}

/* Ends the object. \returns another one with its residuals; adds what it had sent to *bytes. */
static onebit_allreduce* restarted(onebit_allreduce* allreduce, const onebit_options* options, uint64_t* bytes) {
  uint64_t sent = 0;
  EXPECT(onebit_allreduce_bytes_sent(allreduce, &sent) == ONEBIT_SUCCESS);
  *bytes += sent;
  const struct residuals all = residuals_of(allreduce);
  EXPECT(onebit_allreduce_destroy(allreduce) == ONEBIT_SUCCESS);
  EXPECT(onebit_allreduce_create_f(MPI_Comm_c2f(MPI_COMM_WORLD), vector_length, options, &allreduce) == ONEBIT_SUCCESS);
  EXPECT(onebit_allreduce_set_residuals(allreduce, all.worker, all.server) == ONEBIT_SUCCESS);
  free_residuals(all);
  return allreduce;
}

static void run_case(int number, int rank) {
  onebit_options options = ONEBIT_OPTIONS_DEFAULT;
  options.bits = bits_of(number);
  options.group = group_of(number);
  options.message_bytes = message_bytes_of(number);
  options.error_feedback = error_feedback_of(number);
  onebit_allreduce* allreduce = NULL;
  EXPECT(onebit_allreduce_create(MPI_COMM_WORLD, vector_length, number == 0 ? NULL : &options, &allreduce) ==
         ONEBIT_SUCCESS);

  uint64_t results = no_hash, bytes = 0, sent = 0;
  float x[vector_length];
  for (int call = 0; call < calls; ++call) {
    if (call == last_call) allreduce = restarted(allreduce, &options, &bytes);
    fill(x, rank, call);
    EXPECT(onebit_allreduce_run(allreduce, x, residual_factor_of(call)) == ONEBIT_SUCCESS);
    results = hash_of(results, x, vector_length);
  }
  EXPECT(onebit_allreduce_bytes_sent(allreduce, &sent) == ONEBIT_SUCCESS);
  const struct residuals all = residuals_of(allreduce);
  print_case(number, rank, results,
             hash_of(hash_of(no_hash, all.worker, all.worker_length), all.server, all.server_length), bytes + sent);
  free_residuals(all);
  EXPECT(onebit_allreduce_destroy(allreduce) == ONEBIT_SUCCESS);
}

static void refuse_options(onebit_options options, const char* text) {
  onebit_allreduce* made = NULL;
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_WORLD, 8, &options, &made), text);
  EXPECT(made == NULL);
}

static void refuse(void) {
  onebit_options options = ONEBIT_OPTIONS_DEFAULT;
  options.bits = 17;
  refuse_options(options, "17 bits");
  options.bits = 1;
  options.group = 33;
  refuse_options(options, "multiple of 32");
  options.group = 0;
  options.backend = "gpu";
  refuse_options(options, "no backend 'gpu'");
  options.backend = "";
  options.size = sizeof options + 8;
  refuse_options(options, "options.size is");
  options.size = 0; /* a struct without its size */
  refuse_options(options, "options.size is 0");

  onebit_allreduce* made = NULL;
  float x = 0;
  size_t length = 0;
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_WORLD, 0, NULL, &made), "length is 0");
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_NULL, 8, NULL, &made), "MPI_COMM_NULL");
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_WORLD, 8, NULL, NULL), "made is a null pointer");
  EXPECT_ERROR(onebit_allreduce_run(NULL, &x, 1), "allreduce is a null pointer");
  EXPECT_ERROR(onebit_allreduce_bytes_sent(NULL, NULL), "null pointer");
  EXPECT_ERROR(onebit_allreduce_residual_lengths(NULL, &length, &length), "allreduce is a null pointer");
  EXPECT_ERROR(onebit_allreduce_get_residuals(NULL, &x, &x), "allreduce is a null pointer");
  EXPECT_ERROR(onebit_allreduce_set_residuals(NULL, &x, &x), "allreduce is a null pointer");
  EXPECT(onebit_allreduce_destroy(NULL) == ONEBIT_SUCCESS);
}

int main(int argc, char** argv) {
  onebit_allreduce* made = NULL;
  EXPECT(onebit_abi_version() == ONEBIT_ABI_VERSION);
  EXPECT(strcmp(onebit_last_error(), "") == 0);
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_WORLD, 8, NULL, &made), "MPI has not been started");

  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  refuse();
  for (int number = 0; number < cases; ++number) run_case(number, rank);
  EXPECT(onebit_allreduce_create(MPI_COMM_WORLD, 8, NULL, &made) == ONEBIT_SUCCESS);
  MPI_Finalize();
  EXPECT_ERROR(onebit_allreduce_destroy(made), "MPI has ended");
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
