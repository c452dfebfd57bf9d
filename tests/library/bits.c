/* The hashes of bits.h by the C functions of libonebit.so, with a restart before the last call, and the errors that
 * these functions return. Compiled as C. */

#include "bits.h"

#include <math.h>
#include <onebit/onebit.h>
#include <stdlib.h>

static int failures = 0;

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "bits.c:%d: not so: %s; the last error is \"%s\"\n", line, what, onebit_last_error());
}
#define EXPECT(condition) expect(condition, #condition, __LINE__)
#define EXPECT_STATUS(status, call, text) \
  EXPECT((call) == (status) && strstr(onebit_last_error(), text) && strstr(onebit_last_error(), "remedy: "))
#define EXPECT_ERROR(call, text) EXPECT_STATUS(ONEBIT_BAD_INPUT, call, text)

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

/* A transport of the caller, which exchanges by MPI. Its context is what its functions return. */
static int all_to_all(void* context, const void* send, void* received, size_t bytes) {
  MPI_Alltoall(send, (int)bytes, MPI_BYTE, received, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
  return *(const int*)context;
}
static int all_gather(void* context, const void* send, void* received, size_t bytes) {
  MPI_Allgather(send, (int)bytes, MPI_BYTE, received, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
  return *(const int*)context;
}
static int status_of_transport = 0;
static onebit_transport transport(void) {
  onebit_transport made = {sizeof made, 0, 0, &status_of_transport, all_to_all, all_gather};
  MPI_Comm_rank(MPI_COMM_WORLD, &made.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &made.ranks);
  return made;
}

/* An object by MPI, or by the caller's transport. */
static onebit_allreduce* made_by(const onebit_transport* carrier, const onebit_options* options) {
  onebit_allreduce* allreduce = NULL;
  EXPECT((carrier == NULL
              ? onebit_allreduce_create(MPI_COMM_WORLD, vector_length, options, &allreduce)
              : onebit_allreduce_create_with(carrier, vector_length, options, &allreduce)) == ONEBIT_SUCCESS);
  return allreduce;
}

/* Ends the object. \returns another one with its residuals; adds what it had sent to *bytes. */
static onebit_allreduce* restarted(onebit_allreduce* allreduce, const onebit_transport* carrier,
                                   const onebit_options* options, uint64_t* bytes) {
  uint64_t sent = 0;
  EXPECT(onebit_allreduce_bytes_sent(allreduce, &sent) == ONEBIT_SUCCESS);
  *bytes += sent;
  const struct residuals all = residuals_of(allreduce);
  EXPECT(onebit_allreduce_destroy(allreduce) == ONEBIT_SUCCESS);
  if (carrier != NULL)
    allreduce = made_by(carrier, options);
  else
    EXPECT(onebit_allreduce_create_f(MPI_Comm_c2f(MPI_COMM_WORLD), vector_length, options, &allreduce) ==
           ONEBIT_SUCCESS);
  EXPECT(onebit_allreduce_set_residuals(allreduce, all.worker, all.server) == ONEBIT_SUCCESS);
  free_residuals(all);
  return allreduce;
}

/* A server. Its context is the allreduce. */
static int serve(void* context, float* chunk, size_t first, size_t length) {
  size_t own_first = 0, own_length = 0;
  EXPECT(onebit_allreduce_chunk((const onebit_allreduce*)context, &own_first, &own_length) == ONEBIT_SUCCESS);
  EXPECT(first == own_first && length == own_length);
  for (size_t i = 0; i < length; ++i) chunk[i] = served(chunk[i], first + i);
  return 0;
}

static int average(onebit_allreduce* allreduce, int number, int call, float* x) {
  return is_served(number) ? onebit_allreduce_run_served(allreduce, x, serve, allreduce)
                           : onebit_allreduce_run(allreduce, x, residual_factor_of(call));
}

/* The first elements of the rows of an option set. \returns their number */
static size_t rows_of(int number, size_t* begins) {
  size_t count = 0;
  for (size_t at = 0; at < vector_length; at += row_of(number)) begins[count++] = at;
  return count;
}

struct found {
  uint64_t results, residuals, bytes;
};

static struct found run(int number, int rank, const onebit_transport* carrier) {
  onebit_options options = ONEBIT_OPTIONS_DEFAULT;
  options.bits = bits_of(number);
  options.group = group_of(number);
  options.message_bytes = message_bytes_of(number);
  options.grid = (size_t)grid_of(number);
  options.error_feedback = error_feedback_of(number);
  options.scale = scale_of(number);
  size_t rows[vector_length];
  if (is_served(number)) {
    options.group_begins = rows;
    options.groups = rows_of(number, rows);
    options.chunk_borders = tensor_begins;
    options.borders = tensors;
  }
  onebit_allreduce* allreduce = made_by(carrier, number == 0 ? NULL : &options);

  struct found found = {no_hash, no_hash, 0};
  uint64_t sent = 0;
  float x[vector_length];
  for (int call = 0; call < calls; ++call) {
    if (call == last_call) allreduce = restarted(allreduce, carrier, &options, &found.bytes);
    fill(x, rank, call);
    EXPECT(average(allreduce, number, call, x) == ONEBIT_SUCCESS);
    found.results = hash_of(found.results, x, vector_length);
  }
  EXPECT(onebit_allreduce_bytes_sent(allreduce, &sent) == ONEBIT_SUCCESS);
  found.bytes += sent;
  const struct residuals all = residuals_of(allreduce);
  found.residuals = hash_of(hash_of(no_hash, all.worker, all.worker_length), all.server, all.server_length);
  free_residuals(all);
  EXPECT(onebit_allreduce_destroy(allreduce) == ONEBIT_SUCCESS);
  return found;
}

static void run_case(int number, int rank) {
  const struct found by_mpi = run(number, rank, NULL);
  print_case(number, rank, by_mpi.results, by_mpi.residuals, by_mpi.bytes);
  if (is_of_mpi_alone(number)) return;
  const onebit_transport carrier = transport();
  const struct found by_caller = run(number, rank, &carrier);
  EXPECT(by_caller.results == by_mpi.results);
  EXPECT(by_caller.residuals == by_mpi.residuals);
  EXPECT(by_caller.bytes == by_mpi.bytes);
}

static void refuse_options(onebit_options options, const char* text) {
  onebit_allreduce* made = NULL;
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_WORLD, 8, &options, &made), text);
  EXPECT(made == NULL);
}

