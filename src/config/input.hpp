#pragma once
/// \file input.hpp
/// The typed input of a run. `Input` holds the values; `keys` is the one place where each key is declared with its
/// type, default, allowed values and meaning, and the YAML reader, the resolved copy and docs/reference/input.md all
/// read it.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace onebit::config {

/// Values of the keys that take a word (docs/reference/input.md), here and below.
enum class Backend { serial, openmp, cuda };
enum class WorkloadKind { transformer, classification, quadratic, replay, synthetic };
enum class Architecture { bert, gpt };
enum class Pooling { position, mean };
enum class Precision { fp32, tf32, bf16 };
enum class Tokenizer { bytes, characters, sentencepiece };
enum class Decay { constant, exponential, linear, cosine, step };
enum class Criterion { two_sided, paper };
enum class Compressor { sign, sign_ternary, column, nbit };
enum class Scale { l1, l2 };
enum class Reconstruction { mean, range };
enum class Transport { automatic, host, device, nccl };
enum class Collective { flat, hierarchical, dense, automatic };
enum class Exchange { collective, pairwise };
enum class OnNonfinite { abort, skip };
enum class Fault { none, nan, desync, hang };

/// Host threads of a rank that Kokkos has room for: it keeps them in an array of this length, without a check.
inline constexpr int most_threads = 512;

/// A number, or one of the words that a key allows instead ("auto", "vector", …). `word` is empty for a number.
struct NumberOrWord {
  std::string word;
  std::int64_t number = 0;
};

/// Every value of an input, with its default. The meaning of each key stands in `keys` (input.cpp) and
/// docs/reference/input.md.
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
  } train;
  struct {
    std::string algorithm = "onebit_adam";
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double weight_decay = 0.0;
    bool bias_correction = false;
    int local_steps = 4;
    int variance_bits = 8;
    double clip = 0.0;
    OnNonfinite on_nonfinite = OnNonfinite::abort;
  } optimizer;
  struct {
    int warmup_steps = 0;
    Decay decay = Decay::constant;
    double rate = 0.99;
    int every = 520;
    double floor = 0.0;
  } schedule;
  struct {
    NumberOrWord step{"auto", 0};
    Criterion criterion = Criterion::two_sided;
    double threshold = 0.96;
    double at_most = 0.2;
    std::string from;
  } freeze;
  struct {
    Compressor compressor = Compressor::sign;
    Scale scale = Scale::l1;
    NumberOrWord group{"vector", 0};
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
    double coefficient_beta = 0.9;
    double factor_min = 0.5;
    double factor_max = 4.0;
    double factor_threshold = 0.1;
  } lamb;
  struct {
    int every = 0;
    std::string directory = "checkpoints";
    int keep = 2;
    bool background = false;
    std::string restart = "none";
    std::string initialize_from;
  } checkpoint;
  struct {
    Transport transport = Transport::automatic;
    Collective collective = Collective::flat;
    Exchange exchange = Exchange::collective;
    int message_bytes = 32768;
    int bucket_bytes = 25 << 20;
  } comm;
  struct {
    WorkloadKind kind = WorkloadKind::transformer;
    double compute_time_ms = 0.0;
    int parameters = 25000000;
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
    Pooling pooling = Pooling::position;
    double dropout = 0.1;
    double initializer_range = 0.02;
    Precision precision = Precision::fp32;
  } model;
  struct {
    std::vector<std::string> corpus{"corpus/kjv.txt"};
    Tokenizer tokenizer = Tokenizer::bytes;
    int vocabulary = 8192;
    std::string cache;
    double validation_fraction = 0.1;
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
  } bench;
  struct {
    double parameters = 25e6;
    int bytes_per_element = 4;
    std::vector<std::int64_t> ranks{8, 64, 256, 1024, 4096};
    int ranks_per_host = 8;
    std::vector<double> bandwidths_gbit_per_s{1, 10, 100};
    double line_rate_share = 0.9;
    double latency_us = 30;
    double message_overhead_us = 2;
    double burst_kbyte = 0;
    double inside_bandwidth_gbyte_per_s = 10;
    double inside_latency_us = 5;
    double memory_bandwidth_gbyte_per_s = 100;
    double forward_ms = 40;
    double backward_ms = 80;
    double update_ms = 10;
    int samples_per_rank = 16;
    int overlap_buckets = 0;
    std::vector<std::string> collectives{
        "ring",         "tree",       "rabenseifner",        "pairwise",
        "hierarchical", "compressed", "pairwise_compressed", "hierarchical_compressed"};
    std::vector<std::string> measurements;
    double measured_gbit_per_s = 0;
    int shared_cores = 0;
    int simulate_up_to = 64;
  } predict;
  struct {
    Fault kind = Fault::none;
    int rank = 1;
    int step = 10;
  } faults;

  /// "file:line:column" of each key that was given, by its dotted path.
  std::map<std::string, std::string> given;
  /// Name of the file that was read.
  std::string file = "input";

  /// Where to look for a key: its place in the file, or the file where it has its default.
  std::string where(const std::string& path) const;
};

