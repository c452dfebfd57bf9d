#pragma once
/// \file input.hpp
/// The typed input of a run. config/keys.cpp declares each key once, with its type, allowed values and meaning.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/choices.hpp"
#include "config/algorithms.hpp"

namespace onebit::config {

/// Most host threads of a rank: Kokkos keeps them in an array of this length and does not check it.
inline constexpr int most_threads = 512;

/// A number, or a word that a key allows in its place ("auto", "vector", …). `word` is empty for a number.
struct NumberOrWord {
  std::string word;
  std::int64_t number = 0;
};

/// Tensors by their names, and what their updates take in place of the run's numbers (`optimizer.groups`).
struct TensorGroup {
  std::string pattern;                 ///< for `matches` of base/names.hpp
  double lr_factor = 1;                ///< by which γ is multiplied
  std::optional<double> weight_decay;  ///< λ; the run's where it is not given
  std::string where;                   ///< "file:line:column"
};

/// Every value of an input, with its default.
struct Input {
  struct {
    Backend backend = Backend::openmp;
    int threads = 0;
    std::int64_t seed = 1;
    std::string output = "results/run";
    std::string dump_parameters;
    double progress_interval_s = 1.0;
    int check_replicas_every = 100;
    double watchdog_seconds = 600.0;
  } run;
  struct {
    int steps = 1000;
    int batch = 32;
    int accumulation = 1;
    int validate_every = 100;
    int validation_batch = 64;
    double target_loss = 0.0;
    double loss_at_most = 0.0;
  } train;
  struct {
    std::string algorithm = "onebit_adam";
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double weight_decay = 0.0;
    std::vector<TensorGroup> groups;
    bool bias_correction = false;
    int local_steps = 4;
    int variance_bits = 8;
    Vote vote = Vote::majority;
    double clip = 0.0;
    ClipNorm clip_norm = ClipNorm::this_step;
    OnNonfinite on_nonfinite = OnNonfinite::abort;
  } optimizer;
  struct {
    int warmup_steps = 0;
    Decay decay = Decay::constant;
    double rate = 0.99;
    int every = 520;
  } schedule;
  struct {
    NumberOrWord step{"auto", 0};
    double at_most = 0.2;
    std::string from;
  } freeze;
  struct {
    CompressorKind compressor = CompressorKind::sign;
    Scale scale = Scale::l1;
    NumberOrWord group{"auto", 0};
    int bits = 4;
    Reconstruction reconstruction = Reconstruction::mean;
    bool error_feedback = true;
    bool scale_residual_by_lr = false;
  } compression;
  struct {
    int variance_freeze_step = 300;
    int variance_update_scaler = 4;
    int local_step_scaler = 150;
    int local_step_clipper = 4;
  } zero_one;
  struct {
    double min_coefficient = 0.01;
    double max_coefficient = 10.0;
  } lamb;
  struct {
    double outer_lr = 0.7;
    double outer_momentum = 0.9;
    int fragments = 1;
  } diloco;
  struct {
    double lr_factor = 5.0;
    double table_beta1 = 0.6;
    int iterations = 5;
  } muon;
  struct {
    int every = 0;
    std::string directory = "checkpoints";
    int keep = 2;
    std::string restart = "none";
    std::string initialize_from;
  } checkpoint;
  struct {
    TransportKind transport = TransportKind::automatic;
    Collective collective = Collective::flat;
    ExchangeKind exchange = ExchangeKind::collective;
    int message_bytes = 32768;
    int bucket_bytes = 25 << 20;
    int compressed_bucket_bytes = 0;
    DenseType dense_type = DenseType::fp32;
  } comm;
  struct {
    WorkloadKind kind = WorkloadKind::transformer;
    double compute_time_ms = 0.0;
    NumberOrWord parameters{"", 25000000};
  } workload;
  struct {
    Architecture architecture = Architecture::bert;
    std::string preset = "tiny";
    int layers = 0;
    int hidden = 0;
    int heads = 0;
    int feed_forward = 0;
    int positions = 0;
    int vocabulary = 0;
    int sequence = 64;
    int second_text = 0;
    Pooling pooling = Pooling::position;
    double dropout = 0.1;
    double initializer_range = 0.02;
    Precision precision = Precision::fp32;
    struct {
      QuantizationKind kind = QuantizationKind::none;
      int layer_bits = 1;
      int bits = 4;
      Pruning pruning = Pruning::systematic;
      int gradients_after = 0;
      std::vector<std::string> exclude;
      RowGroup group = RowGroup::image;
      int record_every = 0;
    } quantization;
  } model;
  struct {
    Network network = Network::resnet18;
    int width = 64;
    int norm_samples = 16;
    std::vector<std::string> training;
    std::vector<std::string> validation;
    Augment augment = Augment::crop_flip;
  } images;
  struct {
    std::vector<std::string> corpus{"corpus/kjv.txt"};
    TokenizerKind tokenizer = TokenizerKind::bytes;
    int vocabulary = 8192;
    std::string cache;
    std::string labelled;
    std::string labelled_validation;
  } data;
  struct {
    int dimension = 1000;
    double condition = 100.0;
    double noise = 1.0;
  } quadratic;
  struct {
    std::string file;
  } replay;
  struct {
    std::vector<std::string> collectives{"mpi_allreduce", "pairwise_allreduce", "mpi_compressed",
                                         "pairwise_compressed"};
    int smallest = 1024;
    int largest = 1 << 22;
    int factor = 4;
    int warmup = 2;
    int repetitions = 10;
    std::vector<std::string> layers{"vgg16", "resnet18", "bert_base"};
    std::vector<std::int64_t> pixels{32, 64, 128, 224};
    int batch = 64;
  } bench;
  struct {
    Fault kind = Fault::none;
    int rank = 1;
    int step = 10;
  } faults;

  /// "file:line:column" of each key that was given, by its path "section.key".
  std::map<std::string, std::string> given;
  /// Name of the file that was read.
  std::string file = "input";

  /// The place of a key for a message: where it was given, or the file and that it has its default.
  std::string where(const std::string& path) const;
};

/// Whether a run validates after step t ≥ 1.
inline bool validates(const decltype(Input::train)& train, std::int64_t step) {
  return step == train.steps || (train.validate_every > 0 && step % train.validate_every == 0);
}

/// Reads YAML text, then `overrides` of the form "section.key=value", then fills in the model's preset.
/// \param name name of the file, for messages
/// \throws InputError with file, line, column, nearest known key and allowed values
Input parse(const std::string& text, const std::string& name, const std::vector<std::string>& overrides);

/// Refuses values that are allowed each by itself but not together, or not with this number of ranks.
/// \throws InputError
void check(const Input& input, int ranks);

/// The complete input as YAML, in which defaults are marked.
std::string resolved(Input input);

/// "path (value, other value)" of each key in which two inputs compute something else. Keys of where a run takes place,
/// how long it is, how its ranks exchange, and what it measures and writes are left out.
std::vector<std::string> differences(Input one, Input other);

/// docs/reference/input.md.
std::string documentation();

/// The last step at which section `freeze` may freeze the variance when no step is skipped: T_w, or for `auto`
/// max(W, min(⌈freeze.at_most · T⌉, T − 1)), at least 1, with W = `schedule.warmup_steps` and T = `train.steps`.
std::int64_t latest_freeze(const Input& input);

/// `compression.group`, in which `auto` is replaced by what it stands for.
NumberOrWord scale_group(const Input& input);

}  // namespace onebit::config
