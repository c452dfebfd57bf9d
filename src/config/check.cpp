/// \file check.cpp
/// Refuses values that are allowed each by itself but not together.

#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/names.hpp"
#include "config/checks.hpp"
#include "config/keys.hpp"

namespace onebit::config {
namespace {

using std::to_string;

/// \param path of the key to change
[[noreturn]] void refuse(const Input& in, const std::string& path, const std::string& what, const std::string& remedy) {
  throw InputError(in.where(path), what, remedy);
}

void check_steps(const Input& in, int ranks) {
  const std::int64_t divisor = std::int64_t{ranks} * in.train.accumulation;
  // Gradients of a file have no samples.
  if (in.workload.kind != WorkloadKind::replay && in.train.batch % divisor != 0)
    refuse(in, "train.batch",
           "train.batch is " + to_string(in.train.batch) + ", which is not a multiple of " + to_string(ranks) +
               " ranks × " + to_string(in.train.accumulation) + " accumulation rounds",
           "set train.batch to a multiple of " + to_string(divisor) + ", or change the number of ranks");
  const std::string steps = "train.steps (" + to_string(in.train.steps) + ")";
  if (in.schedule.warmup_steps > in.train.steps)
    refuse(in, "schedule.warmup_steps", "the learning rate's warm-up is longer than the run",
           "lower schedule.warmup_steps to at most " + steps);
  // A run of one step is a trial. It compresses nothing, whatever T_w is.
  if (traits(in.optimizer.algorithm).freezes() && in.train.steps > 1 && latest_freeze(in) >= in.train.steps) {
    const bool is_auto = !in.freeze.step.word.empty();
    const std::string key = is_auto ? "schedule.warmup_steps" : "freeze.step";
    refuse(in, key,
           is_auto ? "freeze.step is auto, which freezes the variance when the learning rate's warm-up has ended: no "
                     "step would be compressed"
                   : "the variance would not be frozen before the run's last step: no step would be compressed",
           "lower " + key + " to less than " + steps + ", raise train.steps, or use algorithm adam");
  }
}

void check_algorithm(const Input& in) {
  const AlgorithmTraits& algorithm = traits(in.optimizer.algorithm);
  if (in.lamb.min_coefficient > in.lamb.max_coefficient)
    refuse(in, "lamb.min_coefficient", "lamb.min_coefficient is greater than lamb.max_coefficient", "swap the two");
  const bool skips_adam = algorithm.freezes() && in.freeze.step.word.empty() && in.freeze.step.number == 0;
  if (skips_adam && !algorithm.has(starts_from_variance))
    refuse(in, "freeze.step", "1-bit LAMB learns its tensors' learning rates before T_w, and freeze.step is 0",
           "give at least a step, better several tens of them");
  // A restart from a file has the variance of its run.
  const bool restarts = in.checkpoint.restart != "none" && in.checkpoint.restart != "auto";
  if (skips_adam && in.freeze.from.empty() && !restarts)
    refuse(in, "freeze.step",
           "freeze.step is 0 and freeze.from names no variance: it would stay 0, and no element would move",
           "set freeze.from to a checkpoint of an earlier run of this model, or freeze.step to 1 or more, or auto");
  if (!in.freeze.from.empty() && !algorithm.has(starts_from_variance))
    refuse(in, "freeze.from", "algorithm " + in.optimizer.algorithm + " does not start from a variance",
           "leave out freeze.from, or use algorithm onebit_adam");
  if (in.optimizer.bias_correction && algorithm.variance == Variance::none)
    refuse(in, "optimizer.bias_correction", "algorithm " + in.optimizer.algorithm + " has no bias correction",
           "leave out optimizer.bias_correction, or use an algorithm with a variance");
}

void check_shards(const Input& in) {
  const AlgorithmTraits& of = traits(in.optimizer.algorithm);
  const std::string algorithm = "algorithm " + in.optimizer.algorithm;
  if (in.comm.collective == Collective::hierarchical && of.is_flat())
    refuse(in, "comm.collective", algorithm + " divides its state among all ranks, which is a flat exchange",
           "set comm.collective to flat or auto, or use adam or onebit_adam");
  if (of.has(shards_state) && in.comm.dense_type != DenseType::fp32)
    refuse(in, "comm.dense_type", algorithm + " averages gradients in fp32 only",
           "set comm.dense_type to fp32, or use adam or onebit_adam");
}

void check_averages(const Input& in) {
  if (in.compression.scale_residual_by_lr) {
    if (!traits(in.optimizer.algorithm).has(scales_residual_by_lr))
      refuse(in, "compression.scale_residual_by_lr",
             "residuals of algorithm " + in.optimizer.algorithm +
                 " do not cancel when they are multiplied by a quotient of learning rates",
             "leave it out, or use one of the algorithms " + joined(algorithm_names(scales_residual_by_lr)));
    if (!in.compression.error_feedback)
      refuse(in, "compression.scale_residual_by_lr", "without error feedback there are no residuals to multiply",
             "leave it out, or set compression.error_feedback to true");
  }
  if (in.comm.compressed_bucket_bytes > 0) {
    if (!traits(in.optimizer.algorithm).has(has_buckets))
      refuse(in, "comm.compressed_bucket_bytes",
             "algorithm " + in.optimizer.algorithm + " does not average its momentum in buckets",
             "leave it out, or use one of the algorithms " + joined(algorithm_names(has_buckets)));
    if (in.comm.collective != Collective::flat)
      refuse(in, "comm.compressed_bucket_bytes",
             "compressed buckets are averaged among all ranks, and comm.collective is " +
                 onebit::to_string(in.comm.collective),
             "leave it out, or set comm.collective to flat");
    if (in.compression.compressor == CompressorKind::none)
      refuse(in, "comm.compressed_bucket_bytes", "compression.compressor is none, so nothing is compressed",
             "leave it out: comm.bucket_bytes are the buckets of dense averages");
  }
  check_shards(in);
  if (in.comm.transport == TransportKind::nccl && !is_gpu(in.run.backend))
    refuse(in, "comm.transport",
           "NCCL exchanges the memory of GPUs, and backend " + onebit::to_string(in.run.backend) + " has none",
           "set run.backend to cuda or hip, or use transport auto, host or device");
}

void check_quantization(const Input& in) {
  const auto& quantization = in.model.quantization;
  const int b = quantization.bits;
  if (b != 1 && b != 2 && b != 4 && b != 8)
    refuse(in, "model.quantization.bits", "gradients of " + to_string(b) + " bits are not implemented",
           "choose 1, 2, 4 or 8");
  if (quantization.layer_bits != 1 && quantization.layer_bits != 8)
    refuse(in, "model.quantization.layer_bits",
           "weights and activations of " + to_string(quantization.layer_bits) + " bits are not implemented",
           "choose 1 or 8");
  const bool multiplies_bits = quantization.kind == QuantizationKind::scq || quantization.kind == QuantizationKind::fqt;
  if (quantization.layer_bits == 8 && multiplies_bits)
    refuse(in, "model.quantization.layer_bits",
           "kind " + onebit::to_string(quantization.kind) + " multiplies by signs, and layers of 8 bits have none",
           "choose kind qat or psq, or layer_bits 1");
  const bool has_convolutions = in.workload.kind == WorkloadKind::images && quantization.kind != QuantizationKind::none;
  if (quantization.layer_bits == 8 && has_convolutions)
    refuse(in, "model.quantization.layer_bits", "convolutions of 8 bits are not implemented",
           "choose layer_bits 1, or kind none");
}

void check_images(const Input& in, int ranks) {
  if (in.schedule.decay == Decay::averaging && has_batch_norms(in))
    refuse(in, "schedule.decay",
           "the running statistics of batch normalisations are those of the last parameters, not of their mean",
           "choose another decay, or a network without batch normalisation: images.network mixer");
  for (const auto& [path, files] : {std::make_pair("images.training", &in.images.training),
                                    std::make_pair("images.validation", &in.images.validation)})
    if (files->empty())
      refuse(
          in, path,
          "workload " + onebit::to_string(in.workload.kind) + " needs images to train on and others to validate with",
          std::string("set ") + path + " to files of IDX or CIFAR-10's binary format");
  const int samples = in.train.batch / (ranks * in.train.accumulation);
  if (has_batch_norms(in) && samples % in.images.norm_samples != 0)
    refuse(in, "images.norm_samples",
           "a batch normalisation takes " + to_string(in.images.norm_samples) + " samples together, and a round of a " +
               "rank has " + to_string(samples),
           "choose a divisor of " + to_string(samples));
}

void check_workload(const Input& in, int ranks) {
  const WorkloadKind kind = in.workload.kind;
  const QuantizationKind quantization =
      has_quantizable_layers(in) ? in.model.quantization.kind : QuantizationKind::none;
  if (in.model.quantization.record_every > 0 &&
      (quantization == QuantizationKind::none || quantization == QuantizationKind::qat))
    refuse(in, "model.quantization.record_every", "this run quantises no gradient that could be recorded",
           "train a transformer or a network of images with model.quantization.kind psq, scq or fqt, or set "
           "model.quantization.record_every to 0");
  if (in.train.loss_at_most > 0 && (kind == WorkloadKind::replay || kind == WorkloadKind::synthetic))
    refuse(in, "train.loss_at_most", "workload " + onebit::to_string(kind) + " has no validation loss",
           "leave it out, or train another workload");
  if (kind == WorkloadKind::replay && in.replay.file.empty())
    refuse(in, "replay.file", "workload replay needs a file of gradients", "set replay.file to an HDF5 file");
  if (has_labelled_texts(in))
    for (const auto& [path, file] : {std::make_pair("data.labelled", &in.data.labelled),
                                     std::make_pair("data.labelled_validation", &in.data.labelled_validation)})
      if (file->empty())
        refuse(in, path,
               "workload " + onebit::to_string(kind) + " needs labelled texts to train on and others to validate with",
               std::string("set ") + path + " to a file of which each line is a label, a tab and a text");
  if (has_images(in)) check_images(in, ranks);
  if (has_quantizable_layers(in)) check_quantization(in);
  if (!has_model(in)) return;
  if (in.model.hidden % in.model.heads != 0)
    refuse(in, "model.heads",
           to_string(in.model.heads) + " heads do not divide hidden width " + to_string(in.model.hidden),
           "choose model.heads so that it divides model.hidden");
  if (in.model.sequence > in.model.positions)
    refuse(in, "model.sequence",
           "a sample of " + to_string(in.model.sequence) + " tokens has more than " + to_string(in.model.positions) +
               " positions",
           "lower model.sequence or raise model.positions");
  if (kind == WorkloadKind::spans && in.model.architecture != Architecture::bert)
    refuse(in, "model.architecture", "a causal model cannot read what is behind a span's first token",
           "set it to bert, or train another workload");
  if (kind == WorkloadKind::spans && in.model.second_text == 0)
    refuse(in, "model.second_text", "workload spans has two texts: what is asked, and what has the answer",
           "set the position at which the second one begins");
  // The first text of a labelled sample has a mark in front of it.
  if (in.model.second_text >= in.model.sequence ||
      (in.model.second_text == 1 && has_labelled_texts(in) && in.model.architecture == Architecture::bert))
    refuse(in, "model.second_text",
           "a second text at position " + to_string(in.model.second_text) + " of " + to_string(in.model.sequence) +
               " leaves one of the two no token",
           "let it begin in the middle, or set 0 for one text");
}

}  // namespace

void check(const Input& in, int ranks) {
  check_steps(in, ranks);
  check_algorithm(in);
  check_averages(in);
  check_bench(in);
  if (in.faults.kind != Fault::none && in.faults.rank >= ranks)
    refuse(in, "faults.rank", "the run has no rank " + to_string(in.faults.rank) + " that could fail",
           "give one below " + to_string(ranks));
  if (in.faults.step == 0 && (in.faults.kind == Fault::nan || in.faults.kind == Fault::desync))
    refuse(in, "faults.step", "there is no step 0 whose gradient or parameters could be wrong",
           "give 1 or more, or kind hang");
  if (in.checkpoint.directory.empty())
    refuse(in, "checkpoint.directory", "checkpoint.directory is empty", "name a directory, or leave it out");
  if (in.checkpoint.restart.empty())
    refuse(in, "checkpoint.restart", "checkpoint.restart is empty", "give none, auto or a file");
  check_workload(in, ranks);
}

void check_output(const Input& in) {
  if (in.run.output.empty()) refuse(in, "run.output", "run.output is empty", "name a directory");
}

void check_bench(const Input& in) {
  check_output(in);
  if (in.bench.smallest > in.bench.largest)
    refuse(in, in.given.count("bench.smallest") > 0 ? "bench.smallest" : "bench.largest",
           "bench.smallest (" + to_string(in.bench.smallest) + ") is greater than bench.largest (" +
               to_string(in.bench.largest) + "): no length would be measured",
           "lower bench.smallest, or raise bench.largest");
}

}  // namespace onebit::config
