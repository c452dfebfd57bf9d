/// \file input.cpp
/// The declaration of every key, the combinations that are refused, and the texts made from the declaration.

#include "config/input.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "base/error.hpp"

namespace onebit::config {
namespace {

template <class Enum>
using Words = std::vector<std::pair<std::string, Enum>>;

const Words<Backend> backend_words = {
    {"serial", Backend::serial}, {"openmp", Backend::openmp}, {"cuda", Backend::cuda}};
const Words<Collective> collective_words = {{"flat", Collective::flat},
                                            {"hierarchical", Collective::hierarchical},
                                            {"dense", Collective::dense},
                                            {"auto", Collective::automatic}};
const Words<WorkloadKind> workload_words = {{"transformer", WorkloadKind::transformer},
                                            {"classification", WorkloadKind::classification},
                                            {"quadratic", WorkloadKind::quadratic},
                                            {"replay", WorkloadKind::replay},
                                            {"synthetic", WorkloadKind::synthetic}};

/// Shapes by name; head counts and feed-forward widths as in Devlin et al. 2019 for base and large.
struct Preset {
  const char* name;
  int layers, hidden, heads, feed_forward, positions;
};
constexpr Preset presets[] = {{"tiny", 2, 64, 2, 256, 128},
                              {"small", 4, 256, 4, 1024, 512},
                              {"base", 12, 768, 12, 3072, 512},
                              {"large", 24, 1024, 16, 4096, 512}};

template <class Words, class F>
std::string join(const Words& words, const std::string& between, F text) {
  std::string joined;
  for (const auto& word : words) joined += (joined.empty() ? "" : between) + text(word);
  return joined;
}
std::string join(const std::vector<std::string>& words, const std::string& between) {
  return join(words, between, [](const std::string& word) { return word; });
}
template <class Enum>
std::vector<std::string> names(const Words<Enum>& words) {
  std::vector<std::string> all;
  for (const auto& word : words) all.push_back(word.first);
  return all;
}
template <class Enum>
std::string name_of(const Words<Enum>& words, Enum value) {
  return std::find_if(words.begin(), words.end(), [=](const auto& word) { return word.second == value; })->first;
}

/// Shortest decimal text that reads back as the same double; with 6 digits at least before an exponent (100, not 1e+02).
std::string shortest(double value) {
  std::ostringstream text;
  for (int digits = 6; digits <= std::numeric_limits<double>::max_digits10; ++digits) {
    text.str("");
    text.precision(digits);
    text << value;
    if (std::strtod(text.str().c_str(), nullptr) == value) break;
  }
  return text.str();
}

std::string quoted(const std::string& text) {
  std::string escaped = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped + "\"";
}

const std::string& scalar(const RawValue& raw, const std::string& path, const std::string& type) {
  if (raw.is_list) throw InputError(raw.where, path + " is a list, but one value is wanted", "give one " + type);
  return raw.items.front();
}

/// Collects the keys of one section.
class Declare {
public:
  Declare(std::vector<Section>& sections, const std::string& name, const std::string& meaning) : m_sections(sections) {
    sections.push_back({name, meaning, {}});
  }

  template <class Int>
  void integer(const std::string& name, Int& value, std::int64_t low, std::int64_t high, const std::string& meaning) {
    const std::string range = range_text(std::to_string(low), std::to_string(high), high >= unbounded);
    add(
        name, "integer", range, meaning,
        [&value, low, high, range, path = path(name)](const RawValue& raw) {
          value = static_cast<Int>(to_integer(raw, path, low, high, range));
        },
        [&value] { return std::to_string(value); });
  }

  /// \param low_allowed false for a range that leaves out its lower end
  void real(const std::string& name, double& value, double low, double high, const std::string& meaning,
            bool low_allowed = true) {
    const std::string range = range_text(low, high, low_allowed);
    add(
        name, "real", range, meaning,
        [&value, low, high, low_allowed, range, path = path(name)](const RawValue& raw) {
          value = to_real(scalar(raw, path, "number"), raw, path, low, high, low_allowed, range);
        },
        [&value] { return shortest(value); });
  }

  /// Numbers of which each lies in the range of `integer`; at least one.
  void integers(const std::string& name, std::vector<std::int64_t>& value, std::int64_t low, std::int64_t high,
                const std::string& meaning) {
    const std::string range = range_text(std::to_string(low), std::to_string(high), high >= unbounded);
    add(
        name, "list of integers", range, meaning,
        [&value, low, high, range, path = path(name)](const RawValue& raw) {
          value = numbers<std::int64_t>(
              raw, path, [&](const std::string& text) { return to_integer(text, raw, path, low, high, range); });
        },
        [&value] { return "[" + join(value, ", ", [](std::int64_t x) { return std::to_string(x); }) + "]"; });
  }

  /// Numbers of which each lies in the range of `real`; at least one.
  void reals(const std::string& name, std::vector<double>& value, double low, double high, const std::string& meaning,
             bool low_allowed = true) {
    const std::string range = range_text(low, high, low_allowed);
    add(
        name, "list of reals", range, meaning,
        [&value, low, high, low_allowed, range, path = path(name)](const RawValue& raw) {
          value = numbers<double>(raw, path, [&](const std::string& text) {
            return to_real(text, raw, path, low, high, low_allowed, range);
          });
        },
        [&value] { return "[" + join(value, ", ", shortest) + "]"; });
  }

  void flag(const std::string& name, bool& value, const std::string& meaning) {
    add(
        name, "boolean", "true or false", meaning,
        [&value, path = path(name)](const RawValue& raw) {
          const std::string& text = scalar(raw, path, "boolean");
          if (text != "true" && text != "false")
            throw InputError(raw.where, path + " is '" + excerpt(text) + "', which is not a boolean",
                             "give true or false");
          value = text == "true";
        },
        [&value] { return std::string(value ? "true" : "false"); });
  }

  void text(const std::string& name, std::string& value, const std::string& meaning) {
    add(
        name, "text", "", meaning,
        [&value, path = path(name)](const RawValue& raw) { value = printable(scalar(raw, path, "text"), raw, path); },
        [&value] { return quoted(value); });
  }

