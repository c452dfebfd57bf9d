#include <cstdio>
#include <onebit/compressed_allreduce.hpp>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    int rank = 0, calls = 1000;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    onebit::CompressedAllreduce allreduce(MPI_COMM_WORLD, 4);
    double sums[4] = {};
    for (int call = 0; call < calls; ++call) {
      float x[4] = {1.0f * rank, 2.0f, -3.0f * rank, 0.25f};
      allreduce(x);  // one bit an element, and what it loses is added to the next call's
      for (int j = 0; j < 4; ++j) sums[j] += x[j] / calls;
    }
    if (rank == 0) std::printf("average %.2f %.2f %.2f %.2f\n", sums[0], sums[1], sums[2], sums[3]);
  }  // before MPI_Finalize, because `allreduce` has a communicator
  MPI_Finalize();
}
