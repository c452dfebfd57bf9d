#pragma once
/// \file run_figures.hpp
/// The figures of merit of a run, which are columns of run.csv, and the verdict on it
/// (docs/reference/output/figures_of_merit.md).

#include "config/input.hpp"
#include "io/figures.hpp"
#include "train/results/results.hpp"

namespace onebit::train {

/// The figures in a row of run.csv.
FiguresOfMerit run_figures(const Columns& columns);

/// Adds the verdict: the losses are finite, the final validation loss is at most `train.loss_at_most`, and the replicas
/// are equal. The step loop has compared these last: it ends a run in which they differ.
/// \param columns   a row of run.csv
/// \param validated whether there is a final validation loss, finite or not
void judge(FiguresOfMerit& figures, const Columns& columns, const config::Input& input, bool validated, int ranks);

}  // namespace onebit::train