  void list(const std::string& name, std::vector<std::string>& value, const std::string& meaning,
            bool may_be_empty = false) {
    add(
        name, "list of text", may_be_empty ? "any number" : "at least one", meaning,
        [&value, may_be_empty, path = path(name)](const RawValue& raw) {
          if (raw.items.empty() && !may_be_empty)
            throw InputError(raw.where, path + " is an empty list", "name at least one");
          for (const std::string& item : raw.items)
            if (printable(item, raw, path).empty())
              throw InputError(raw.where, path + " holds an empty text", "leave it out");
          value = raw.items;
        },
        [&value] { return "[" + join(value, ", ", quoted) + "]"; });
  }

  void words(const std::string& name, std::vector<std::string>& value, const std::vector<std::string>& allowed,
             const std::string& meaning) {
    add(
        name, "list of words", join(allowed, ", "), meaning,
        [&value, allowed, path = path(name)](const RawValue& raw) {
          if (raw.items.empty()) throw InputError(raw.where, path + " is an empty list", "name at least one");
          for (const std::string& item : raw.items)
            if (std::find(allowed.begin(), allowed.end(), item) == allowed.end())
              throw unknown_word(raw, path, item, allowed);
          value = raw.items;
        },
        [&value] { return "[" + join(value, ", ") + "]"; });
  }

  void word(const std::string& name, std::string& value, const std::vector<std::string>& words,
            const std::string& meaning) {
    add(
        name, "word", join(words, ", "), meaning,
        [&value, words, path = path(name)](const RawValue& raw) {
          const std::string& text = scalar(raw, path, "word");
          if (std::find(words.begin(), words.end(), text) == words.end()) throw unknown_word(raw, path, text, words);
          value = text;
        },
        [&value] { return value; });
  }

  template <class Enum>
  void choice(const std::string& name, Enum& value, const Words<Enum>& words, const std::string& meaning) {
    add(
        name, "word", join(names(words), ", "), meaning,
        [&value, words, path = path(name)](const RawValue& raw) {
          const std::string& text = scalar(raw, path, "word");
          const auto found = std::find_if(words.begin(), words.end(), [&](const auto& w) { return w.first == text; });
          if (found == words.end()) throw unknown_word(raw, path, text, names(words));
          value = found->second;
        },
        [&value, words] { return name_of(words, value); });
  }

  void number_or_word(const std::string& name, NumberOrWord& value, std::int64_t low,
                      const std::vector<std::string>& words, const std::string& meaning) {
    const std::string range = join(words, ", ") + " or an integer ≥ " + std::to_string(low);
    add(
        name, "integer or word", range, meaning,
        [&value, low, words, range, path = path(name)](const RawValue& raw) {
          const std::string& text = scalar(raw, path, "integer or word");
          if (std::find(words.begin(), words.end(), text) != words.end())
            value = {text, 0};
          else
            value = {"", to_integer(raw, path, low, unbounded, range)};
        },
        [&value] { return value.word.empty() ? std::to_string(value.number) : value.word; });
  }

  static constexpr std::int64_t unbounded = std::numeric_limits<std::int32_t>::max();

private:
  std::string path(const std::string& name) const { return m_sections.back().name + "." + name; }

  void add(const std::string& name, const std::string& type, const std::string& allowed, const std::string& meaning,
           std::function<void(const RawValue&)> parse, std::function<std::string()> print) {
    m_sections.back().keys.push_back(
        {m_sections.back().name, name, type, allowed, meaning, std::move(parse), std::move(print)});
  }

  static std::string range_text(const std::string& low, const std::string& high, bool open) {
    return open ? "≥ " + low : "[" + low + ", " + high + "]";
  }
  static std::string range_text(double low, double high, bool low_allowed) {
    return std::isinf(high) ? (low_allowed ? "≥ " : "> ") + shortest(low)
                            : (low_allowed ? "[" : "(") + shortest(low) + ", " + shortest(high) + "]";
  }

  template <class Number, class Convert>
  static std::vector<Number> numbers(const RawValue& raw, const std::string& path, const Convert& convert) {
    if (raw.items.empty()) throw InputError(raw.where, path + " is an empty list", "name at least one");
    std::vector<Number> read;
    for (const std::string& item : raw.items) read.push_back(convert(item));
    return read;
  }

  /// True when a conversion that stopped at `end` took the whole text, which may hold a NUL.
  static bool is_whole(const std::string& text, const char* end) {
    return !text.empty() && end == text.data() + text.size();
  }

  /// The text, which names a file and is printed: a NUL would cut it short, a line end would not read back the same.
  static const std::string& printable(const std::string& text, const RawValue& raw, const std::string& path) {
    if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }))
      throw InputError(raw.where, path + " is '" + excerpt(text) + "', which holds a control character",
                       "leave out line ends, tabs and \\ sequences");
    return text;
  }

  static std::int64_t to_integer(const std::string& text, const RawValue& raw, const std::string& path,
                                 std::int64_t low, std::int64_t high, const std::string& range) {
    char* end = nullptr;
    errno = 0;
    const long long read = std::strtoll(text.c_str(), &end, 10);
    if (!is_whole(text, end))
      throw InputError(raw.where, path + " is '" + excerpt(text) + "', which is not an integer", "give " + range);
    if (errno == ERANGE || read < low || read > high)
      throw InputError(raw.where, path + " is " + excerpt(text) + ", which is out of range",
                       "give " + (read > high && high == unbounded ? "at most " + std::to_string(high) : range));
    return read;
  }
  static std::int64_t to_integer(const RawValue& raw, const std::string& path, std::int64_t low, std::int64_t high,
                                 const std::string& range) {
    return to_integer(scalar(raw, path, "integer"), raw, path, low, high, range);
  }

  static double to_real(const std::string& text, const RawValue& raw, const std::string& path, double low, double high,
                        bool low_allowed, const std::string& range) {
    char* end = nullptr;
    const double read = std::strtod(text.c_str(), &end);
    if (!is_whole(text, end) || !std::isfinite(read))
      throw InputError(raw.where, path + " is '" + excerpt(text) + "', which is not a finite number",
                       "give a number, " + range);
    // Kernels compute with floats, in which such a number would be infinite or 0.
    using Float = std::numeric_limits<float>;
    if (std::abs(read) > Float::max() || (read != 0 && std::abs(read) < Float::min()))
      throw InputError(raw.where, path + " is " + excerpt(text) + ", which single precision cannot hold",
                       "give a number, " + range + ", whose size is between 1.2e-38 and 3.4e38");
    if (read < low || read > high || (read == low && !low_allowed))
      throw InputError(raw.where, path + " is " + excerpt(text) + ", which is out of range", "give a number, " + range);
    return read;
  }

  static InputError unknown_word(const RawValue& raw, const std::string& path, const std::string& text,
                                 const std::vector<std::string>& words) {
    return {raw.where, path + " is '" + excerpt(text) + "', which is not one of its values",
            "give one of " + join(words, ", ")};
  }

  std::vector<Section>& m_sections;
};

}  // namespace

