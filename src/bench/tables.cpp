/// \file tables.cpp
/// The columns of the CSV files of the benchmarks, in their order.

#include "bench/tables.hpp"

namespace onebit::bench {

const CsvTable collective_table = {
    "collective.csv",
    "`onebit bench collective` writes one row for each average and vector length. It compares every element of the "
    "result with its reference implementation before it measures; a wrong result ends the run.",
    {
        {{"collective"}, "", "an entry of `bench.collectives`"},
        {{"parameters"}, "", "elements d of the vector"},
        {{"logical_bytes"}, "B", "4 d"},
        {{"wire_bytes"},
         "B",
         "sent by a rank in one call, the maximum over ranks; for `hierarchical_…` to other hosts"},
        {{"ranks", "hosts"}, "", "of the run"},
        {{"repetitions"}, "", "timed calls"},
        {{"wrong"}, "", "elements, over all ranks, that differ from the reference implementation"},
        {{"min_s", "p50_s", "mean_s", "max_s", "p99_s"},
         "s",
         "least, median, mean, greatest and 99th percentile over the repetitions. All ranks begin a repetition "
         "together. Its time is the slowest rank's, because an average is finished when the last rank has it"},
        {{"avg_latency_s", "min_latency_s", "max_latency_s"},
         "s",
         "of each rank's mean time over the repetitions: mean, least and greatest over the ranks"},
        {{"algbw_B_per_s"}, "B/s", "logical bytes / median time"},
        {{"busbw_B_per_s"}, "B/s", "`algbw_B_per_s` · 2 (n−1)/n"},
        {{"busbw_wire_B_per_s"}, "B/s", "wire bytes / median time"},
        {{"allreduce_s", "compress_s", "all_to_all_s", "average_s", "all_gather_s", "decompress_s"},
         "s",
         "mean time of each phase of a call, slowest rank; 0 for phases that a collective lacks. `mpi_compressed` "
         "runs them one after the other. In `pairwise_…` and `hierarchical_…` messages travel during the computation, "
         "and `all_to_all_s` and `all_gather_s` are the remaining wait"},
        {{"network", "git"}, "", "as in [run.csv](run.md)"},
    },
    "Other benchmarks of collectives have other names:\n"
    "\n"
    "| there | here |\n"
    "|---|---|\n"
    "| nccl-tests `size`, `count` | `logical_bytes`, `parameters`; the type is float, the operation an average |\n"
    "| nccl-tests `time` | `avg_latency_s`; the columns of section *out-of-place* have no counterpart |\n"
    "| nccl-tests `algbw`, `busbw` | `algbw_B_per_s`, `busbw_B_per_s`: the same formulas, here with the median of the "
    "slowest rank's times |\n"
    "| nccl-tests `#wrong` | `wrong` |\n"
    "| OSU `Size`, `Iterations` | `logical_bytes`, `repetitions` |\n"
    "| OSU `Avg Latency`, `Min Latency`, `Max Latency` | `avg_latency_s`, `min_latency_s`, `max_latency_s`, in "
    "seconds instead of µs |"};

const CsvTable repetitions_table = {
    "repetitions.csv",
    "`onebit bench collective` writes one row for each timed call. They show stragglers.",
    {
        {{"collective", "parameters", "logical_bytes", "ranks", "hosts"}, "", "as in [collective.csv](collective.md)"},
        {{"repetition"}, "", "from 1, without `bench.warmup`"},
        {{"slowest_s"}, "s", "the slowest rank's time, from which the times of `collective.csv` come"},
        {{"slowest_rank"}, "", "this rank; the lowest if several took so long"},
        {{"least_s", "mean_s"}, "s", "over the ranks"},
        {{"network", "git"}, "", "as in [run.csv](run.md)"},
    }};

const CsvTable kernels_table = {
    "kernels.csv",
    "`onebit bench kernels` writes one row for each kernel and shape ([performance](../../develop/performance.md)). "
    "It compares the result with the kernel's reference implementation before it measures; a wrong result ends the "
    "run.",
    {
        {{"kernel", "shape"}, "", "name; parameters d, senders × elements, or rows × columns × terms of a product"},
        {{"precision"}, "", "of the factors in its products: `fp32`, or the model's precision if it rounds them"},
        {{"backend", "ranks", "threads_per_rank"}, "", "of the run; all ranks measure at once"},
        {{"bytes"},
         "B",
         "the least that any implementation must move ([counts](../../develop/performance/kernels.md))"},
        {{"flop"}, "", "the least that any implementation must compute"},
        {{"arithmetic_intensity"}, "1/B", "`flop` / `bytes`; empty for `fma`, which moves nothing"},
        {{"checked", "wrong"},
         "",
         "elements, over all ranks, that were compared with the reference, and those that differ"},
        {{"repetitions"}, "", "timed runs"},
        {{"median_s", "min_s", "max_s"}, "s", "over the repetitions, of the slowest rank's time"},
        {{"bound"}, "", "`memory` or `compute`: the side of the roofline on which the intensity lies"},
        {{"fraction_of_roofline"},
         "",
         "`flop` / `median_s` over min(`peak_FLOP_per_s`, `arithmetic_intensity` · `bandwidth_B_per_s`); for `copy` "
         "`bytes` / `median_s` over `bandwidth_B_per_s`"},
        {{"bandwidth_B_per_s"}, "B/s", "of a rank: median of `triad`, measured before each repetition"},
        {{"peak_FLOP_per_s"},
         "1/s",
         "of a rank: median of the faster of `fma` and `gemm` (`gemm_tf32` or `gemm_bf16` if factors are rounded), "
         "measured before each repetition; empty until one of them was measured"},
        {{"blas", "blas_core", "git", "machine"}, "", "as in [run.csv](run.md)"},
    }};

const CsvTable layers_table = {
    "layers.csv",
    "`onebit bench layers` writes one row for each kernel of each layer "
    "([performance](../../develop/performance.md#1-bit-layers)). It compares the results with reference "
    "implementations before it measures; a wrong result ends the run.",
    {
        {{"network", "pixels"}, "", "an entry of `bench.layers`, and the width of its square images; 0 without images"},
        {{"batch"}, "", "samples"},
        {{"layer", "count"}, "", "name of the first layer of this shape, and how many the network has"},
        {{"rows"}, "", "of the layer: its output pixels or tokens, over the batch"},
        {{"measured_rows"},
         "",
         "at most `bench.most_rows`. The time of the layer is about `rows` / `measured_rows` times the measured one"},
        {{"inputs", "outputs"}, "", "K, for a convolution its input channels times the pixels of its kernel; D"},
        {{"kernel"}, "", "`fqt_layer`, `scq_layer`, `fp32_layer`, `bf16_layer` or `int8_layer`"},
        {{"shape"}, "", "`measured_rows` × `inputs` × `outputs`"},
        {{"backend", "ranks", "threads_per_rank"}, "", "of the run; all ranks measure at once"},
        {{"flop"}, "", "of the three products: 6 · `measured_rows` · `inputs` · `outputs`"},
        {{"checked", "wrong"},
         "",
         "elements, over all ranks, that were compared with the reference, and those that differ"},
        {{"repetitions"}, "", "timed runs"},
        {{"median_s", "min_s", "max_s"}, "s", "over the repetitions, of the slowest rank's time"},
        {{"blas", "blas_core", "git", "machine"}, "", "as in [run.csv](run.md)"},
    }};

const CsvTable passes_table = {
    "passes.csv",
    "`onebit bench layers` runs each kernel once more and times its passes, the kernels of Kokkos, with a fence after "
    "each. Here one kernel runs several times in a row, so more of its data stays in the caches than in `layers.csv`, "
    "where the kernels of a layer take turns.",
    {
        {{"network", "pixels", "batch", "layer", "count", "rows", "measured_rows", "inputs", "outputs", "kernel"},
         "",
         "as in [layers.csv](layers.md)"},
        {{"region"}, "", "the profiling region around the pass, which names a part of the layer; empty without one"},
        {{"pass"},
         "",
         "label of the Kokkos kernel, without `OneBit::`. A pass that runs several times in a region is one row"},
        {{"median_s"}, "s", "over the repetitions, of the slowest rank's time"},
        {{"share"}, "", "of the times of all passes of this kernel"},
        {{"backend", "ranks", "threads_per_rank", "repetitions"}, "", "as in [layers.csv](layers.md)"},
        {{"git", "machine"}, "", "as in [run.csv](run.md)"},
    }};

const std::vector<const CsvTable*> tables = {&collective_table, &repetitions_table, &kernels_table, &layers_table,
                                             &passes_table};

}  // namespace onebit::bench
