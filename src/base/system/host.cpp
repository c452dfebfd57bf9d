#include "base/system/host.hpp"

#include <unistd.h>

namespace onebit {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

Hosts hosts_of(const Communicator& communicator) {
  constexpr int most = 8;
  const std::vector<int> lowest = communicator.hosts();
  Hosts hosts;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    if (lowest[rank] != rank || ++hosts.count > most) continue;
    hosts.names += (hosts.count > 1 ? " " : "") + communicator.broadcast(host_name(), rank);
  }
  if (hosts.count > most) hosts.names += " …";
  return hosts;
}

std::string utc(std::time_t time) {
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace onebit