const std::vector<std::string>& algorithm_names() {
  static const std::vector<std::string> all = {
      "adam",       "onebit_adam",   "onebit_adam_32bit", "adam_1bit_naive", "adam_nbit_variance", "adam_lazy_variance",
      "sgd",        "momentum_sgd",  "double_squeeze",    "ef_momentum_sgd", "local_sgd",          "local_momentum_sgd",
      "onebit_sgd", "zero_one_adam", "onebit_lamb",       "onebit_lion"};
  return all;
}

bool freezes(const std::string& algorithm) {
  return algorithm == "onebit_adam" || algorithm == "onebit_adam_32bit" || algorithm == "onebit_lamb";
}

bool scales_residual_by_lr(const std::string& algorithm) {
  return algorithm == "onebit_adam" || algorithm == "ef_momentum_sgd" || algorithm == "double_squeeze" ||
         algorithm == "onebit_sgd";
}

std::int64_t latest_freeze(const Input& in) {
  if (in.freeze.step.word.empty()) return in.freeze.step.number;
  // The slack keeps a product such as 0.07 · 100 = 7.000000000000001 from counting a step more.
  const auto share = static_cast<std::int64_t>(std::ceil(in.freeze.at_most * in.train.steps - 1e-6));
  const std::int64_t before_last = std::min<std::int64_t>(share, in.train.steps - 1);
  return std::max<std::int64_t>({1, before_last, in.schedule.warmup_steps});
}

std::string to_string(Backend backend) { return name_of(backend_words, backend); }
std::string to_string(Collective collective) { return name_of(collective_words, collective); }
std::string to_string(WorkloadKind kind) { return name_of(workload_words, kind); }

