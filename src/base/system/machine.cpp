#include "base/system/machine.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace onebit {
namespace {

/// "model name" of /proc/cpuinfo; the architecture where there is none, as on ARM.
std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (const std::size_t colon = line.find(": "); line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  utsname system{};
  return ::uname(&system) == 0 ? system.machine : "unknown processor";
}

}  // namespace

std::string host_machine() {
  if (const char* const words = std::getenv("ONEBIT_MACHINE"); words != nullptr && *words != '\0') return words;
  return processor() + ", " + std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)) + " cores";
}

}  // namespace onebit