static void refuse_places(void) {
  size_t begins[2] = {0, 4};
  onebit_options options = ONEBIT_OPTIONS_DEFAULT;
  options.groups = 2;
  refuse_options(options, "group_begins is a null pointer");
  options.group_begins = begins;
  options.group = 32;
  refuse_options(options, "group and group_begins");
  options.group = 0;
  begins[1] = 8;
  refuse_options(options, "group_begins has 8 for a vector of 8");
  begins[1] = 0;
  refuse_options(options, "group_begins has 0 behind 0");
  options.groups = 0;
  options.chunk_borders = &begins[1];
  options.borders = 1;
  begins[1] = 4;
  refuse_options(options, "chunk_borders begins with 4");
}

/* A program that was compiled before there were tables, scales or grids gets none. */
static void take_options_of_earlier_headers(void) {
  const size_t sizes[] = {offsetof(onebit_options, group_begins), offsetof(onebit_options, scale),
                          offsetof(onebit_options, grid)};
  for (int i = 0; i < 3; ++i) {
    onebit_options options = ONEBIT_OPTIONS_DEFAULT;
    onebit_allreduce* made = NULL;
    options.size = sizes[i];
    memset((char*)&options + sizes[i], -1, sizeof options - sizes[i]); /* what lies behind the program's struct */
    EXPECT(onebit_allreduce_create(MPI_COMM_WORLD, 8, &options, &made) == ONEBIT_SUCCESS);
    EXPECT(onebit_allreduce_destroy(made) == ONEBIT_SUCCESS);
  }
}