std::vector<Section> keys(Input& in) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr std::int64_t unbounded = Declare::unbounded;
  std::vector<Section> sections;
  {
    Declare key(sections, "run", "Where and how a run takes place.");
    key.choice("backend", in.run.backend, backend_words,
               "Kokkos execution space that computes. One binary holds all that its Kokkos has.");
    key.integer("threads", in.run.threads, 0, most_threads,
                "Host threads of each rank; 0 leaves it to `OMP_NUM_THREADS`. Results do not depend on it.");
    key.integer("seed", in.run.seed, 0, unbounded, "Seed of initial parameters, data, dropout and noise.");
    key.text("output", in.run.output,
             "Directory for the CSV files and the resolved input; made if missing. A file of an earlier run there is "
             "replaced only when the new one is complete.");
    key.text("dump_parameters", in.run.dump_parameters,
             "HDF5 file for the final state, a checkpoint: datasets `parameters` and, where the algorithm has them, "
             "`momentum` and `variance`, each of shape (parameters), and more (docs/guide/checkpoint.md); a relative "
             "name is taken inside `run.output`; empty writes none.");
    key.real("progress_interval_s", in.run.progress_interval_s, 0, infinity,
             "Least time between two progress lines, in seconds; 0 prints none.");
    key.integer(
        "check_replicas_every", in.run.check_replicas_every, 0, unbounded,
        "Steps between two checks that all ranks hold the same bits (a hash of the parameters); 0 never checks.");
    key.real("watchdog_seconds", in.run.watchdog_seconds, 0, infinity,
             "When no rank has gone on for so long, the run is ended with a message that says where each rank was last "
             "seen (docs/guide/faults.md). Longer than the longest kernel, message, flush to disk or making of a "
             "vocabulary; 0 waits for ever.");
  }
  {
    Declare key(sections, "train", "The loop.");
    key.integer("steps", in.train.steps, 1, unbounded, "Optimiser steps.");
    key.integer(
        "batch", in.train.batch, 1, unbounded,
        "Samples of one step over all ranks and accumulation rounds; a multiple of ranks × accumulation. Workload "
        "`replay` has none.");
    key.integer("accumulation", in.train.accumulation, 1, unbounded,
                "Rounds of forward and backward passes whose gradients are averaged before one optimiser step.");
    key.integer("validate_every", in.train.validate_every, 0, unbounded,
                "Steps between two validations; the last step always validates; 0 validates there alone.");
    key.integer("validation_batch", in.train.validation_batch, 1, unbounded,
                "Validation samples over all ranks, the same ones at each validation; rounded up to whole batches.");
  }
  {
    Declare key(sections, "optimizer", "The algorithm and its numbers (docs/reference/algorithms.md).");
    key.word("algorithm", in.optimizer.algorithm, algorithm_names(), "How parameters are updated.");
    key.real("lr", in.optimizer.lr, 0, infinity, "Peak learning rate γ.", false);
    key.real("beta1", in.optimizer.beta1, 0, 0.999999, "Decay β1 of the momentum.");
    key.real("beta2", in.optimizer.beta2, 0, 0.999999, "Decay β2 of the variance.");
    key.real("epsilon", in.optimizer.epsilon, 0, infinity, "η, added to the root of the variance.", false);
    key.real("weight_decay", in.optimizer.weight_decay, 0, infinity,
             "Decoupled weight decay λ; biases and LayerNorm parameters are left out.");
    key.flag("bias_correction", in.optimizer.bias_correction,
             "Divide momentum and variance by 1 − βᵗ (Kingma and Ba 2015); the BERT optimiser does not. "
             "For `onebit_adam` both corrections stay at T_w's value in the compression phase.");
    key.integer("local_steps", in.optimizer.local_steps, 1, unbounded,
                "τ: steps between two averages of the parameters for `local_sgd`, `local_momentum_sgd` and "
                "`adam_lazy_variance` (which averages its variance then too).");
    key.integer("variance_bits", in.optimizer.variance_bits, 1, 16,
                "Bits of an element of the variance that `adam_nbit_variance` sends.");
    key.real("clip", in.optimizer.clip, 0, infinity,
             "Greatest global gradient norm: of the averaged gradient where that is averaged densely, else of the root "
             "mean square over ranks; 0 does not clip.");
    key.choice("on_nonfinite", in.optimizer.on_nonfinite, {{"abort", OnNonfinite::abort}, {"skip", OnNonfinite::skip}},
               "When a gradient on any rank holds NaN or infinity: end the run, or leave out the step on all ranks.");
  }
  {
    Declare key(sections, "schedule", "The learning rate over the steps.");
    key.integer("warmup_steps", in.schedule.warmup_steps, 0, unbounded, "Steps of linear rise to the peak.");
    key.choice("decay", in.schedule.decay,
               {{"constant", Decay::constant},
                {"exponential", Decay::exponential},
                {"linear", Decay::linear},
                {"cosine", Decay::cosine},
                {"step", Decay::step}},
               "After the rise: `exponential` and `step` multiply by `rate` every `every` steps (`exponential` is "
               "counted from the end of the rise, `step` from the start of the run); `linear` and `cosine` fall to "
               "`floor` at the last step.");
    key.real("rate", in.schedule.rate, 0, 1, "Factor of `exponential` and `step`.", false);
    key.integer("every", in.schedule.every, 1, unbounded, "Steps between two factors.");
    key.real("floor", in.schedule.floor, 0, 1, "End of `linear` and `cosine`, as a fraction of the peak.");
  }
  {
    Declare key(sections, "freeze", "When the variance is frozen and compression begins (T_w).");
    key.number_or_word("step", in.freeze.step, 0, {"auto"},
                       "T_w: the last step of the Adam phase, less than `train.steps`. `auto` freezes at the first "
                       "step, not before the learning rate's rise has ended, at which `criterion` holds, and at the "
                       "latest as `at_most` says.");
    key.choice("criterion", in.freeze.criterion, {{"two_sided", Criterion::two_sided}, {"paper", Criterion::paper}},
               "With r = ‖v_t‖₁ / ‖v_{t−Δ}‖₁ and Δ = round(1/(1−β2)): `two_sided` asks min(r, 1/r) ≥ threshold, "
               "`paper` asks r ≥ threshold, which holds from the start while v still grows from zero.");
    key.real("threshold", in.freeze.threshold, 0, 1, "How near to 1 the ratio must be.", false);
    key.real("at_most", in.freeze.at_most, 0, 1,
             "With `step: auto`: the variance is frozen at the latest at this share of `train.steps`, rounded up, but "
             "not before the learning rate's rise has ended, and before the last step. The paper's warm-up is 15 to "
             "20 % of a run.",
             false);
    key.text("from", in.freeze.from,
             "Checkpoint of an earlier run of the same model (`checkpoint.every`, `run.dump_parameters`): its variance "
             "is what "
             "this run starts with, so `step` may be 0, no phase of Adam at all. Empty starts at 0.");
  }
  {
    Declare key(sections, "compression", "The compressor of every algorithm that has a compressed allreduce.");
    key.choice("compressor", in.compression.compressor,
               {{"sign", Compressor::sign},
                {"sign_ternary", Compressor::sign_ternary},
                {"column", Compressor::column},
                {"nbit", Compressor::nbit}},
               "`sign`: one bit and a scale for each group; `sign_ternary`: exact zeros stay zero, two bits; `column`: "
               "one bit and two values for each column of a matrix (1-bit SGD); `nbit`: `bits` bits.");
    key.choice(
        "scale", in.compression.scale, {{"l1", Scale::l1}, {"l2", Scale::l2}},
        "Magnitude of a group of N elements for `sign` and `sign_ternary`: `l1` ‖c‖₁/N (the paper), `l2` ‖c‖₂/√N "
        "(DeepSpeed); for `sign_ternary` N counts the elements that are not 0.");
    key.number_or_word("group", in.compression.group, 32, {"vector", "chunk", "tensor"},
                       "What shares one scale: this rank's whole vector and each server's chunk (`vector`), each "
                       "destination chunk (`chunk`), each named tensor split at chunk borders (`tensor`), or blocks of "
                       "this many elements, counted from each chunk's start. `column` has groups of its own.");
    key.integer("bits", in.compression.bits, 2, 16, "Bits of an element for the compressor `nbit`.");
    key.choice("reconstruction", in.compression.reconstruction,
               {{"mean", Reconstruction::mean}, {"range", Reconstruction::range}},
               "The two values of a column for the compressor `column`: `mean` of its negative and of its other "
               "elements, or a quarter and three quarters of the way from its least to its greatest (`range`).");
    key.flag("error_feedback", in.compression.error_feedback,
             "Add to each vector what its last compression lost, on both sides; `false` drops the residuals, which is "
             "an experiment on why they are there.");
    key.flag("scale_residual_by_lr", in.compression.scale_residual_by_lr,
             "Multiply what is added by γ_{t−1}/γ_t on both sides, so that what one step's update lost enters the next "
             "one's as large as it was, for every schedule. For `onebit_adam`, `ef_momentum_sgd`, `double_squeeze` and "
             "`onebit_sgd`, whose parameters are linear in what is compressed.");
  }
  {
    Declare key(sections, "zero_one",
                "Algorithm `zero_one_adam`: when it exchanges what (docs/reference/algorithms.md).");
    key.integer("variance_freeze_step", in.zero_one.variance_freeze_step, 1, unbounded,
                "F: the last step that may update the variance; local steps begin behind it. DeepSpeed: "
                "`var_freeze_step`.");
    key.integer("variance_update_scaler", in.zero_one.variance_update_scaler, 1, unbounded,
                "κ: the interval between two variance updates, 1 at first, doubles after this many of them. DeepSpeed: "
                "`var_update_scaler`.");
    key.integer("local_step_scaler", in.zero_one.local_step_scaler, 1, unbounded,
                "α: the interval between two exchanges, 1 at first, doubles every this many steps behind F.");
    key.integer("local_step_clipper", in.zero_one.local_step_clipper, 1, unbounded,
                "H: the greatest interval between two exchanges; 1 for no local steps.");
  }
  {
    Declare key(sections, "lamb",
                "Algorithm `onebit_lamb`: the learning rate of each tensor (docs/reference/algorithms.md).");
    key.real("min_coefficient", in.lamb.min_coefficient, 0, infinity,
             "Least ratio of a tensor's norm to its update's. DeepSpeed: `min_coeff`.");
    key.real("max_coefficient", in.lamb.max_coefficient, 0, infinity,
             "Greatest ratio of a tensor's norm to its update's. DeepSpeed: `max_coeff`.", false);
    key.real("coefficient_beta", in.lamb.coefficient_beta, 0, 0.999999,
             "Decay of the ratio's average in the warm-up, with which compression starts. DeepSpeed: `coeff_beta`.");
    key.real("factor_min", in.lamb.factor_min, 0, 1, "Least factor on that average while compressing.", false);
    key.real("factor_max", in.lamb.factor_max, 1, infinity, "Greatest factor on that average while compressing.");
    key.real("factor_threshold", in.lamb.factor_threshold, 0, 1,
             "Greatest relative change of the factor from one step to the next.");
  }
  {
    Declare key(sections, "checkpoint", "Checkpoints and restart (docs/guide/checkpoint.md).");
    key.integer("every", in.checkpoint.every, 0, unbounded,
                "Steps between two checkpoints; 0 writes one only when SIGTERM or SIGUSR1 asks the run to stop.");
    key.text(
        "directory", in.checkpoint.directory,
        "Directory for them; a relative name is taken inside `run.output`; made if missing. A run that does not go on "
        "from the newest one there writes into a subdirectory, line_2, line_3, …, so that no other run's are lost.");
    key.integer("keep", in.checkpoint.keep, 1, unbounded,
                "How many of the last ones are kept. Those of other runs always are.");
    key.flag(
        "background", in.checkpoint.background,
        "`false`: the run waits until one is on the disk. `true`: it goes on meanwhile, from copies that each rank "
        "makes in host memory (docs/guide/checkpoint.md says how much, and when that is worth it; where half of what "
        "is free is less, the run waits for the rest). The files are the same.");
    key.text(
        "restart", in.checkpoint.restart,
        "`none`: begin at step 1. `auto`: go on from the newest checkpoint in `directory` that is not damaged (in its "
        "subdirectory with the greatest number, where it has any), and begin at step 1 where there is none. Else the "
        "file to go on from.");
    key.text(
        "initialize_from", in.checkpoint.initialize_from,
        "Checkpoint of an earlier run: step 1 begins with its parameters, and all else anew (a next phase of training, "
        "fine-tuning; docs/guide/checkpoint.md says which models fit). `freeze.from` takes its variance too, of the "
        "same model. Empty begins with those of the workload.");
  }
  {
    Declare key(sections, "comm", "Communication.");
    key.choice("transport", in.comm.transport,
               {{"auto", Transport::automatic},
                {"host", Transport::host},
                {"device", Transport::device},
                {"nccl", Transport::nccl}},
               "How GPU memory is exchanged: staged through host buffers for MPI, handed to MPI directly (CUDA-aware "
               "MPI), or by NCCL, with one rank to a GPU. `auto` takes `device` where the MPI library says that it "
               "can and does so when it is tried, else `host`. `auto`, `host` and `device` are the same on host "
               "backends.");
    key.choice("collective", in.comm.collective, collective_words,
               "How averages go: `flat` among all ranks; `hierarchical` densely inside each host first, which must all "
               "have the same number of ranks, and then between hosts; `dense` leaves compression out, for networks on "
               "which it does not pay. `auto` measures them at the start and takes the fastest.");
    key.choice("exchange", in.comm.exchange, {{"collective", Exchange::collective}, {"pairwise", Exchange::pairwise}},
               "How ranks exchange: `collective` calls MPI_Allreduce, MPI_Alltoall and MPI_Allgather; `pairwise` posts "
               "messages between all pairs of ranks at once and sums in the order of the ranks, which fills slow "
               "networks better. Without effect on transport `nccl`.");
    key.integer("message_bytes", in.comm.message_bytes, 1024, 1 << 30,
                "Longest message of `pairwise`. Below the length up to which the MPI library sends at once (64 KiB for "
                "Open MPI over TCP) both directions of a link are used.");
    key.integer(
        "bucket_bytes", in.comm.bucket_bytes, 0, 1 << 30,
        "Where an algorithm averages the gradient densely, it does so in buckets of this size while the backward "
        "pass goes on, by a thread of its own, which wants a core; on GPUs a bucket is staged through host "
        "memory. 0 averages the whole gradient after the backward pass, as do models of one bucket and transport "
        "`nccl`.");
  }
  {
    Declare key(sections, "workload", "What gives a loss and a gradient.");
    key.choice("kind", in.workload.kind, workload_words,
               "`transformer` trains a language model on text; `classification` trains the same with a head that tells "
               "labelled texts apart (docs/guide/checkpoint.md, fine-tuning); `quadratic` is a noisy convex quadratic "
               "with known optimum; `replay` "
               "reads gradients from HDF5; `synthetic` has a fixed gradient that costs nothing.");
    key.real("compute_time_ms", in.workload.compute_time_ms, 0, infinity,
             "Time that a step's gradient takes: the rank computes and sleeps for the rest, for experiments in which "
             "ranks share cores (docs/guide/network.md). 0 does not sleep.");
    key.integer("parameters", in.workload.parameters, 1, unbounded, "Parameters of workload `synthetic`.");
  }
  {
    Declare key(sections, "model", "Workloads `transformer` and `classification`: the shape.");
    key.choice("architecture", in.model.architecture, {{"bert", Architecture::bert}, {"gpt", Architecture::gpt}},
               "`bert`: post-LayerNorm encoder, masked language model; `gpt`: pre-LayerNorm decoder, causal.");
    std::vector<std::string> preset_names;
    for (const Preset& preset : presets) preset_names.push_back(preset.name);
    key.word("preset", in.model.preset, preset_names, "Shape by name; the next five keys change it where not 0.");
    key.integer("layers", in.model.layers, 0, 1000, "Layers L.");
    key.integer("hidden", in.model.hidden, 0, 65536, "Width H of the residual stream.");
    key.integer("heads", in.model.heads, 0, 1024, "Attention heads; divides `hidden`.");
    key.integer("feed_forward", in.model.feed_forward, 0, 262144, "Width of the feed-forward layer.");
    key.integer("positions", in.model.positions, 0, 1048576, "Rows of the position embedding.");
    key.integer("vocabulary", in.model.vocabulary, 0, 16777216,
                "Rows of the word embedding, at least the tokeniser's; 0 takes the tokeniser's.");
    key.integer("sequence", in.model.sequence, 1, 65536, "Tokens T of a sample; at most `positions`.");
    key.choice("pooling", in.model.pooling, {{"position", Pooling::position}, {"mean", Pooling::mean}},
               "Workload `classification`: what of a sample the head reads. `position`: the first token of `bert`, the "
               "text's last one of `gpt`; `mean`: the mean over all of its tokens.");
    key.real("dropout", in.model.dropout, 0, 0.9, "Probability of dropping an activation while training.");
    key.real(
        "initializer_range", in.model.initializer_range, 0, infinity,
        "Standard deviation of the initial weights, whose mean is 0; that of embeddings is always 0.02. BERT's 0.02 "
        "suits `hidden` 768; a narrower model needs more, about 0.55/√`hidden`.",
        false);
    key.choice(
        "precision", in.model.precision,
        {{"fp32", Precision::fp32}, {"tf32", Precision::tf32}, {"bf16", Precision::bf16}},
        "Factors of the products with weights: `bf16` and `tf32` round them, and sums and parameters stay in float. "
        "On the host, `bf16` needs oneDNN and AVX512_BF16, and there is no `tf32`.");
  }
  {
    Declare key(
        sections, "data",
        "Workload `transformer`: the text. Workload `classification`: the text that the tokeniser is made from, "
        "which must be that of the pre-training, and the labelled texts.");
    key.list("corpus", in.data.corpus, "Text files, read one after the other. Relative to the working directory.");
    key.choice("tokenizer", in.data.tokenizer,
               {{"bytes", Tokenizer::bytes},
                {"characters", Tokenizer::characters},
                {"sentencepiece", Tokenizer::sentencepiece}},
               "`bytes`: 256 bytes and [MASK]; `characters`: the bytes that occur in the text, and [MASK] for `bert`; "
               "`sentencepiece`: subwords, trained on the training text on first use.");
    key.integer("vocabulary", in.data.vocabulary, 300, 16777216,
                "Tokens of the `sentencepiece` tokeniser, [MASK] included.");
    key.text("cache", in.data.cache, "Directory for trained tokenisers; empty takes `run.output`.");
    key.real("validation_fraction", in.data.validation_fraction, 0, 0.9,
             "Share of the text, at its end, that is kept for validation.", false);
    key.text("labelled", in.data.labelled,
             "Workload `classification`: training file, each line a label, a tab and a text.");
    key.text("labelled_validation", in.data.labelled_validation,
             "Workload `classification`: validation file of the same form, with other texts.");
  }
  {
    Declare key(sections, "quadratic",
                "Workload `quadratic`: f(x) = ½ Σ h_j (x_j − 1)², h spread log-evenly over [1/condition, 1], x₀ = 0.");
    key.integer("dimension", in.quadratic.dimension, 1, unbounded, "Parameters.");
    key.real("condition", in.quadratic.condition, 1, infinity, "Largest over smallest curvature.");
    key.real("noise", in.quadratic.noise, 0, infinity,
             "Standard deviation of the gradient's normal noise for one sample, in each coordinate.");
  }
  {
    Declare key(sections, "replay", "Workload `replay`: gradients from a file.");
    key.text("file", in.replay.file,
             "HDF5 file with dataset `gradients` (steps, ranks, parameters), float or double; optionally `initial` "
             "(parameters) and the tensor table `tensors/names`, `tensors/sizes`, `tensors/decays`.");
  }
  {
    Declare key(
        sections, "bench",
        "`onebit bench collective`: averages over ranks; `onebit bench kernels`: every kernel of a training step "
        "(docs/develop/performance.md). Both are checked and timed.");
    key.words("collectives", in.bench.collectives,
              {"mpi_allreduce", "mpi_reduce_scatter", "pairwise_allreduce", "hierarchical_allreduce", "nccl_allreduce",
               "mpi_compressed", "pairwise_compressed", "hierarchical_compressed", "nccl_compressed"},
              "What `collective` times: the dense average and the compressed allreduce (sign, l1, one scale a vector), "
              "each by the MPI library's collectives, by pairwise messages (`comm.exchange`), by host "
              "(`comm.collective`) and by NCCL (backend `cuda`); `mpi_reduce_scatter` is MPI_Reduce_scatter and "
              "MPI_Allgatherv on the host.");
    key.integer("smallest", in.bench.smallest, 1, unbounded,
                "Elements of the shortest vector; of `kernels`, the optimiser's parameters.");
    key.integer("largest", in.bench.largest, 1, unbounded, "Elements of the longest vector.");
    key.integer("factor", in.bench.factor, 2, unbounded, "From one length to the next.");
    key.integer("warmup", in.bench.warmup, 0, unbounded, "Repetitions that are not timed, after the checked one.");
    key.integer("repetitions", in.bench.repetitions, 1, unbounded, "Repetitions that are timed.");
  }
  {
    Declare key(sections, "predict",
                "`onebit predict`: a step on networks one does not have (docs/reference/prediction.md).");
    key.real("parameters", in.predict.parameters, 1, 1e13, "Parameters d of the model.");
    key.integer(
        "bytes_per_element", in.predict.bytes_per_element, 1, 8,
        "Bytes of an element in the dense average: 4, or 2 for half precision. The compressed one sends a bit.");
    key.integers("ranks", in.predict.ranks, 2, 65536,
                 "Rank counts; those above `ranks_per_host` are multiples of it, smaller ones are on one host.");
    key.integer("ranks_per_host", in.predict.ranks_per_host, 1, 1024, "Ranks that share a host's link.");
    key.reals("bandwidths_gbit_per_s", in.predict.bandwidths_gbit_per_s, 0, 1e6,
              "Networks: line rate of a host's link in each direction.", false);
    key.real("line_rate_share", in.predict.line_rate_share, 0, 1,
             "Share of the line rate that messages reach, headers and pauses taken off; collectives with "
             "`measurements` have their own.",
             false);
    key.real("latency_us", in.predict.latency_us, 0, 1e9,
             "α: from a message's sending to its arrival on another host.");
    key.real("message_overhead_us", in.predict.message_overhead_us, 0, 1e9,
             "Time of a rank's processor for each message that it sends.");
    key.real("burst_kbyte", in.predict.burst_kbyte, 0, 1e9,
             "What an idle link passes at once before its rate holds (a token bucket, as of tc and of some clouds); in "
             "measurements and predictions.");
    key.real("inside_bandwidth_gbyte_per_s", in.predict.inside_bandwidth_gbyte_per_s, 0, 1e9,
             "What a rank sends to ranks of its own host, while it receives as much.", false);
    key.real("inside_latency_us", in.predict.inside_latency_us, 0, 1e9, "α inside a host.");
    key.real("memory_bandwidth_gbyte_per_s", in.predict.memory_bandwidth_gbyte_per_s, 0, 1e9,
             "Of a rank, for its own work: reduction, compression, average, decompression.", false);
    key.real("forward_ms", in.predict.forward_ms, 0, 1e9, "Forward pass of a step.");
    key.real("backward_ms", in.predict.backward_ms, 0, 1e9, "Backward pass of a step, without communication.");
    key.real("update_ms", in.predict.update_ms, 0, 1e9, "The optimiser's own work in a step.");
    key.integer("samples_per_rank", in.predict.samples_per_rank, 1, unbounded,
                "Samples of a rank in a step, for the throughput.");
    key.integer("overlap_buckets", in.predict.overlap_buckets, 0, 100000,
                "Equal parts in which the dense average goes on during the backward pass; 0 averages behind it. The "
                "compressed average needs the whole momentum and is never overlapped.");
    key.words("collectives", in.predict.collectives,
              {"ring", "tree", "rabenseifner", "pairwise", "hierarchical", "compressed", "pairwise_compressed",
               "hierarchical_compressed"},
              "What is compared (docs/reference/prediction.md).");
    key.list(
        "measurements", in.predict.measurements,
        "collective.csv files of `onebit bench collective`. Each measured collective is fitted, and predicted with "
        "its own numbers, beside those of `collectives`.",
        true);
    key.real("measured_gbit_per_s", in.predict.measured_gbit_per_s, 0, 1e6,
             "Line rate of the links of `measurements` whose rows do not say it; 0 for rows that do.");
    key.integer(
        "shared_cores", in.predict.shared_cores, 0, 1 << 20,
        "Cores that all hosts together have where hosts are namespaces of one machine: a rank's work then takes "
        "ranks / cores as long, and messages wait for their rank's turn, in measurements and predictions. 0: "
        "each rank has a core of its own.");
    key.integer("simulate_up_to", in.predict.simulate_up_to, 0, 512,
                "Most ranks for which each message is simulated too, as a check of the closed form.");
  }
  {
    Declare key(sections, "faults",
                "A fault on purpose, to rehearse what a run says and does then (docs/guide/faults.md).");
    key.choice(
        "kind", in.faults.kind,
        {{"none", Fault::none}, {"nan", Fault::nan}, {"desync", Fault::desync}, {"hang", Fault::hang}},
        "`nan`: an element of the rank's gradient is NaN; `desync`: a parameter of the rank is another than on the "
        "others; `hang`: the rank's gradient never ends.");
    key.integer("rank", in.faults.rank, 0, unbounded, "The rank that fails.");
    key.integer("step", in.faults.step, 0, unbounded,
                "The step in which it does. 0, for `hang` alone: while the run is set up.");
  }
  return sections;
}

