#pragma once
/// \file scratch.hpp
/// A directory for the files of a test.

#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/mpi.hpp"

namespace onebit::test {

/// A directory that all ranks share, removed at the end.
class Scratch {
public:
  explicit Scratch(const std::filesystem::path& parent = std::filesystem::temp_directory_path())
      : path(m_world.broadcast((parent / ("onebit_checkpoint_test_" + std::to_string(::getpid()))).string(), 0)) {
    if (m_world.rank() == 0) std::filesystem::create_directories(path);
    m_world.barrier();
  }
  ~Scratch() {
    m_world.barrier();
    if (m_world.rank() == 0) std::filesystem::remove_all(path);
  }
  std::string operator/(const std::string& name) const { return (path / name).string(); }

private:
  Communicator m_world;

public:
  const std::filesystem::path path;
};

}  // namespace onebit::test
