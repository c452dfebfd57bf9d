/// \file tables.cpp
/// The columns of the CSV files of a run, in their order.

#include "train/results/tables.hpp"

#include "train/results/results.hpp"

namespace onebit::train {

const CsvTable steps_table = {
    steps_file,
    "One row for each step. Times are rank 0's.",
    {
        {{"step"}, "", "t, from 1"},
        {{"phase"},
         "",
         "`dense` or `compressed`: the kind of this step's exchange. A step without an exchange counts as its "
         "algorithm's exchanges do: `dense` for `local_sgd`, `compressed` for `zero_one_adam` and for `diloco` with a "
         "compressor"},
        {{"loss"},
         "nats",
         "training loss of the step's batch before the update, mean over ranks (0 for `replay` and `synthetic`)"},
        {{"validation_loss"},
         "nats",
         "after the update, if the step validates; with `schedule.decay: averaging` of the mean of the parameters"},
        {{"validation_accuracy"},
         "",
         "fraction of this validation's predictions (tokens, or classes) whose right answer has the greatest logit; "
         "of the answers of workload `spans` that are exact; empty for workloads without right answers"},
        {{"validation_f1"},
         "",
         "mean F1 of this validation's answers: 2 · common tokens / (tokens of the answer + of the right one); empty "
         "for workloads other than `spans`"},
        {{"validation_distance"},
         "",
         "squared distance of this validation's generated images from those of the data "
         "([maximum mean discrepancy](../../guide/images.md#generate-images)); empty for workloads that generate "
         "none"},
        {{"lr"}, "", "learning rate γ_t"},
        {{"gradient_l2"}, "", "√((1/n) Σ_i ‖g_i‖₂²)"},
        {{"variance_l1"},
         "",
         "‖v_t‖₁; empty for algorithms without a variance; rank 0's own for `efficient_adam`, and for "
         "`adam_lazy_variance` before it is averaged"},
        {{"variance_ratio"},
         "",
         "r_t = ‖v_t‖₁ / ‖v_{t−Δ}‖₁; empty while t ≤ Δ, and if `variance_l1` is empty; 1 once the variance is frozen"},
        {{"worker_residual_l2"}, "", "‖δ‖₂ of rank 0; empty in dense and local steps"},
        {{"server_residual_l2"},
         "",
         "‖δ̄‖₂ of rank 0's chunk, and ‖ε‖₂ for `server_onebit_adam`; empty in dense and local steps"},
        {{"gradient_bits"},
         "bit",
         "with `model.quantization`: average bits of an element of the quantised gradients, 0 for pruned ones. Empty "
         "without quantised gradients. This column and the next two are rank 0's"},
        {{"pruned_share"}, "", "share of the groups of these gradients, rows and columns, that were pruned"},
        {{"quantizer_variance"},
         "",
         "E‖Q(G) − G‖² / ‖G‖², both summed over these gradients, by the [exact "
         "formula](../algorithms/onebit_layers.md#quantised-gradients); with `topk` it contains the square of the "
         "bias. Only in steps that validate or that `model.quantization.record_every` records"},
        {{"skipped"}, "", "1 if a non-finite gradient made all ranks skip the step"},
        {{"bytes_sent"}, "B", "of this step ([how bytes are counted](README.md#bytes))"},
        {{"step_s"}, "s", "whole step, without validation"},
        {{"forward_s", "backward_s"}, "s", "the workload's two passes"},
        {{"allreduce_s"},
         "s",
         "dense average of gradients, momentum, or parameters. With buckets during the backward pass "
         "(`comm.bucket_bytes`, `comm.compressed_bucket_bytes`), the time that the rank waits for them; compressed "
         "buckets then add nothing to the next four columns. With a compressed hierarchical average, the part inside "
         "the host"},
        {{"compress_s"}, "s", "local momentum, signs, scales and worker residual; the quantised variance too"},
        {{"all_to_all_s"},
         "s",
         "includes waiting for the slowest rank, as do `allreduce_s` and `all_gather_s`. With `comm.exchange: "
         "pairwise`, messages travel while the rank compresses or averages, and this is the remaining wait"},
        {{"average_s"}, "s", "the server's average, recompression and residual"},
        {{"all_gather_s"}, "s", "the exchange of the recompressed chunks, or of shards"},
        {{"update_s"}, "s", "decompression and update of the parameters; in dense steps momentum and variance too"},
        {{"check_s"},
         "s",
         "the run's own checks: the norm of the gradient and whether it is finite, the norms of the residuals. "
         "Without the part of the gradient's norm that buckets compute during the backward pass"},
        {{"agree_s"},
         "s",
         "the small message in which ranks agree on losses, norms and signals, including waiting for the slowest rank"},
        {{"allreduce_hidden_s"},
         "s",
         "of an average in buckets, dense or compressed: its time during the backward pass, including waiting for "
         "other ranks; it lies within `backward_s`"},
    },
    "A fence ends each phase. The columns from `forward_s` to `agree_s` add up to `step_s`, except for the little "
    "time between them."};

const CsvTable groups_table = {
    groups_file,
    "With `model.quantization.record_every: N`: one row for each gradient G that was quantised in the steps N, 2 N, … "
    "of rank 0, in the last round of `train.accumulation`. G has a row for each token, sample, or position of "
    "a convolution of that rank, and a column for each output of the layer. Its groups are its rows, those of an image "
    "together unless `model.quantization.group` is `position`, or its columns; `psq` quantises only rows.",
    {
        {{"step", "layer"}, "", "t; name of the dense layer or convolution"},
        {{"axis"},
         "",
         "what the groups are: `rows` for the gradient of the layer's input, `columns` for the gradient of its "
         "weights; for `psq` `rows` for both"},
        {{"bits"}, "", "b"},
        {{"groups", "kept"}, "", "number of groups, and of those that pruning kept"},
        {{"elements"}, "", "of a group"},
        {{"norm_squared"}, "", "‖G‖²"},
        {{"variance"},
         "",
         "E‖Q(G) − G‖² over the random numbers, by the [exact "
         "formula](../algorithms/onebit_layers.md#quantised-gradients); with `topk` it contains the square of the "
         "bias"},
        {{"paper_variance"},
         "",
         "Eq. 4 of the 1-bit FQT paper: D/(4 B²) Σ R_i² over the groups kept, of D elements each"},
        {{"drawn_error"}, "", "‖Q(G) − G‖² of the random numbers that this step drew"},
        {{"range_min", "range_p10", "range_p25", "range_p50", "range_p75", "range_p90", "range_p99", "range_max",
          "range_mean"},
         "",
         "least, percentiles, greatest and mean of the groups' ranges R = max − min, without groups that hold NaN or "
         "infinity. A percentile is the least range that at least so many per cent of the groups do not exceed"},
        {{"share_of_greatest"},
         "",
         "share of Σ R that the ⌊`groups` / b⌋ groups of greatest R have; 1/b if all are equal"},
    }};

const CsvTable profile_table = {
    "profile.csv",
    "One row for each `phase` and `measure`: the rows of the paper's Table 1, and the parts of its \"step\".",
    {
        {{"phase"},
         "",
         "`dense` or `compressed`: the steps in the average, by their exchange; skipped steps are in neither"},
        {{"measure"},
         "",
         "`forward`; `backward_allreduce` (dense exchange, except its hidden part); `backward_allreduce_hidden` (part "
         "of the next one); `backward_everything_else`; `step` (optimiser and compressed exchange) and its parts "
         "`step_compress`, `step_all_to_all`, `step_average`, `step_all_gather`, `step_update`; `check` and `agree` "
         "as in [steps.csv](steps.md); `total`; `communication` (allreduce + all-to-all + all-gather)"},
        {{"steps"}, "", "number of steps"},
        {{"min_s", "mean_s", "max_s"}, "s", "mean over the steps: least, mean and greatest over ranks"},
        {{"share_of_total"}, "", "for `communication`: the paper's \"allreduce %\" as a fraction"},
    }};

const CsvTable run_table = {
    "run.csv",
    "One row: what was run, and its results. A row of a run that restarted from a checkpoint counts the whole run, "
    "except in the columns of the build, `ranks`, `date`, `wall_s`, `host_joules`, `gpu_joules`, `compute_overruns` "
    "and "
    "`peak_memory_bytes`.",
    {
        {{"version", "git", "compiler"}, "", "of this build"},
        {{"kokkos", "backend"}, "", "its version; the execution space that computed"},
        {{"machine"},
         "",
         "the environment variable `ONEBIT_MACHINE`, or of rank 0 the GPU if it computed, the processor and the "
         "number of cores"},
        {{"date"}, "", "when this process began, in UTC (ISO 8601)"},
        {{"mpi"}, "", "library and version"},
        {{"transport"},
         "",
         "`host` (staged), `device` (pointers handed to MPI as they are; also on host backends) or `nccl`"},
        {{"collective", "collective_reason"},
         "",
         "`flat` or `hierarchical`, and with `compression.compressor: none` `dense` or `dense hierarchical`; the "
         "reason is the input, or what `comm.collective: auto` measured"},
        {{"dense_type"}, "", "`comm.dense_type`: how dense averages of gradients and momenta travel"},
        {{"device_mpi", "device_mpi_evidence"},
         "",
         "whether MPI takes the backend's memory, and how that was found out: the library's answer and, with "
         "transports `auto` and `device`, the result of exchanges of GPU buffers"},
        {{"network"},
         "",
         "the environment variable `ONEBIT_NETWORK`, which the [network laboratory](../../guide/network.md) sets"},
        {{"precision", "precision_reason"},
         "",
         "of the factors of products; the reason is the input, what `model.precision: auto` measured, or the "
         "checkpoint from which the run restarts"},
        {{"blas", "blas_core"}, "", "library and kernels of the host's matrix products"},
        {{"input", "workload", "algorithm", "seed"}, "", "what was run"},
        {{"ranks", "threads_per_rank"}, "", "threads of the host; 1 on a GPU"},
        {{"parameters", "steps", "batch"}, "", "d, T, samples of a step over all ranks"},
        {{"learning_rate"}, "", "`optimizer.lr`"},
        {{"slurm_job_id", "slurm_job_name"},
         "",
         "of the Slurm job that ran it last. All columns of Slurm are empty outside Slurm"},
        {{"slurm_array_job_id", "slurm_array_task_id"}, "", "of the job array, in a sweep"},
        {{"slurm_restarts"}, "", "how often the job was requeued before it ended"},
        {{"slurm_cluster", "slurm_partition", "slurm_account"}, "", "where it ran, and for whom"},
        {{"slurm_nodes", "slurm_nodelist"}, "", "number of nodes, and their names in Slurm's short form"},
        {{"slurm_tasks_per_node", "slurm_cpus_per_task"}, "", "as Slurm gave them"},
        {{"architecture", "layers", "hidden", "heads", "feed_forward", "positions", "vocabulary", "sequence"},
         "",
         "shape of the model, with the tokeniser's vocabulary; empty for workloads without a model"},
        {{"tokens_per_s"},
         "1/s",
         "figure of merit: tokens (samples of workloads without tokens) of all ranks in the steps that were "
         "taken, over the time of all steps; without the first step and validation"},
        {{"step_s"},
         "s",
         "the same time over the number of steps that were taken; if steps were skipped, it is not the mean of the "
         "column `step_s` of `steps.csv`"},
        {{"final_loss"}, "nats", "of the last step"},
        {{"first_loss", "end_loss"},
         "nats",
         "of the first step that was taken; the median of the last ones, for the [verdict](figures_of_merit.md)"},
        {{"final_validation_loss"}, "nats", "of the last validation"},
        {{"final_validation_accuracy", "final_validation_f1", "final_validation_distance"},
         "",
         "of the last validation"},
        {{"target_loss"}, "nats", "`train.target_loss`; empty without one"},
        {{"steps_to_target"},
         "",
         "steps up to the first validation with at most `target_loss`; empty if there was none. A multiple of "
         "`train.validate_every`"},
        {{"time_to_target_s"}, "s", "`training_s` up to there"},
        {{"bytes_to_target"}, "B", "`bytes_sent` up to there"},
        {{"variance_frozen_at_step"}, "", "T_w, the step that froze the variance; empty where none did"},
        {{"skipped_steps"}, "", "number of skipped steps"},
        {{"bytes_sent"},
         "B",
         "of the whole run ([how bytes are counted](README.md#bytes)). The next columns split it by phase and by "
         "collective"},
        {{"bytes_sent_dense_phase", "bytes_sent_compressed_phase"}, "B", "of steps that were taken"},
        {{"bytes_sent_allreduce", "bytes_sent_all_to_all", "bytes_sent_all_gather", "bytes_sent_reduce_scatter"},
         "B",
         "by collective"},
        {{"bytes_dense_fp32"}, "B", "volume of a dense fp32 allreduce in every step that was taken"},
        {{"reduction"}, "", "`bytes_dense_fp32` / `bytes_sent`; empty on one rank"},
        {{"reduction_vs_16bit"},
         "",
         "half of `reduction`: bytes of a dense 16-bit average in every step / `bytes_sent`"},
        {{"reduction_compressed_phase"}, "", "as `reduction`, over the compressed steps alone"},
        {{"training_s"}, "s", "all steps, without validation and checkpoints"},
        {{"bytes_within_host"},
         "B",
         "sent by rank 0 to ranks of its own host in hierarchical averages; not in `bytes_sent`"},
        {{"restarts"}, "", "how often the run restarted from a checkpoint"},
        {{"checkpoints"}, "", "how many were written"},
        {{"checkpoint_s"}, "s", "the time that the steps waited for them"},
        {{"hosts", "host_names"}, "", "number of hosts, and the names of the first eight"},
        {{"wall_s"},
         "s",
         "of this process, from the beginning of its set-up to this row: with validation and checkpoints"},
        {{"host_joules"},
         "J",
         "energy of the processors of all hosts in `wall_s`, and of their memory where it has a counter of its own "
         "(RAPL); with what else ran there. Empty if a host has no counter, or one that this user may not read"},
        {{"gpu_joules"},
         "J",
         "the same of all NVIDIA GPUs that computed, by NVML; whole ones, also where MIG divides them"},
        {{"bucket_bytes"},
         "B",
         "`comm.bucket_bytes` if gradients were averaged in buckets during the backward pass. 0 otherwise: off, one "
         "rank, a model of one bucket, or an MPI library that accepts calls from one thread only (without NCCL)"},
        {{"compressed_bucket_bytes"}, "B", "`comm.compressed_bucket_bytes`"},
        {{"compressed_overlap"},
         "",
         "when these buckets were averaged: `backward`, during the backward pass, or `none`, after it; a line at the "
         "start of the run gives the reason"},
        {{"compute_time_ms"}, "ms", "`workload.compute_time_ms`"},
        {{"compute_overruns"},
         "",
         "steps whose gradient took longer than that, on the rank with the most; a warning at the end of the run says "
         "so"},
        {{"parameters_hash"}, "", "hash of the final parameters' bits: equal for runs that ended in the same bits"},
        {{"optimizer_bytes_per_parameter"},
         "B",
         "of Views of the optimiser, its compressors and transports at the end of the run, over the parameters; "
         "maximum over ranks ([memory of a run](../../develop/performance/memory.md))"},
        {{"peak_view_bytes"}, "B", "peak of all Views together, in any memory; maximum over ranks"},
        {{"peak_memory_bytes"}, "B", "peak host memory of the process (Linux's VmHWM), maximum over ranks"},
        {{"predicted_dense_bytes", "predicted_compressed_bytes"},
         "B",
         "what the check at the start counts for a rank in each phase: vectors, messages, activations, and what MPI "
         "takes while it averages. Without what a process takes before it has a model"},
    }};

const std::vector<const CsvTable*> tables = {&steps_table, &groups_table, &profile_table, &run_table};

}  // namespace onebit::train
