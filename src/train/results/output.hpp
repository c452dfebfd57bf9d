#pragma once
/// \file output.hpp
/// The directory of a run's results (`run.output`): what is refused before a run, and the files that it begins.

#include <filesystem>

#include "config/input.hpp"
#include "workload/workload.hpp"

namespace onebit::train {

std::filesystem::path resolved_input(const config::Input& input);
/// The file of `run.dump_parameters`; a relative name is taken inside `run.output`.
std::filesystem::path dump_file(const config::Input& input);
/// The name of a file until the run ends.
std::filesystem::path partial(const std::filesystem::path& path);

/// Makes the output directory. Refuses what could not be written at the end of the run. \throws InputError
void check_output(const config::Input& input);
/// Writes the resolved input under its partial name. Keeps what a run that ended early left, unless this run goes on
/// with it. \throws InputError
void begin_output(const config::Input& input, bool restarts);

/// Writes samples that the run generates as `samples.pgm`, or `samples.ppm` where they have colours. Does nothing
/// without a picture. \throws RunError
void write_picture(const config::Input& input, const workload::Picture& picture);

}  // namespace onebit::train