static void refuse(void) {
  onebit_options options = ONEBIT_OPTIONS_DEFAULT;
  options.bits = 17;
  refuse_options(options, "17 bits");
  options.bits = 4;
  options.scale = "l2";
  refuse_options(options, "a grid has no scale 'l2'");
  options.bits = 1;
  options.scale = "L2";
  refuse_options(options, "no scale 'L2'");
  options.scale = NULL;
  options.group = 33;
  refuse_options(options, "multiple of 32");
  options.group = (size_t)-32;
  refuse_options(options, "a group of");
  options.group = 0;
  options.backend = "gpu";
  refuse_options(options, "no backend 'gpu'");
  options.backend = "";
  options.size = sizeof options + 8;
  refuse_options(options, "options.size is");
  options.size = 0; /* a struct without its size */
  refuse_options(options, "options.size is 0");
  refuse_places();

  onebit_allreduce* made = NULL;
  float x = 0;
  size_t length = 0;
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_WORLD, 0, NULL, &made), "length is 0");
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_WORLD, (size_t)-1, NULL, &made), "a length of");
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_NULL, 8, NULL, &made), "MPI_COMM_NULL");
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_WORLD, 8, NULL, NULL), "made is a null pointer");
  EXPECT_ERROR(onebit_allreduce_run(NULL, &x, 1), "allreduce is a null pointer");
  EXPECT_ERROR(onebit_allreduce_run_served(NULL, &x, serve, NULL), "allreduce is a null pointer");
  EXPECT_ERROR(onebit_allreduce_chunk(NULL, &length, &length), "allreduce is a null pointer");
  EXPECT_ERROR(onebit_allreduce_bytes_sent(NULL, NULL), "null pointer");
  EXPECT_ERROR(onebit_allreduce_residual_lengths(NULL, &length, &length), "allreduce is a null pointer");
  EXPECT_ERROR(onebit_allreduce_get_residuals(NULL, &x, &x), "allreduce is a null pointer");
  EXPECT_ERROR(onebit_allreduce_set_residuals(NULL, &x, &x), "allreduce is a null pointer");
  EXPECT(onebit_allreduce_destroy(NULL) == ONEBIT_SUCCESS);
}

static void refuse_transports(void) {
  onebit_allreduce* made = NULL;
  onebit_options options = ONEBIT_OPTIONS_DEFAULT;
  onebit_transport carrier = transport();
  EXPECT_ERROR(onebit_allreduce_create_with(NULL, 8, NULL, &made), "transport is a null pointer");
  carrier.size = 0;
  EXPECT_ERROR(onebit_allreduce_create_with(&carrier, 8, NULL, &made), "transport.size is 0");
  carrier = transport();
  carrier.rank = carrier.ranks;
  EXPECT_ERROR(onebit_allreduce_create_with(&carrier, 8, NULL, &made), "the transport has rank");
  carrier = transport();
  carrier.all_gather = NULL;
  EXPECT_ERROR(onebit_allreduce_create_with(&carrier, 8, NULL, &made), "lacks a function");
  carrier = transport();
  options.message_bytes = 256;
  EXPECT_ERROR(onebit_allreduce_create_with(&carrier, 8, &options, &made), "leave message_bytes and grid at 0");
  options.message_bytes = 0;
  options.grid = 1;
  EXPECT_ERROR(onebit_allreduce_create_with(&carrier, 8, &options, &made), "leave message_bytes and grid at 0");
  EXPECT(made == NULL);

  /* A function that fails; a rank alone sends nothing. */
  float x[8] = {1};
  EXPECT(onebit_allreduce_create_with(&carrier, 8, NULL, &made) == ONEBIT_SUCCESS);
  status_of_transport = 7;
  EXPECT(onebit_allreduce_run(made, x, 1) == (carrier.ranks == 1 ? ONEBIT_SUCCESS : ONEBIT_FAILED));
  EXPECT(carrier.ranks == 1 || strstr(onebit_last_error(), "all_to_all returned 7"));
  status_of_transport = 0;
  EXPECT(onebit_allreduce_destroy(made) == ONEBIT_SUCCESS);
}

