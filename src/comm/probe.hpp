#pragma once
/// \file probe.hpp
/// Whether a transport works with the memory that it is handed, found out by exchanges of known values.

#include <string>

#include "base/mpi.hpp"
#include "comm/transport.hpp"

namespace onebit::comm {

/// Hears of MPI's errors on a communicator, which end the run without this. One at a time.
class MpiErrors {
public:
  explicit MpiErrors(const Communicator& communicator);
  ~MpiErrors();
  MpiErrors(const MpiErrors&) = delete;
  MpiErrors& operator=(const MpiErrors&) = delete;

  /// The library's words for the first one; empty where there was none.
  const std::string& first() const;

private:
  MPI_Comm m_comm;
  MPI_Errhandler m_before = MPI_ERRHANDLER_NULL, m_handler = MPI_ERRHANDLER_NULL;
};

/// Exchanges short and long vectors by every collective of `transport`, which counts them as its traffic. Collective.
/// \param errors on the communicator that `transport` uses
/// \returns in a few words, the same on all ranks, what did not come out right on the lowest rank of those where
///          something did not; empty where all did
template <class Exec>
std::string fault_of(const Exec& exec, const Communicator& communicator, Transport<Exec>& transport,
                     const MpiErrors& errors);

}  // namespace onebit::comm
