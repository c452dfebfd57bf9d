#pragma once
/// \file probe.hpp
/// Checks with known values whether a transport works on the memory that it is given.

#include <string>

#include "base/mpi.hpp"
#include "comm/transport/transport.hpp"

namespace onebit::comm {

/// Keeps MPI's errors on a communicator, which would otherwise end the run. Only one object may exist at a time.
class MpiErrors {
public:
  explicit MpiErrors(const Communicator& communicator);
  ~MpiErrors();
  MpiErrors(const MpiErrors&) = delete;
  MpiErrors& operator=(const MpiErrors&) = delete;

  /// The library's text of the first error; empty if there was none.
  const std::string& first() const;

private:
  MPI_Comm m_comm;
  MPI_Errhandler m_before = MPI_ERRHANDLER_NULL, m_handler = MPI_ERRHANDLER_NULL;
};

/// Exchanges short and long vectors by every collective of `transport`, which counts them as its traffic. Collective.
/// \param errors on the communicator that `transport` uses
/// \returns what went wrong on the lowest rank with a fault, the same text on all ranks; empty if nothing went wrong
template <class Exec>
std::string fault_of(const Exec& exec, const Communicator& communicator, Transport<Exec>& transport,
                     const MpiErrors& errors);

}  // namespace onebit::comm
