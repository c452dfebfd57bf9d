#pragma once
/// \file host.hpp
/// This host and the time, as files and messages name them.

#include <ctime>
#include <string>

#include "base/mpi.hpp"

namespace onebit {

/// The name of this host.
std::string host_name();

/// The hosts of all ranks.
struct Hosts {
  int count = 0;
  std::string names;  ///< by the lowest rank on each, with spaces between; "…" behind the first few of many
};
/// Collective.
Hosts hosts_of(const Communicator& communicator);

/// A time in UTC as ISO 8601 writes it: "2026-01-31T12:00:00Z".
std::string utc(std::time_t time);
inline std::string utc_now() { return utc(std::time(nullptr)); }

}  // namespace onebit