std::string Input::where(const std::string& path) const {
  const auto found = given.find(path);
  return found != given.end() ? found->second : file + " (" + path + " has its default)";
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

void check(const Input& in, int ranks) {
  const auto refuse = [&](const std::string& path, const std::string& what, const std::string& remedy) {
    throw InputError(in.where(path), what, remedy);
  };
  const std::int64_t parts = std::int64_t{ranks} * in.train.accumulation;
  // Gradients of a file have no samples.
  if (in.workload.kind != WorkloadKind::replay && in.train.batch % parts != 0)
    refuse("train.batch",
           "train.batch is " + std::to_string(in.train.batch) + ", which is not a multiple of " +
               std::to_string(ranks) + " ranks × " + std::to_string(in.train.accumulation) + " accumulation rounds",
           "set train.batch to a multiple of " + std::to_string(parts) + ", or change the number of ranks");
  if (in.schedule.warmup_steps > in.train.steps)
    refuse("schedule.warmup_steps", "the learning rate's rise is longer than the run",
           "lower schedule.warmup_steps to at most train.steps (" + std::to_string(in.train.steps) + ")");
  // A run of one step is a trial: nothing could be compressed in it, whatever the warm-up is.
  if (freezes(in.optimizer.algorithm) && in.train.steps > 1 && latest_freeze(in) >= in.train.steps) {
    const bool is_auto = !in.freeze.step.word.empty();
    refuse(
        is_auto ? "schedule.warmup_steps" : "freeze.step",
        is_auto ? "freeze.step is auto, which freezes the variance when the learning rate's rise has ended: no step "
                  "would be compressed"
                : "the variance would not be frozen before the run's last step: no step would be compressed",
        std::string("lower ") + (is_auto ? "schedule.warmup_steps" : "freeze.step") + " to less than train.steps (" +
            std::to_string(in.train.steps) + "), raise train.steps, or use algorithm adam");
  }
  if (in.lamb.min_coefficient > in.lamb.max_coefficient)
    refuse("lamb.min_coefficient", "lamb.min_coefficient is greater than lamb.max_coefficient", "swap the two");
  if (in.optimizer.algorithm == "onebit_lamb" && in.freeze.step.word.empty() && in.freeze.step.number == 0)
    refuse("freeze.step", "1-bit LAMB learns its tensors' learning rates in the warm-up, and there is none",
           "give at least a step, better several times 1/(1 − lamb.coefficient_beta)");
  if (!in.freeze.from.empty() && (in.optimizer.algorithm == "onebit_lamb" ||
                                  (in.optimizer.algorithm != "adam" && !freezes(in.optimizer.algorithm))))
    refuse("freeze.from", "algorithm " + in.optimizer.algorithm + " does not start from a variance",
           "leave out freeze.from, or use algorithm onebit_adam");
  const bool is_sgd =
      in.optimizer.algorithm.find("sgd") != std::string::npos || in.optimizer.algorithm == "double_squeeze";
  if (is_sgd && in.optimizer.bias_correction)
    refuse("optimizer.bias_correction", "algorithm " + in.optimizer.algorithm + " has no bias correction",
           "leave out optimizer.bias_correction, or use an algorithm with a variance");
  if (in.compression.group.word.empty() && in.compression.group.number % 32 != 0)
    refuse("compression.group",
           "compression.group is " + std::to_string(in.compression.group.number) +
               ", which is not a whole number of 32-bit sign words",
           "give a multiple of 32, or vector, chunk, tensor");
  if (in.compression.scale_residual_by_lr) {
    if (!scales_residual_by_lr(in.optimizer.algorithm))
      refuse("compression.scale_residual_by_lr",
             "residuals of algorithm " + in.optimizer.algorithm +
                 " do not cancel when they are multiplied by a quotient of learning rates",
             "leave it out, or use algorithm onebit_adam, ef_momentum_sgd, double_squeeze or onebit_sgd");
    if (!in.compression.error_feedback)
      refuse("compression.scale_residual_by_lr", "without error feedback there are no residuals to multiply",
             "leave it out, or set compression.error_feedback to true");
  }
  if (in.comm.transport == Transport::nccl && in.run.backend != Backend::cuda)
    refuse("comm.transport",
           "NCCL exchanges the memory of GPUs, and backend " + to_string(in.run.backend) + " has none",
           "set run.backend to cuda, or use transport auto, host or device");
  check_prediction(in);
  if (in.faults.kind != Fault::none && in.faults.rank >= ranks)
    refuse("faults.rank", "the run has no rank " + std::to_string(in.faults.rank) + " that could fail",
           "give one below " + std::to_string(ranks));
  if (in.faults.step == 0 && (in.faults.kind == Fault::nan || in.faults.kind == Fault::desync))
    refuse("faults.step", "there is no step 0 whose gradient or parameters could be wrong",
           "give 1 or more, or kind hang");
  if (in.checkpoint.directory.empty())
    refuse("checkpoint.directory", "checkpoint.directory is empty", "name a directory, or leave it out");
  if (in.checkpoint.restart.empty())
    refuse("checkpoint.restart", "checkpoint.restart is empty", "give none, auto or a file");
  switch (in.workload.kind) {
    case WorkloadKind::classification:
      for (const auto& [path, file] : {std::make_pair("data.labelled", &in.data.labelled),
                                       std::make_pair("data.labelled_validation", &in.data.labelled_validation)})
        if (file->empty())
          refuse(path, "workload classification needs labelled texts to train on and others to validate with",
                 std::string("set ") + path + " to a file of which each line is a label, a tab and a text");
      [[fallthrough]];
    case WorkloadKind::transformer:
      if (in.model.hidden % in.model.heads != 0)
        refuse("model.heads",
               std::to_string(in.model.heads) + " heads do not divide hidden width " + std::to_string(in.model.hidden),
               "choose model.heads so that it divides model.hidden");
      if (in.model.sequence > in.model.positions)
        refuse("model.sequence",
               "a sample of " + std::to_string(in.model.sequence) + " tokens has more than " +
                   std::to_string(in.model.positions) + " positions",
               "lower model.sequence or raise model.positions");
      break;
    case WorkloadKind::replay:
      if (in.replay.file.empty())
        refuse("replay.file", "workload replay needs a file of gradients", "set replay.file to an HDF5 file");
      break;
    case WorkloadKind::quadratic:
    case WorkloadKind::synthetic:
      break;
  }
}

void check_prediction(const Input& in) {
  if (in.run.output.empty()) throw InputError(in.where("run.output"), "run.output is empty", "name a directory");
  const int per_host = in.predict.ranks_per_host;
  for (const std::int64_t ranks : in.predict.ranks)
    if (ranks > per_host && ranks % per_host != 0)
      throw InputError(in.where("predict.ranks"),
                       "predict.ranks holds " + std::to_string(ranks) + ", which do not fill hosts of " +
                           std::to_string(per_host) + " ranks",
                       "give multiples of predict.ranks_per_host, or at most that");
}

std::string resolved(Input input) {
  std::ostringstream text;
  text << "# Resolved input of " << input.file << ". Keys that were not given are marked as defaults.\n";
  for (const Section& section : keys(input)) {
    text << section.name << ":\n";
    for (const Key& key : section.keys)
      text << "  " << key.name << ": " << key.print() << (input.given.count(key.path()) ? "" : "  # default") << "\n";
  }
  return text.str();
}

std::vector<std::string> differences(Input one, Input other) {
  // Whole sections, and single keys, that leave the steps' mathematics as they are.
  const std::vector<std::string> free = {"run.",
                                         "checkpoint.",
                                         "comm.transport",
                                         "comm.exchange",
                                         "comm.message_bytes",
                                         "comm.bucket_bytes",
                                         "workload.compute_time_ms",
                                         "bench.",
                                         "predict.",
                                         "faults.",
                                         "train.steps",
                                         "train.accumulation",
                                         "train.validate_every",
                                         "train.validation_batch",
                                         "freeze.from",
                                         "data.cache"};
  const auto is_free = [&](const std::string& path) {
    return path != "run.seed" &&
           std::any_of(free.begin(), free.end(), [&](const std::string& start) { return path.rfind(start, 0) == 0; });
  };
  std::vector<std::string> found;
  const std::vector<Section> all = keys(one), others = keys(other);
  for (std::size_t section = 0; section < all.size(); ++section)
    for (std::size_t key = 0; key < all[section].keys.size(); ++key) {
      const std::string path = all[section].keys[key].path();
      const std::string value = all[section].keys[key].print(), other_value = others[section].keys[key].print();
      if (!is_free(path) && value != other_value) found.push_back(path + " (" + value + ", " + other_value + ")");
    }
  return found;
}

std::string documentation() {
  Input defaults;
  std::ostringstream text;
  text << "# Input\n\n"
          "<!-- Generated by `onebit list --input-keys`; a test fails when it is not current. -->\n\n"
          "A run is described by one YAML file of sections and keys. Every key has a default. Unknown keys, wrong "
          "types\n"
          "and impossible combinations are refused with file, line and column. `--set section.key=value` overrides a\n"
          "key on the command line, and the complete input, defaults included, is written to `input.resolved.yaml`\n"
          "beside the results.\n";
  for (const Section& section : keys(defaults)) {
    text << "\n## " << section.name << "\n\n"
         << section.meaning << "\n\n"
         << "| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n";
    for (const Key& key : section.keys)
      text << "| `" << key.name << "` | " << key.type << " | `" << key.print() << "` | " << key.allowed << " | "
           << key.meaning << " |\n";
  }
  return text.str();
}

}  // namespace onebit::config
