#include <onebit/onebit.h>
#include <stdio.h>

static void check(int status) {
  if (status == ONEBIT_SUCCESS) return;
  fprintf(stderr, "%s\n", onebit_last_error());
  MPI_Abort(MPI_COMM_WORLD, status);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  const int calls = 1000;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  onebit_options options = ONEBIT_OPTIONS_DEFAULT;
  options.group = 32; /* elements that share a scale */
  onebit_allreduce* allreduce = NULL;
  check(onebit_allreduce_create(MPI_COMM_WORLD, 4, &options, &allreduce));
  double sums[4] = {0};
  for (int call = 0; call < calls; ++call) {
    float x[4] = {1.0f * rank, 2.0f, -3.0f * rank, 0.25f};
    check(onebit_allreduce_run(allreduce, x, 1));
    for (int j = 0; j < 4; ++j) sums[j] += x[j] / calls;
  }
  if (rank == 0) printf("average %.2f %.2f %.2f %.2f\n", sums[0], sums[1], sums[2], sums[3]);
  check(onebit_allreduce_destroy(allreduce)); /* before MPI_Finalize */
  MPI_Finalize();
}