/* One rank's NaN is every rank's error, until the residuals are set. */
static void refuse_vectors(int rank) {
  onebit_allreduce* allreduce = made_by(NULL, NULL);
  const struct residuals zeros = residuals_of(allreduce);
  float x[vector_length];
  fill(x, rank, 0);
  if (rank == 0) x[3] = (float)NAN;
  EXPECT_ERROR(onebit_allreduce_run(allreduce, x, 1), "the average is not finite");
  fill(x, rank, 0);
  EXPECT_ERROR(onebit_allreduce_run(allreduce, x, 1), "the average is not finite");
  EXPECT(onebit_allreduce_set_residuals(allreduce, zeros.worker, zeros.server) == ONEBIT_SUCCESS);
  fill(x, rank, 0);
  EXPECT(onebit_allreduce_run(allreduce, x, 1) == ONEBIT_SUCCESS);
  EXPECT_ERROR(onebit_allreduce_run(allreduce, x, (float)INFINITY), "the residual factor is not finite");
  for (size_t i = 0; i < vector_length; ++i) x[i] = 3e38f; /* finite, but 32 of them have no sum */
  EXPECT_ERROR(onebit_allreduce_run(allreduce, x, 1), "the average is not finite");
  free_residuals(zeros);
  EXPECT(onebit_allreduce_destroy(allreduce) == ONEBIT_SUCCESS);
}

static int failing_server(void* context, float* chunk, size_t first, size_t length) {
  (void)chunk, (void)first, (void)length;
  return *(const int*)context;
}

/* One rank's failure is every rank's error. */
static void refuse_servers(int rank) {
  for (int number = 0; number < 16; ++number) { /* each exchange, and signs and grids */
    onebit_options options = ONEBIT_OPTIONS_DEFAULT;
    options.bits = bits_of(number);
    options.message_bytes = message_bytes_of(number);
    options.grid = (size_t)grid_of(number);
    onebit_allreduce* allreduce = made_by(NULL, &options);
    float x[vector_length];
    int status = rank == 0 ? 7 : 0;
    fill(x, rank, 0);
    if (rank == 0)
      EXPECT_STATUS(ONEBIT_FAILED, onebit_allreduce_run_served(allreduce, x, failing_server, &status),
                    "server returned 7");
    else
      EXPECT_ERROR(onebit_allreduce_run_served(allreduce, x, failing_server, &status), "server of a rank failed");
    EXPECT_ERROR(onebit_allreduce_run_served(allreduce, x, NULL, NULL), "server is a null pointer");
    EXPECT(onebit_allreduce_destroy(allreduce) == ONEBIT_SUCCESS);
  }
}

/* A transport of the caller needs no MPI. */
static void run_without_mpi(void) {
  const onebit_transport alone = {sizeof alone, 0, 1, &status_of_transport, all_to_all, all_gather};
  onebit_allreduce* made = NULL;
  float x[2] = {3, -3}; /* of one magnitude, so that one scale loses nothing */
  EXPECT(onebit_allreduce_create_with(&alone, 2, NULL, &made) == ONEBIT_SUCCESS);
  EXPECT(onebit_allreduce_run(made, x, 1) == ONEBIT_SUCCESS);
  EXPECT(x[0] == 3 && x[1] == -3);
  EXPECT(onebit_allreduce_destroy(made) == ONEBIT_SUCCESS);
}

int main(int argc, char** argv) {
  onebit_allreduce* made = NULL;
  EXPECT(onebit_abi_version() == ONEBIT_ABI_VERSION);
  EXPECT(strcmp(onebit_last_error(), "") == 0);
  EXPECT_ERROR(onebit_allreduce_create(MPI_COMM_WORLD, 8, NULL, &made), "MPI has not been started");
  EXPECT_ERROR(onebit_check_launch(), "MPI has not been started");
  run_without_mpi();

  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  EXPECT(onebit_check_launch() == ONEBIT_SUCCESS);
  refuse();
  refuse_transports();
  refuse_vectors(rank);
  refuse_servers(rank);
  take_options_of_earlier_headers();
  for (int number = 0; number < cases; ++number) run_case(number, rank);
  EXPECT(onebit_allreduce_create(MPI_COMM_WORLD, 8, NULL, &made) == ONEBIT_SUCCESS);
  MPI_Finalize();
  EXPECT_ERROR(onebit_allreduce_destroy(made), "MPI has ended");
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
