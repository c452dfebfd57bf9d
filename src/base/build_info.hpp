#pragma once
/// \file build_info.hpp
/// What was built: for `--version` and the CSV files.

namespace onebit {

extern const char* const build_version;
/// The commit as `git describe --always --dirty` names it when this is compiled; empty outside a git checkout.
extern const char* const build_git;
extern const char* const build_compiler;

}  // namespace onebit
