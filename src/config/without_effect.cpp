/// \file without_effect.cpp
/// Which keys have an effect, by algorithm, workload, compressor and other keys.

#include <algorithm>
#include <iterator>

#include "config/checks.hpp"

namespace onebit::config {
namespace {

bool is_any(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const AlgorithmTraits& algorithm(const Input& in) { return traits(in.optimizer.algorithm); }

bool validates(const Input& in) { return has_batches(in) || in.workload.kind == WorkloadKind::quadratic; }
bool has_samples(const Input& in) { return in.workload.kind != WorkloadKind::replay; }
bool classifies(const Input& in) { return in.workload.kind == WorkloadKind::classification; }
bool trains_subwords(const Input& in) { return has_model(in) && in.data.tokenizer == TokenizerKind::sentencepiece; }
bool fails(const Input& in) { return in.faults.kind != Fault::none; }

bool has_variance(const Input& in) { return algorithm(in).variance != Variance::none; }
bool chooses_freeze(const Input& in) { return algorithm(in).freezes() && !in.freeze.step.word.empty(); }
bool multiplies_rate(const Input& in) {
  return in.schedule.decay == Decay::exponential || in.schedule.decay == Decay::step;
}

bool compresses(const Input& in) {
  return algorithm(in).compresses && in.compression.compressor != CompressorKind::none;
}
bool compresses_with(const Input& in, std::initializer_list<CompressorKind> kinds) {
  return compresses(in) && std::find(kinds.begin(), kinds.end(), in.compression.compressor) != kinds.end();
}

bool quantizes(const Input& in) {
  return has_quantizable_layers(in) && in.model.quantization.kind != QuantizationKind::none;
}
bool quantizes_gradients(const Input& in) {
  return quantizes(in) && in.model.quantization.kind != QuantizationKind::qat;
}

/// Keys, what they need to have an effect, and whether an input has it.
struct Rule {
  const char* keys;  ///< a path, or the begin of paths with its dot
  const char* need;  ///< "it is for …"
  bool (*is_met)(const Input&);
};

// clang-format off
const Rule rules[] = {
    {"run.threads", "a backend with threads, openmp",
     [](const Input& in) { return in.run.backend != Backend::serial || in.run.threads <= 1; }},
    {"train.batch", "a workload with samples; replay has none", has_samples},
    {"train.accumulation", "workloads transformer, classification, spans, images and dcgan", has_batches},
    {"train.validate_every", "a workload with a validation loss", validates},
    {"train.target_loss", "a workload with a validation loss", validates},
    {"train.validation_batch", "workloads transformer, classification, spans, images and dcgan", has_batches},
    {"optimizer.beta1", "an algorithm with a momentum",
     [](const Input& in) { return !is_any(in.optimizer.algorithm, {"sgd", "double_squeeze", "local_sgd"}); }},
    {"optimizer.beta2", "an algorithm with a variance, and Lion",
     [](const Input& in) { return has_variance(in) ||
                                  is_any(in.optimizer.algorithm, {"onebit_lion", "distributed_lion"}); }},
    {"optimizer.epsilon", "an algorithm with a variance", has_variance},
    {"optimizer.local_steps", "algorithms local_sgd, local_momentum_sgd, adam_lazy_variance and diloco",
     [](const Input& in) { return is_any(in.optimizer.algorithm,
                                         {"local_sgd", "local_momentum_sgd", "adam_lazy_variance", "diloco"}); }},
    {"optimizer.variance_bits", "algorithm adam_nbit_variance",
     [](const Input& in) { return in.optimizer.algorithm == "adam_nbit_variance"; }},
    {"optimizer.vote", "algorithm distributed_lion",
     [](const Input& in) { return in.optimizer.algorithm == "distributed_lion"; }},
    {"optimizer.clip_norm", "runs that clip (optimizer.clip) in steps that compress",
     [](const Input& in) { return in.optimizer.clip > 0 && algorithm(in).compresses; }},
    {"schedule.rate", "decay exponential or step", multiplies_rate},
    {"schedule.every", "decay exponential or step", multiplies_rate},
    {"freeze.step", "an algorithm that freezes its variance at T_w",
     [](const Input& in) { return algorithm(in).freezes(); }},
    {"freeze.at_most", "an algorithm that freezes its variance, with freeze.step auto", chooses_freeze},
    {"compression.compressor", "an algorithm that compresses",
     [](const Input& in) { return algorithm(in).compresses; }},
    {"compression.scale", "an algorithm that compresses, with compressor sign or sign_ternary",
     [](const Input& in) { return compresses_with(in, {CompressorKind::sign, CompressorKind::sign_ternary}); }},
    {"compression.group", "an algorithm that compresses, with a compressor that has groups: not none, not column",
     [](const Input& in) { return compresses(in) && in.compression.compressor != CompressorKind::column; }},
    {"compression.bits", "an algorithm that compresses, with compressor nbit",
     [](const Input& in) { return compresses_with(in, {CompressorKind::nbit}); }},
    {"compression.reconstruction", "an algorithm that compresses, with compressor column",
     [](const Input& in) { return compresses_with(in, {CompressorKind::column}); }},
    {"compression.", "an algorithm that compresses, with another compressor than none", compresses},
    {"zero_one.", "algorithm zero_one_adam",
     [](const Input& in) { return in.optimizer.algorithm == "zero_one_adam"; }},
    {"lamb.", "algorithm onebit_lamb", [](const Input& in) { return in.optimizer.algorithm == "onebit_lamb"; }},
    {"muon.", "algorithms muon and onebit_muon",
     [](const Input& in) { return traits(in.optimizer.algorithm).has(variance_of_tables); }},
    {"diloco.", "algorithm diloco", [](const Input& in) { return in.optimizer.algorithm == "diloco"; }},
    {"comm.exchange", "transports other than nccl",
     [](const Input& in) { return in.comm.transport != TransportKind::nccl; }},
    {"comm.message_bytes", "comm.exchange pairwise",
     [](const Input& in) { return in.comm.exchange == ExchangeKind::pairwise; }},
    {"workload.parameters", "workload synthetic",
     [](const Input& in) { return in.workload.kind == WorkloadKind::synthetic; }},
    {"model.precision", "workloads transformer, classification, spans, images and dcgan", has_batches},
    {"model.pooling", "workload classification", classifies},
    {"model.second_text", "architecture bert or workload classification or spans",
     [](const Input& in) { return classifies(in) || in.model.architecture == Architecture::bert; }},
    {"model.quantization.kind", "workloads transformer, classification, spans and images", has_quantizable_layers},
    {"model.quantization.bits", "quantised gradients (model.quantization.kind psq, scq or fqt)", quantizes_gradients},
    {"model.quantization.gradients_after", "quantised gradients (model.quantization.kind psq, scq or fqt)",
     quantizes_gradients},
    {"model.quantization.pruning", "model.quantization.kind fqt with more than one bit",
     [](const Input& in) { return quantizes(in) && in.model.quantization.kind == QuantizationKind::fqt &&
                                  in.model.quantization.bits > 1; }},
    {"model.quantization.group", "workload images with quantised gradients (model.quantization.kind psq, scq or fqt)",
     [](const Input& in) { return in.workload.kind == WorkloadKind::images && quantizes_gradients(in); }},
    {"model.quantization.", "quantised layers (model.quantization.kind)", quantizes},
    {"model.", "workloads transformer, classification and spans", has_model},
    {"data.labelled", "workload classification or spans", has_labelled_texts},
    {"data.labelled_validation", "workload classification or spans", has_labelled_texts},
    {"data.vocabulary", "tokenizer sentencepiece", trains_subwords},
    {"data.cache", "tokenizer sentencepiece", trains_subwords},
    {"data.", "workloads transformer, classification and spans", has_model},
    {"images.network", "workload images", [](const Input& in) { return in.workload.kind == WorkloadKind::images; }},
    {"images.norm_samples", "a network of images with batch normalisations; mixer has none", has_batch_norms},
    {"images.", "workloads images and dcgan", has_images},
    {"quadratic.", "workload quadratic", [](const Input& in) { return in.workload.kind == WorkloadKind::quadratic; }},
    {"replay.", "workload replay", [](const Input& in) { return in.workload.kind == WorkloadKind::replay; }},
    {"faults.rank", "a fault (faults.kind)", fails},
    {"faults.step", "a fault (faults.kind)", fails},
};
// clang-format on

bool is_for(const Rule& rule, const std::string& path) {
  const std::string keys = rule.keys;
  return keys.back() == '.' ? path.rfind(keys, 0) == 0 : path == keys;
}

}  // namespace

std::vector<std::string> without_effect(const Input& in) {
  std::vector<std::string> messages;
  for (const auto& [path, where] : in.given) {
    // The first rule for a key holds: those of a whole section come last.
    const auto rule =
        std::find_if(std::begin(rules), std::end(rules), [&key = path](const Rule& one) { return is_for(one, key); });
    if (rule != std::end(rules) && !rule->is_met(in))
      messages.push_back(where + ": " + path + " has no effect here: it is for " + rule->need);
  }
  return messages;
}

}  // namespace onebit::config