/// What the reader hands to a key: one scalar, or a list of them, and its place.
struct RawValue {
  std::vector<std::string> items;
  bool is_list = false;
  std::string where;
};

/// One declared key, bound to its member of an Input.
struct Key {
  std::string section;
  std::string name;
  std::string type;     ///< "integer", "real", "boolean", "text", "word", a list of one of them, or "integer or word"
  std::string allowed;  ///< range or words, as people read it
  std::string meaning;
  std::function<void(const RawValue&)> parse;  ///< throws InputError
  std::function<std::string()> print;          ///< as YAML

  std::string path() const { return section + "." + name; }
};

/// A section of the input and what it is for.
struct Section {
  std::string name;
  std::string meaning;
  std::vector<Key> keys;
};

/// All sections and keys, bound to `input`.
std::vector<Section> keys(Input& input);

/// Fills the shape's keys that are 0 from `model.preset`.
void apply_preset(Input& input);

/// Reads YAML text, then `overrides` of the form "a.b=value", then fills what a model preset leaves to it.
/// \param name name of the file, for messages
/// \throws InputError with file, line, column, nearest known key and allowed values
Input parse(const std::string& text, const std::string& name, const std::vector<std::string>& overrides);

/// Refuses values that are each allowed but not together, or not with this number of ranks.
/// \throws InputError
void check(const Input& input, int ranks);

/// Refuses a section `predict` whose values are each allowed but not together.
/// \throws InputError
void check_prediction(const Input& input);

/// The complete input as YAML; what the user did not give is marked as a default.
std::string resolved(Input input);

/// "path (value, other value)" of each key that says what is computed and differs between two inputs: of all keys but
/// those of where a run takes place, how long it is, how its ranks exchange, and what it measures and writes.
std::vector<std::string> differences(Input one, Input other);

/// docs/reference/input.md.
std::string documentation();

/// Names of the algorithms that `optimizer.algorithm` allows.
const std::vector<std::string>& algorithm_names();
/// True for algorithms whose variance is frozen at T_w, so that the section `freeze` applies.
bool freezes(const std::string& algorithm);
/// True for algorithms whose parameters are linear in what they compress, each step's with the weight γ_t, so that
/// `compression.scale_residual_by_lr` applies.
bool scales_residual_by_lr(const std::string& algorithm);
/// The step at which section `freeze` freezes the variance at the latest, when no step is skipped: T_w, or for `auto`
/// max(W, min(⌈freeze.at_most · T⌉, T − 1)), at least 1. W is the learning rate's rise and T is `train.steps`.
std::int64_t latest_freeze(const Input& input);

/// The word of a value in the input.
std::string to_string(Backend backend);
std::string to_string(WorkloadKind kind);
std::string to_string(Collective collective);

}  // namespace onebit::config
