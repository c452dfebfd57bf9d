#pragma once
/// \file build_info.hpp
/// Version of this build, for `--version` and the CSV files.

namespace onebit {

extern const char* const build_version;
/// `git describe --always --dirty` at compile time; empty outside a git checkout.
extern const char* const build_git;
extern const char* const build_compiler;

}  // namespace onebit
