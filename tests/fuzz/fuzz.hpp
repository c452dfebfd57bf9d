#pragma once
/// \file fuzz.hpp
/// What the fuzzers share: a directory to write files into, and what a reader may do with bad input, which is to refuse
/// it.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.hpp"

namespace onebit::fuzz {

/// A directory of this process, in memory where the system has such, removed at the end.
inline const std::filesystem::path& scratch() {
  static const struct Scratch {
    Scratch() {
      const std::filesystem::path memory = "/dev/shm";
      path = (std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path()) /
             ("onebit_fuzz_" + std::to_string(::getpid()));
      std::filesystem::create_directories(path);
    }
    ~Scratch() { std::filesystem::remove_all(path); }
    std::filesystem::path path;
  } scratch;
  return scratch.path;
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Runs a reader. Anything but success and a refusal with status 2 ends the program, as what the fuzzer looks for.
template <class Read>
void refuses_or_reads(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.status() == ExitStatus::bad_input) return;
    std::fprintf(stderr, "not a refusal: %s\n", error.what());
    std::abort();
  }
}

/// Ends the program where what must hold does not.
inline void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

}  // namespace onebit::fuzz
