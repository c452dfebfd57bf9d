/// \file keys.cpp
/// The table of keys, and the shapes of models by name.

#include "config/keys.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <type_traits>

#include "base/error.hpp"
#include "base/names.hpp"
#include "config/published_models.hpp"

namespace onebit::config {
namespace {

/// Shapes by name; head counts and feed-forward widths as in Devlin et al. 2019 for base and large.
struct Preset {
  const char* name;
  int layers, hidden, heads, feed_forward, positions;
};
constexpr Preset presets[] = {{"tiny", 2, 64, 2, 256, 128},
                              {"small", 4, 256, 4, 1024, 512},
                              {"base", 12, 768, 12, 3072, 512},
                              {"large", 24, 1024, 16, 4096, 512}};

/// Refuses maps where a key has single values.
void refuse_maps(const RawValue& raw, const std::string& path) {
  if (raw.maps.empty()) return;
  if (!raw.is_list)
    throw InputError(raw.where, path + " is a map, but it is a key with one value", "give its value behind the colon");
  throw InputError(raw.where, path + " holds something that is not a single value", "give a list of single values");
}

/// Takes the entries of a map. \param keys of the map, bound to where the values go \param path of the map
void parse_map(const RawMap& map, const std::vector<Key>& keys, const std::string& path) {
  std::vector<std::string> known;
  for (const Key& key : keys) known.push_back(key.name);
  std::set<std::string> given;
  for (const RawEntry& entry : map.entries) {
    const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == entry.name; });
    if (found == keys.end())
      throw InputError(entry.where, "unknown key '" + excerpt(entry.name) + "' in a map of " + path,
                       remedy_for_unknown(meant(entry.name, known), known));
    if (!given.insert(entry.name).second)
      throw InputError(entry.where, "key '" + found->path() + "' is given twice in a map", "remove one of them");
    if (!entry.is_scalar)
      throw InputError(entry.where, found->path() + " is not a single value", "give its value behind the colon");
    found->parse({{entry.text}, {}, false, entry.where});
  }
  if (given.count(known.front()) == 0)
    throw InputError(map.where, "a map of " + path + " has no key '" + known.front() + "'", "give it");
}

/// "{name: value, …}" of the keys that are given.
std::string print_map(const std::vector<Key>& keys) {
  std::vector<std::string> all;
  for (const Key& key : keys)
    if (const std::string value = key.print(); !value.empty()) all.push_back(key.name + ": " + value);
  return "{" + joined(all) + "}";
}

/// Collects sections and their keys.
class Declare {
public:
  const std::vector<Section>& sections() const { return m_sections; }

  void section(const std::string& name, const std::string& meaning) { m_sections.push_back({name, meaning, {}}); }

  /// A key with one value.
  template <class Value, class T>
  void operator()(const std::string& name, Value& value, const Type<T>& type, const std::string& meaning) {
    const auto parse = [&value, type, path = path(name)](const RawValue& raw) {
      if (!raw.is_list) refuse_maps(raw, path);
      if (raw.is_list)
        throw InputError(raw.where, path + " is a list, but one value is wanted",
                         "give one " + (type.name == "real" ? "number" : type.name));
      value = static_cast<Value>(type.read({raw.items.front(), raw.where, path}));
    };
    const auto print = [&value, type] {
      if constexpr (std::is_same_v<Value, std::optional<T>>)
        return value ? type.print(*value) : std::string();
      else
        return type.print(value);
    };
    add(name, type.name, type.allowed, meaning, parse, print);
  }
  template <class Value>
  void operator()(const std::string& name, Value& value, const std::string& meaning) {
    (*this)(name, value, type_of(value), meaning);
  }

  /// A key with a list of values; one value counts as a list of it.
  template <class T>
  void operator()(const std::string& name, std::vector<T>& value, const Type<T>& type, const std::string& meaning,
                  bool may_be_empty = false) {
    const auto parse = [&value, type, may_be_empty, path = path(name)](const RawValue& raw) {
      refuse_maps(raw, path);
      if (raw.items.empty() && !may_be_empty)
        throw InputError(raw.where, path + " is an empty list", "name at least one");
      if constexpr (!std::is_same_v<T, std::string>)
        if (!raw.is_list && raw.items.front().find(',') != std::string::npos)
          throw InputError(raw.where, path + " is '" + excerpt(raw.items.front()) + "', which is no list",
                           "write [" + excerpt(raw.items.front()) + "]");
      std::vector<T> read;
      for (const std::string& text : raw.items) {
        if (text.empty()) throw InputError(raw.where, path + " holds an empty text", "leave it out");
        read.push_back(type.read({text, raw.where, path}));
      }
      value = read;
    };
    const auto print = [&value, type] {
      std::vector<std::string> all;
      std::transform(value.begin(), value.end(), std::back_inserter(all), type.print);
      return "[" + joined(all) + "]";
    };
    const bool is_text = type.name == "text" || type.name == "path";
    const std::string allowed = !is_text ? type.allowed : may_be_empty ? "any number" : "at least one";
    add(name, "list of " + type.name + (type.name == "text" ? "" : "s"), allowed, meaning, parse, print);
  }
  void operator()(const std::string& name, std::vector<std::string>& value, const std::string& meaning,
                  bool may_be_empty = false) {
    (*this)(name, value, type_of(std::string()), meaning, may_be_empty);
  }

