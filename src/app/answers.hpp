#pragma once
/// \file answers.hpp
/// What the short commands print, and the kernels' benchmark.

#include <cstdio>
#include <string>

#include "app/start/on_backend.hpp"
#include "base/choices.hpp"
#include "base/names.hpp"
#include "bench/bench.hpp"
#include "bench/tables.hpp"
#include "config/algorithms.hpp"
#include "data/tokenizer.hpp"
#include "io/hdf5.hpp"
#include "train/checkpoint/checkpoint.hpp"
#include "train/results/tables.hpp"
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

/// What this build has; or the page of a CSV file, if one is named. \throws InputError for a file without a page
inline std::string list(const std::string& csv_file) {
  if (csv_file.empty())
    return "backends: " + joined(backends(), " ") + "\nalgorithms: " + joined(config::algorithm_names(), " ") +
           "\nworkloads: " + joined(names(WorkloadKind{}), " ") +
           "\ncompressors: " + joined(names(CompressorKind{}), " ") + "\n" + bench::features() +
           "libraries:" + (data::has_sentencepiece() ? " SentencePiece" : "") + (has_hdf5() ? " HDF5" : "") + "\n";
  std::string files;
  for (const auto* const tables : {&train::tables, &bench::tables})
    for (const CsvTable* const table : *tables) {
      if (csv_file == table->file) return table->page();
      files += std::string(" ") + table->file;
    }
  throw InputError("--output-columns", "the program writes no " + csv_file, "name one of:" + files);
}

}  // namespace onebit::app
