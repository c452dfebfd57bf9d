/// \file mpi.cpp
/// Errors of MPI keep the default handler, which aborts all ranks with the library's message.

#include "base/mpi.hpp"

#include <algorithm>
#include <cstdlib>

#include "base/error.hpp"
#include "base/system/activity.hpp"

namespace onebit {
namespace {

/// Calls ask(communicator, &answer) with the ranks of `all` on this rank's host. \returns the answer. Collective.
template <class Ask>
int ask_host(MPI_Comm all, const Ask& ask) {
  const Activity activity("OneBit::base::hosts", waits_for_ranks);
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
  int answer = 0;
  ask(host, &answer);
  MPI_Comm_free(&host);
  return answer;
}

/// Tells Open MPI not to use its component sharedfp/sm, which keeps a file's shared pointer. Nothing here uses that
/// pointer. The component guards it by a semaphore of the host, which has the file's name without its directory
/// (Open MPI 4.1, sharedfp_sm_file_open.c). A job that is killed while it opens a file may leave the semaphore locked.
/// Each later job on this host that opens a file of this name then waits for ever. Other MPI libraries ignore the
/// variable. A value that the user has set stays.
void avoid_named_semaphores() { setenv("OMPI_MCA_sharedfp", "^sm", 0); }

/// What every rank of the MpiSession has; the least before there is one.
int thread_level = MPI_THREAD_SINGLE;

}  // namespace

MpiSession::MpiSession(int& argc, char**& argv) {
  avoid_named_semaphores();
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  // MPI 3.1, section 12.4.3: the levels are ascending numbers.
  MPI_Allreduce(&provided, &thread_level, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (thread_level < MPI_THREAD_FUNNELED)
    throw RunError("MPI", "the library does not offer MPI_THREAD_FUNNELED", "use an MPI built with thread support");
}

MpiSession::~MpiSession() { MPI_Finalize(); }

Communicator::Communicator(MPI_Comm parent) {
  if (parent == MPI_COMM_NULL) return;
  const Activity activity("OneBit::base::communicator", waits_for_ranks);
  MPI_Comm_dup(parent, &m_comm);
  MPI_Comm_rank(m_comm, &m_rank);
  MPI_Comm_size(m_comm, &m_size);
}

Communicator::Communicator(const Communicator& parent, int group, int order) {
  const Activity activity("OneBit::base::communicator", waits_for_ranks);
  MPI_Comm_split(parent.get(), group, order, &m_comm);
  MPI_Comm_rank(m_comm, &m_rank);
  MPI_Comm_size(m_comm, &m_size);
}

Communicator::~Communicator() {
  if (!is_without_mpi()) MPI_Comm_free(&m_comm);
}

int Communicator::local_rank() const { return is_without_mpi() ? 0 : ask_host(m_comm, MPI_Comm_rank); }

int Communicator::local_size() const { return is_without_mpi() ? 1 : ask_host(m_comm, MPI_Comm_size); }

std::vector<int> Communicator::hosts() const {
  if (is_without_mpi()) return {0};
  const Activity activity("OneBit::base::hosts", waits_for_ranks);
  const int lowest = ask_host(m_comm, [this](MPI_Comm host, int* answer) {
    *answer = m_rank;
    MPI_Allreduce(MPI_IN_PLACE, answer, 1, MPI_INT, MPI_MIN, host);
  });
  std::vector<int> all(m_size);
  MPI_Allgather(&lowest, 1, MPI_INT, all.data(), 1, MPI_INT, m_comm);
  return all;
}

void Communicator::barrier() const {
  if (is_without_mpi()) return;
  const Activity activity("OneBit::base::barrier", waits_for_ranks);
  MPI_Barrier(m_comm);
}

void Communicator::sum(double* values, int count) const {
  if (is_without_mpi()) return;
  const Activity activity("OneBit::base::sum", waits_for_ranks);
  MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_SUM, m_comm);
}

std::uint64_t Communicator::sum(std::uint64_t value) const {
  if (is_without_mpi()) return value;
  const Activity activity("OneBit::base::sum", waits_for_ranks);
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_UINT64_T, MPI_SUM, m_comm);
  return value;
}

std::vector<double> Communicator::gather(const double* values, int count) const {
  if (is_without_mpi()) return {values, values + count};
  const Activity activity("OneBit::base::gather", waits_for_ranks);
  std::vector<double> all(static_cast<std::size_t>(count) * m_size);
  MPI_Allgather(values, count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE, m_comm);
  return all;
}

std::string Communicator::broadcast(std::string text, int root, std::size_t largest_count) const {
  if (is_without_mpi()) return text;
  const Activity activity("OneBit::base::broadcast", waits_for_ranks);
  std::uint64_t length = text.size();
  MPI_Bcast(&length, 1, MPI_UINT64_T, root, m_comm);
  text.resize(length);
  for (std::size_t begin = 0; begin < length; begin += largest_count)
    MPI_Bcast(text.data() + begin, static_cast<int>(std::min(largest_count, length - begin)), MPI_CHAR, root, m_comm);
  return text;
}

void Communicator::collectively(const std::function<void()>& work) const {
  std::string message;
  int status = 0;
  try {
    work();
  } catch (const std::exception& error) {
    const Error described = describe(error);
    message = described.what();
    status = static_cast<int>(described.status());
  }
  if (is_without_mpi()) {
    if (status != 0) throw AgreedError(static_cast<ExitStatus>(status), message);
    return;
  }
  const Activity activity("OneBit::base::agree", waits_for_ranks);
  int first_failed = status != 0 ? m_rank : m_size;
  MPI_Allreduce(MPI_IN_PLACE, &first_failed, 1, MPI_INT, MPI_MIN, m_comm);
  if (first_failed == m_size) return;
  MPI_Bcast(&status, 1, MPI_INT, first_failed, m_comm);
  message = broadcast(message, first_failed);
  if (first_failed > 0) message = "rank " + std::to_string(first_failed) + ": " + message;
  throw AgreedError(static_cast<ExitStatus>(status), message);
}

bool any_thread_may_call() { return thread_level >= MPI_THREAD_SERIALIZED; }

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  std::string name(text, static_cast<std::size_t>(length));
  std::replace(name.begin(), name.end(), '\t', ' ');  // MPICH's
  return name.substr(0, name.find_first_of(",\n"));
}

}  // namespace onebit