  /// A key with a list of maps; one map counts as a list of it. \param keys_of (Map&) keys of a map, the first one of
  /// which must be given
  template <class Map, class KeysOf>
  void operator()(const std::string& name, std::vector<Map>& value, const KeysOf& keys_of, const std::string& meaning) {
    Map defaults;
    const std::vector<Key> known = keys_of(defaults);
    std::string allowed;
    for (const Key& key : known)
      allowed += (allowed.empty() ? "`" : "; `") + key.name + "`: " + key.type + (key.allowed.empty() ? "" : " ") +
                 key.allowed;
    const auto parse = [&value, keys_of, first = known.front().name, path = path(name)](const RawValue& raw) {
      if (!raw.items.empty())
        throw InputError(raw.where, path + " holds something that is not a map",
                         "give a list of maps: [{" + first + ": …}]");
      std::vector<Map> read;
      for (const RawMap& one : raw.maps) {
        read.emplace_back().where = one.where;
        parse_map(one, keys_of(read.back()), path);
      }
      value = read;
    };
    const auto print = [&value, keys_of] {
      std::vector<std::string> all;
      for (Map& one : value) all.push_back(print_map(keys_of(one)));
      return "[" + joined(all) + "]";
    };
    add(name, "list of maps", allowed, meaning, parse, print);
  }

private:
  std::string path(const std::string& name) const { return m_sections.back().name + "." + name; }
  void add(const std::string& name, const std::string& type, const std::string& allowed, const std::string& meaning,
           std::function<void(const RawValue&)> parse, std::function<std::string()> print) {
    m_sections.back().keys.push_back({m_sections.back().name, name, type, allowed, meaning, parse, print});
  }

  std::vector<Section> m_sections;
};

/// The keys of a map of `optimizer.groups`.
std::vector<Key> keys_of_group(TensorGroup& group) {
  Declare key;
  key.section("optimizer.groups", "");
  key("pattern", group.pattern, "");
  key("lr_factor", group.lr_factor, real(0), "");
  key("weight_decay", group.weight_decay, real(0), "");
  return key.sections().front().keys;
}

}  // namespace

