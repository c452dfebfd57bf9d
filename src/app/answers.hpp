#pragma once
/// \file answers.hpp
/// What the short commands print, and the kernels' benchmark.

#include <cstdio>
#include <string>

#include "app/start/on_backend.hpp"
#include "base/choices.hpp"
#include "bench/bench.hpp"
#include "config/algorithms.hpp"
#include "data/tokenizer.hpp"
#include "io/hdf5.hpp"
#include "train/checkpoint/checkpoint.hpp"
#include "workload/precision.hpp"
#include "workload/transformer.hpp"

namespace onebit::app {

/// Times the kernels in the precision that `model.precision: auto` takes here, and with the tokeniser's vocabulary.
/// Collective.
template <class Exec>
FiguresOfMerit bench_kernels(const Exec& exec, config::Input input, const Communicator& world) {
  input.model.precision = workload::choose_precision(exec, input, world).precision;
  world.collectively([&] { input.model.vocabulary = workload::vocabulary(input); });
  return bench::kernels(exec, input, world);
}

/// Verifies a checkpoint. \returns the first line of its description
inline std::string first_line(const std::string& path) {
  const std::string description = train::describe_checkpoint(path);
  return description.substr(0, description.find('\n') + 1);
}

template <class Names>
void print(const char* title, const Names& names) {
  std::printf("%s:", title);
  for (const auto& name : names) std::printf(" %s", std::string(name).c_str());
  std::printf("\n");
}

/// `onebit list`: what this build has.
inline void list() {
  print("backends", backends());
  print("algorithms", config::algorithm_names());
  print("workloads", names(WorkloadKind{}));
  print("compressors", names(CompressorKind{}));
  std::printf("%s", bench::features().c_str());
  std::printf("libraries:%s%s\n", data::has_sentencepiece() ? " SentencePiece" : "", has_hdf5() ? " HDF5" : "");
}

}  // namespace onebit::app