std::vector<Section> keys(Input& in) {
  Declare key;

  key.section("run", "Where and how a run takes place.");
  key("backend", in.run.backend, "Kokkos execution space that computes. A binary has all those of its Kokkos.");
  key("threads", in.run.threads, integer(0, most_threads),
      "Host threads of each rank; 0 leaves it to `OMP_NUM_THREADS`. Results do not depend on it.");
  key("seed", in.run.seed, integer(0, std::numeric_limits<std::int64_t>::max()),
      "Seed of initial parameters, data, dropout and noise.");
  key("output", in.run.output, path_type(),
      "Directory for the CSV files and the resolved input; made if missing. A file of an earlier run is replaced only "
      "when the new one is complete.");
  key("dump_parameters", in.run.dump_parameters, path_type(),
      "HDF5 file for the final state, a checkpoint: datasets `parameters` and, where the algorithm has them, "
      "`momentum` and `variance`, each of shape (parameters), and more (docs/guide/checkpoint.md); a relative name is "
      "taken inside `run.output`; empty writes none.");
  key("progress_interval_s", in.run.progress_interval_s, real(0),
      "Least time between two progress lines, in seconds; 0 prints none. If this key is left out and standard output "
      "is no terminal, 60: a batch job's log gets a line a minute.");
  key("check_replicas_every", in.run.check_replicas_every, integer(0),
      "Steps between two checks that all ranks hold the same bits (a hash of the parameters); 0 never checks.");
  key("watchdog_seconds", in.run.watchdog_seconds, real(0),
      "When no rank has made progress for so long, the run ends with a message that says where each rank was last seen "
      "(docs/guide/faults.md). Must be longer than the longest kernel, message, flush to disk or training of a "
      "tokeniser; 0 waits for ever.");

  key.section("train", "The loop.");
  key("steps", in.train.steps, integer(1), "Optimiser steps.");
  key("batch", in.train.batch, integer(1),
      "Samples of one step over all ranks and accumulation rounds; a multiple of ranks × accumulation. Workload "
      "`replay` has none.");
  key("accumulation", in.train.accumulation, integer(1),
      "Rounds of forward and backward passes whose gradients are averaged before one optimiser step.");
  key("validate_every", in.train.validate_every, integer(0),
      "Steps between two validations; the last step always validates; 0 validates only there.");
  key("validation_batch", in.train.validation_batch, integer(1),
      "Validation samples over all ranks, the same ones at each validation; rounded up to whole batches.");
  key("target_loss", in.train.target_loss, real(0),
      "A validation loss. `run.csv` says after how many steps, seconds and bytes a validation first found it or less. "
      "The run goes on. 0 is no target.");
  key("loss_at_most", in.train.loss_at_most, real(0),
      "The greatest final validation loss of a run that counts as right. A run that ends above it prints `VALIDATION "
      "FAILED` and ends with exit status 1, after its files are complete (docs/reference/output/figures_of_merit.md). "
      "0 is no bound.");

  key.section("optimizer", "The algorithm and its numbers (docs/reference/algorithms/README.md).");
  key("algorithm", in.optimizer.algorithm, word(algorithm_names()), "How parameters are updated.");
  key("lr", in.optimizer.lr, real_above(0), "Peak learning rate γ.");
  key("beta1", in.optimizer.beta1, real(0, 0.999999), "Decay β1 of the momentum.");
  key("beta2", in.optimizer.beta2, real(0, 0.999999), "Decay β2 of the variance.");
  key("epsilon", in.optimizer.epsilon, real_above(0), "η, added to the root of the variance.");
  key("weight_decay", in.optimizer.weight_decay, real(0),
      "Decoupled weight decay λ; biases and LayerNorm parameters are left out.");
  key("groups", in.optimizer.groups, keys_of_group,
      "Tensors with a learning rate or a weight decay of their own, e.g. `[{pattern: \"classifier.*\", "
      "lr_factor: 100}, {pattern: \"*.gamma\", weight_decay: 0}]`. `pattern` is for the dotted name of a tensor: `*` "
      "stands for any characters, `?` for one; the first group that matches a tensor counts. `lr_factor`, by default "
      "1, multiplies γ in the tensor's update; 0 freezes it. `weight_decay` replaces λ, for biases and LayerNorm "
      "parameters as well; without it, λ is the run's.");
  key("bias_correction", in.optimizer.bias_correction,
      "Divide momentum and variance by 1 − βᵗ (Kingma and Ba 2015); the BERT optimiser does not. For `onebit_adam` "
      "both corrections stay at T_w's value in the compressed phase.");
  key("local_steps", in.optimizer.local_steps, integer(1),
      "τ: steps between two averages of the parameters for `local_sgd`, `local_momentum_sgd` and `adam_lazy_variance` "
      "(which averages its variance then too); H: steps between two outer steps of `diloco`, whose paper takes 500.");
  key("variance_bits", in.optimizer.variance_bits, integer(1, 16),
      "Bits of an element of the variance that `adam_nbit_variance` sends.");
  key("vote", in.optimizer.vote,
      "What `distributed_lion` makes of the ranks' signs: the sign of the majority, one bit of an element, or the "
      "average of the signs, ⌈log₂(n+1)⌉ bits from a server.");
  key("clip", in.optimizer.clip, real(0),
      "Greatest global gradient norm: of the averaged gradient where that is averaged densely, else of the root mean "
      "square over ranks; 0 does not clip.");
  key("clip_norm", in.optimizer.clip_norm,
      "Norm that clips in steps that compress: this step's, which is known when the backward pass has ended, or the "
      "last step's, so that momenta can travel during it (`comm.compressed_bucket_bytes`).");
  key("on_nonfinite", in.optimizer.on_nonfinite,
      "When a gradient on any rank holds NaN, infinity or a number too large to compute with "
      "(docs/reference/algorithms/rates.md): end the run, or leave out the step on all ranks.");

  key.section("schedule", "The learning rate over the steps.");
  key("warmup_steps", in.schedule.warmup_steps, integer(0),
      "Warm-up of the learning rate: steps in which it rises linearly to its peak.");
  key("decay", in.schedule.decay,
      "After the warm-up: `exponential` and `step` multiply by `rate` every `every` steps (`exponential` counts from "
      "the end of the warm-up, `step` from the start of the run); `linear` and `cosine` fall to 0 at the last step. "
      "With `averaging` the rate stays, and validations and files have the mean of the parameters over about the last "
      "tenth of the steps so far (docs/reference/algorithms/rates.md).");
  key("rate", in.schedule.rate, real_above(0, 1), "Factor of `exponential` and `step`.");
  key("every", in.schedule.every, integer(1), "Steps between two factors.");

  key.section("freeze", "When the variance is frozen and compression begins (T_w).");
  key("step", in.freeze.step, integer_or_word(0, {"auto"}),
      "T_w: the last step of the dense phase, less than `train.steps`. `auto` freezes at the first step at which "
      "min(r, 1/r) ≥ 0.96, where r = ‖v_t‖₁ / ‖v_{t−Δ}‖₁ and Δ = round(1/(1−β2)), not before the learning rate's "
      "warm-up has ended, and at the latest as `at_most` says.");
  key("at_most", in.freeze.at_most, real_above(0, 1),
      "With `step: auto`: the variance is frozen at the latest at this fraction of `train.steps`, rounded up, but not "
      "before the learning rate's warm-up has ended, and before the last step. In the paper T_w is 15 to 20 % of a "
      "run.");
  key("from", in.freeze.from, path_type(),
      "Checkpoint of an earlier run of the same model (`checkpoint.every`, `run.dump_parameters`): this run starts "
      "with its variance, so `step` may be 0, which leaves out the dense phase. Empty starts with 0.");

  key.section("compression", "The compressor of every algorithm that has a compressed allreduce.");
  key("compressor", in.compression.compressor,
      "`none`: averages are dense, for networks on which compression does not pay; `sign`: one bit, and a scale for "
      "each group; `sign_ternary`: two bits, zeros stay zero; `column`: one bit, and two values for each column of a "
      "matrix (1-bit SGD); `nbit`: `bits` bits, equally spaced; `fp8`: eight bits, the format e4m3.");
  key("scale", in.compression.scale,
      "Magnitude of a group of N elements for `sign` and `sign_ternary`: `l1` ‖c‖₁/N (the paper), `l2` ‖c‖₂/√N "
      "(DeepSpeed); for `sign_ternary` N counts the elements that are not 0.");
  key("group", in.compression.group, integer_or_word(32, {"auto", "vector", "chunk", "tensor", "row"}, 32),
      "What shares one scale: a rank's whole vector, and each server's chunk (`vector`); each chunk (`chunk`); each "
      "tensor, or each row of a matrix, split at the ends of chunks (`tensor`, `row`); or so many elements, counted "
      "from each chunk's start. `auto` is `row` for onebit_muon and `vector` for the others. The compressor `column` "
      "has groups of its own.");
  key("bits", in.compression.bits, integer(2, 16), "Bits of an element for the compressor `nbit`.");
  key("reconstruction", in.compression.reconstruction,
      "The two values of a column for the compressor `column`: `mean` of its negative and of its other elements, or a "
      "quarter and three quarters of the way from its least to its greatest (`range`).");
  key("error_feedback", in.compression.error_feedback,
      "Add to each vector what its last compression lost, on both sides; `false` drops the residuals, to show what "
      "they are for.");
  key("scale_residual_by_lr", in.compression.scale_residual_by_lr,
      "Multiply the residuals by γ_{t−1}/γ_t on both sides, so that what one update lost enters the next one at the "
      "same size, whatever the schedule. For `onebit_adam`, `ef_momentum_sgd`, `double_squeeze`, `onebit_sgd` and "
      "`efficient_adam`, whose parameters are linear in what is compressed.");

  key.section("zero_one",
              "Algorithm `zero_one_adam`: when it exchanges what (docs/reference/algorithms/successors.md).");
  key("variance_freeze_step", in.zero_one.variance_freeze_step, integer(1),
      "F: the last step that may update the variance; local steps begin after it. DeepSpeed: `var_freeze_step`.");
  key("variance_update_scaler", in.zero_one.variance_update_scaler, integer(1),
      "κ: the number of variance updates after which the interval between two of them, 1 at first, doubles. DeepSpeed: "
      "`var_update_scaler`.");
  key("local_step_scaler", in.zero_one.local_step_scaler, integer(1),
      "α: the number of steps after F in which the interval between two exchanges, 1 at first, doubles.");
  key("local_step_clipper", in.zero_one.local_step_clipper, integer(1),
      "H: the greatest interval between two exchanges; 1 for no local steps.");

  key.section("lamb",
              "Algorithm `onebit_lamb`: the learning rate of each tensor (docs/reference/algorithms/successors.md).");
  key("min_coefficient", in.lamb.min_coefficient, real(0),
      "Least ratio of a tensor's norm to its update's. DeepSpeed: `min_coeff`.");
  key("max_coefficient", in.lamb.max_coefficient, real_above(0),
      "Greatest ratio of a tensor's norm to its update's. DeepSpeed: `max_coeff`.");

  key.section("diloco",
              "Algorithm `diloco`: what an outer step makes of `optimizer.local_steps` local ones "
              "(docs/reference/algorithms/local_steps.md).");
  key("outer_lr", in.diloco.outer_lr, real_above(0), "Outer learning rate γ_o, which is constant; 0.7 is the paper's.");
  key("outer_momentum", in.diloco.outer_momentum, real(0, 0.999999),
      "Outer momentum μ of Nesterov; 0.9 is the paper's.");
  key("fragments", in.diloco.fragments, integer(1),
      "P: ranges of the parameters that take their outer steps one after the other (Streaming DiLoCo), each every "
      "`optimizer.local_steps` steps, so that fewer bytes travel at once; 1 sends all at once.");

  key.section("muon", "Algorithms `muon` and `onebit_muon` (docs/reference/algorithms/muon.md).");
  key("lr_factor", in.muon.lr_factor, real_above(0),
      "μ: the learning rate of matrices is μ √max(1, rows/columns) γ. Tables (embeddings) and vectors have γ.");
  key("table_beta1", in.muon.table_beta1, real(0, 0.999999),
      "β1 of tables; matrices and vectors have `optimizer.beta1`.");
  key("iterations", in.muon.iterations, integer(1), "Iterations of Newton–Schulz.");

  key.section("checkpoint", "Checkpoints and restart (docs/guide/checkpoint.md).");
  key("every", in.checkpoint.every, integer(0),
      "Steps between two checkpoints; 0 writes one only when SIGTERM or SIGUSR1 asks the run to stop.");
  key("directory", in.checkpoint.directory, path_type(),
      "Directory for them; a relative name is taken inside `run.output`; made if missing. A run that does not continue "
      "from the newest one there writes into a subdirectory, line_2, line_3, …, so that it replaces no other run's.");
  key("keep", in.checkpoint.keep, integer(1),
      "How many of this run's last ones are kept. Those of other runs are always kept.");
  key("restart", in.checkpoint.restart, path_type(),
      "`none`: begin at step 1. `auto`: continue from the newest checkpoint in `directory` that is not damaged (in its "
      "subdirectory with the greatest number, where it has any), and begin at step 1 where there is none. Else: the "
      "file to continue from.");
  key("initialize_from", in.checkpoint.initialize_from, path_type(),
      "Checkpoint of an earlier run: step 1 begins with its parameters and nothing else of it (a next phase of "
      "training, fine-tuning; docs/guide/fine_tuning.md says which models fit). `freeze.from` takes the variance as "
      "well. Empty begins with the workload's parameters.");

  key.section("comm", "Communication.");
  key("transport", in.comm.transport,
      "How GPU memory is exchanged: staged through host buffers for MPI, handed to MPI directly (GPU-aware MPI), or "
      "by NCCL, with one rank to a GPU. `auto` takes `device` where the MPI library says that it can and a trial "
      "succeeds, else `host`. `device` is tried whatever the library says. On host backends these three are the same.");
  key("collective", in.comm.collective,
      "How ranks average: `flat` among all ranks; `hierarchical` densely inside each host first, and then between "
      "hosts, which must all have the same number of ranks. `auto` measures both, and `compression.compressor: none`, "
      "at the start and takes the fastest.");
  key("exchange", in.comm.exchange,
      "How ranks exchange: `collective` calls MPI_Allreduce, MPI_Alltoall and MPI_Allgather; `pairwise` posts messages "
      "between all pairs of ranks at once and sums in the order of the ranks, which fills slow networks better; `grid` "
      "is `collective`, but with all-to-alls and all-gathers along the rows and columns of a grid of ranks, "
      "in fewer and longer messages, which is faster for short vectors and hundreds of ranks "
      "(docs/reference/algorithms/averages.md). No effect on transport `nccl`.");
  key("message_bytes", in.comm.message_bytes, integer(1024, 1 << 30),
      "Longest message of `pairwise`. Below the length up to which the MPI library sends at once (64 KiB for Open MPI "
      "over TCP) both directions of a link are used.");
  key("bucket_bytes", in.comm.bucket_bytes, integer(0, 1 << 30),
      "Where an algorithm averages the gradient densely, a thread of its own, which wants a core, averages buckets of "
      "this size during the backward pass. On a GPU it uses a stream of its own; transport `host` stages buckets "
      "through host memory. 0 averages the whole gradient after the backward pass, as do models of one bucket.");
  key("compressed_bucket_bytes", in.comm.compressed_bucket_bytes, integer(0, 1 << 30),
      "`onebit_adam` compresses and averages its momentum in buckets of this size, counted as floats, each with chunks "
      "and scales of its own. Where that is possible, the thread of `bucket_bytes` averages them during the backward "
      "pass. 0 averages the whole momentum at once, and after the backward pass.");
  key("dense_type", in.comm.dense_type,
      "How dense averages of gradients and momenta travel: as floats, or in 16 bits, half as many bytes "
      "(docs/reference/algorithms/averages.md). Averages of parameters and variances are always floats.");

  key.section("workload", "What gives a loss and a gradient.");
  key("kind", in.workload.kind,
      "`transformer` trains a language model on text; `classification` trains the same model with a head that "
      "classifies labelled texts, and `spans` with a head that finds an answer in a text "
      "(docs/guide/fine_tuning.md); `images` trains a convolutional network that "
      "classifies images, and `dcgan` a generator of images and its discriminator (docs/guide/images.md); `quadratic` "
      "is a noisy convex quadratic with known optimum; `replay` reads gradients from HDF5; `synthetic` has a fixed "
      "gradient that costs nothing.");
  key("compute_time_ms", in.workload.compute_time_ms, real(0),
      "Least time of a step's gradient: the rank computes, and sleeps for the rest, for experiments in which ranks "
      "share cores (docs/guide/network.md). 0 does not sleep.");
  key("parameters", in.workload.parameters, integer_or_word(1, published_model_names()),
      "Parameters of workload `synthetic`: a number, in the proportions of BERT-Large, or the tensors of a published "
      "model (src/config/published_models.hpp).");

  key.section("model", "Workloads `transformer`, `classification` and `spans`: the shape.");
  key("architecture", in.model.architecture,
      "`bert`: post-LayerNorm encoder, masked language model; `gpt`: pre-LayerNorm decoder, causal.");
  std::vector<std::string> preset_names;
  for (const Preset& preset : presets) preset_names.push_back(preset.name);
  key("preset", in.model.preset, word(preset_names), "Shape by name; the next five keys change it where not 0.");
  key("layers", in.model.layers, integer(0, 1000), "Layers L.");
  key("hidden", in.model.hidden, integer(0, 65536), "Width H of the residual stream.");
  key("heads", in.model.heads, integer(0, 1024), "Attention heads; divides `hidden`.");
  key("feed_forward", in.model.feed_forward, integer(0, 262144), "Width of the feed-forward layer.");
  key("positions", in.model.positions, integer(0, 1048576), "Rows of the position embedding.");
  key("vocabulary", in.model.vocabulary, integer(0, 16777216),
      "Rows of the word embedding, at least the tokeniser's; 0 takes the tokeniser's.");
  key("sequence", in.model.sequence, integer(1, 65536), "Tokens T of a sample; at most `positions`.");
  key("second_text", in.model.second_text, integer(0, 65535),
      "Position at which the second of two texts begins, which `bert` gives its other token type; less than "
      "`sequence`. Lines of workload `classification` then have two texts, and those of `spans` always; of a masked "
      "language model's samples, the "
      "tokens from there on have that type. 0: one text.");
  key("pooling", in.model.pooling,
      "Workload `classification`: which rows of a sample the head reads. `position`: the first token of `bert`, the "
      "text's last one of `gpt`; `mean`: the mean over all of its tokens.");
  key("dropout", in.model.dropout, real(0, 0.9), "Probability of dropping an activation while training.");
  key("initializer_range", in.model.initializer_range, real_above(0),
      "Standard deviation of the initial weights, whose mean is 0; that of embeddings is always 0.02. BERT's 0.02 "
      "suits `hidden` 768; a narrower model needs more, about 0.55/√`hidden`.");
  key("precision", in.model.precision,
      "Factors of the products with weights, and of Muon's Newton–Schulz: `bf16` and `tf32` round them, and sums and "
      "parameters stay in float. `tf32` needs backend `cuda`, where both round the factors of attention to tf32. On "
      "the host, `bf16` needs "
      "oneDNN and AVX512_BF16. `auto` times a gradient of two layers in each that the machine has, and takes the "
      "fastest; a restarted run keeps it.");

  key.section("model.quantization",
              "Dense layers of one bit, or of 8, and convolutions of one bit "
              "(docs/reference/algorithms/onebit_layers.md).");
  key("kind", in.model.quantization.kind,
      "Weights and activations of the layers' dense layers, or of convolutions of workload `images`, are quantised, "
      "except with `none`. The kinds differ in the "
      "gradient at their outputs: `qat` leaves it in full precision; `psq` quantises its rows, and `scq` its rows for "
      "one product and its columns for the other; `fqt` does as `scq` and keeps 1/`bits` of the rows and columns, so "
      "that an element has one bit on average.");
  key("layer_bits", in.model.quantization.layer_bits, integer(1, 8),
      "Bits of these weights and activations: 1, or 8 with `qat` and `psq`. Layers of 8 bits have the parameters of "
      "layers in full precision; those of one bit have scales Γ, too. Convolutions have 1.");
  key("bits", in.model.quantization.bits, integer(1, 8),
      "b: bits of an element of the quantised gradient, 1, 2, 4 or 8; `qat` has none. With 1, `fqt` prunes nothing.");
  key("pruning", in.model.quantization.pruning,
      "How `fqt` chooses what it keeps: each row or column by itself (`bernoulli`), all with one random number "
      "(`systematic`), which are both unbiased, or those of the largest elements (`topk`), which is not.");
  key("gradients_after", in.model.quantization.gradients_after, integer(0),
      "Steps at the begin of the run whose gradients stay in full precision, as with `qat`. Gradients are quantised "
      "after them.");
  key("exclude", in.model.quantization.exclude,
      "Dense layers in full precision: `first` and `last` name those of the first and of the last layer; others by a "
      "pattern of their name, in which `*` stands for any characters and `?` for one, e.g. `encoder.0.attention.*`. "
      "Embeddings, the head and attention's own products always have full precision. Of workload `images`: patterns of "
      "the names of convolutions, e.g. `layer4.*`; the first one, ResNet's shortcuts and the head always have full "
      "precision.",
      true);
  key("group", in.model.quantization.group,
      "Workload `images`: rows of a convolution's gradient that are quantised, and kept, together: those of all "
      "positions of an `image`, as in the paper, or of a `position` alone.");
  key("record_every", in.model.quantization.record_every, integer(0),
      "Steps between rows of `gradient_groups.csv` (docs/reference/output/gradient_groups.md): the ranges of the rows "
      "and columns of each quantised gradient, and its quantiser's error. Such a step takes longer. With 0 there is no "
      "such file.");

  key.section("images",
              "Workloads `images` and `dcgan` (docs/guide/images.md). `model.precision` is their precision, too.");
  key("network", in.images.network,
      "Workload `images`: `resnet18`: ResNet-18 for small images, with a first convolution of 3 × 3 pixels; `vgg16`: "
      "VGG-16 with batch normalisation and one dense layer; `mixer`: an MLP-Mixer of four blocks on patches of 4 × 4 "
      "pixels.");
  key("width", in.images.width, integer(1, 4096),
      "Channels of the first convolution; those after it have up to eight times as many. A generator has those of its "
      "discriminator in reverse. The papers' networks have 64. Of `mixer`: channels of a patch.");
  key("norm_samples", in.images.norm_samples, integer(1),
      "Consecutive samples whose statistics a batch normalisation takes together, on any number of ranks; divides the "
      "samples of a rank's round, `train.batch` / (ranks · `train.accumulation`).");
  key("training", in.images.training, path_type(),
      "Files of images to train on: IDX, as MNIST has it, or CIFAR-10's binary files. The labels of an IDX file are in "
      "the file that has `labels` and `idx1` in its name where that one has `images` and `idx3` (`idx4` for colours).",
      true);
  key("validation", in.images.validation, path_type(), "Files of other images of the same size, to validate with.",
      true);
  key("augment", in.images.augment,
      "What is drawn for each training image: `crop` puts 4 black pixels on each side and cuts out the image's size at "
      "random; `crop_flip` also mirrors half of the images; `none` draws nothing.");

  key.section(
      "data",
      "Workload `transformer`: the text. Workloads `classification` and `spans`: the text that the tokeniser is "
      "made from, which must be that of the pre-training, and the labelled texts.");
  key("corpus", in.data.corpus, path_type(),
      "Files of plain text, read one after the other; `sentencepiece` needs UTF-8. Byte order marks are left out, line "
      "ends stay as they are. The last tenth of the text is kept for validation. Relative to the working directory.");
  key("tokenizer", in.data.tokenizer,
      "`bytes`: 256 bytes and [MASK]; `characters`: the bytes that occur in the text, and [MASK] for `bert`; "
      "`sentencepiece`: subwords, trained on the training text on first use.");
  key("vocabulary", in.data.vocabulary, integer(300, 16777216),
      "Tokens of the `sentencepiece` tokeniser, [MASK] included.");
  key("cache", in.data.cache, path_type(), "Directory for trained tokenisers; empty takes `run.output`.");
  key("labelled", in.data.labelled, path_type(),
      "Workload `classification`: training file, each line a label, a tab and a text. Workload `spans`: each line an "
      "answer, a tab, what is asked, a tab and a text that has the answer (docs/guide/fine_tuning.md).");
  key("labelled_validation", in.data.labelled_validation, path_type(),
      "Workloads `classification` and `spans`: validation file of the same form, with other texts.");

  key.section("quadratic",
              "Workload `quadratic`: f(x) = ½ Σ h_j (x_j − 1)², h spread log-evenly over [1/condition, 1], x₀ = 0.");
  key("dimension", in.quadratic.dimension, integer(1), "Parameters.");
  key("condition", in.quadratic.condition, real(1), "Largest over smallest curvature.");
  key("noise", in.quadratic.noise, real(0),
      "Standard deviation of the gradient's normal noise for one sample, in each coordinate.");

  key.section("replay", "Workload `replay`: gradients from a file.");
  key("file", in.replay.file, path_type(),
      "HDF5 file with dataset `gradients` (steps, ranks, parameters), float or double; optionally `initial` "
      "(parameters) and the tensor table `tensors/names`, `tensors/sizes`, `tensors/decays`.");

  key.section(
      "bench",
      "`onebit bench collective`: averages over ranks; `onebit bench kernels`: every kernel of a training step; "
      "`onebit bench layers`: 1-bit layers of well-known networks (docs/develop/performance.md). All are checked "
      "and timed.");
  key("collectives", in.bench.collectives,
      word({"mpi_allreduce", "mpi_reduce_scatter", "pairwise_allreduce", "hierarchical_allreduce", "nccl_allreduce",
            "mpi_bf16", "pairwise_bf16", "grid_bf16", "hierarchical_bf16", "nccl_bf16", "mpi_compressed",
            "pairwise_compressed", "grid_compressed", "hierarchical_compressed", "nccl_compressed"}),
      "What `collective` times: the dense average in float and in bf16 (`comm.dense_type`), and the compressed "
      "allreduce (sign, l1, one scale a vector), each by the MPI library's collectives, by pairwise messages or "
      "on a grid (`comm.exchange`), by host (`comm.collective`) and by NCCL (backends `cuda` and `hip`, whose NCCL is "
      "RCCL); "
      "`mpi_reduce_scatter` is MPI_Reduce_scatter and MPI_Allgatherv on the host.");
  key("smallest", in.bench.smallest, integer(1),
      "Elements of the shortest vector; of `kernels`, the optimiser's parameters.");
  key("largest", in.bench.largest, integer(1), "Elements of the longest vector.");
  key("factor", in.bench.factor, integer(2), "From one length to the next.");
  key("warmup", in.bench.warmup, integer(0), "Repetitions that are not timed, after the checked one.");
  key("repetitions", in.bench.repetitions, integer(1), "Repetitions that are timed.");
  key("layers", in.bench.layers, word({"vgg16", "resnet18", "resnet18_small", "bert_base"}),
      "Networks whose layers `layers` times: every convolution as a matrix product, or the dense layers of BERT-Base. "
      "`resnet18_small` begins with a convolution of 3 × 3 pixels and pools nothing after it, as workload `images` and "
      "the code of the 1-bit FQT paper do.");
  key("pixels", in.bench.pixels, integer(1, 1024), "Widths of the square images of all networks but `bert_base`.");
  key("batch", in.bench.batch, integer(1, 65536), "Images of `layers`; `bert_base` has 8 texts of 128 tokens.");

  key.section("faults", "A fault on purpose, to test how a run reports it (docs/guide/faults.md).");
  key("kind", in.faults.kind,
      "`nan`: an element of the rank's gradient is NaN; `desync`: a parameter of the rank differs from the others'; "
      "`hang`: the rank's gradient never ends.");
  key("rank", in.faults.rank, integer(0), "The rank that fails.");
  key("step", in.faults.step, integer(0), "The step in which it fails. 0, for `hang` only: while the run is set up.");

  return key.sections();
}

void apply_preset(Input& in) {
  const Preset& preset =
      *std::find_if(std::begin(presets), std::end(presets), [&](const Preset& p) { return in.model.preset == p.name; });
  const auto fill = [](int& value, int from_preset) {
    if (value == 0) value = from_preset;
  };
  fill(in.model.layers, preset.layers);
  fill(in.model.hidden, preset.hidden);
  fill(in.model.heads, preset.heads);
  fill(in.model.feed_forward, preset.feed_forward);
  fill(in.model.positions, preset.positions);
}

}  // namespace onebit::config
