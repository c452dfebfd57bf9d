#include "base/system/launcher.hpp"

#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <limits>

#include "base/error.hpp"
#include "base/mpi.hpp"

namespace onebit {
namespace {

/// Variables by which a launcher tells a process how many there are and which one it is; nullptr where it does not.
struct Launcher {
  const char* name;
  const char* size;
  const char* rank;
  const char* shell;        ///< set in a shell that is not one of the processes, if it has a terminal
  bool needs_both = false;  ///< the names are common words, so one alone says nothing
};

/// SLURM_NTASKS is not here: a batch script and the shell of salloc have it, too, where nothing but the shell was
/// started. The shell of `srun --pty` runs in one of the step's tasks alone. A step that is started there inherits
/// SLURM_PTY_PORT, but has no terminal.
constexpr Launcher launchers[] = {
    {"mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", nullptr},
    {"a launcher with PMI, such as mpiexec of MPICH,", "PMI_SIZE", "PMI_RANK", nullptr},
    {"the launcher of MVAPICH", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", nullptr},
    {"a launcher with PMIx", nullptr, "PMIX_RANK", nullptr},
    {"mpiexec of PALS", nullptr, "PALS_RANKID", nullptr},
    {"aprun", nullptr, "ALPS_APP_PE", nullptr},
    {"srun", "SLURM_STEP_NUM_TASKS", nullptr, "SLURM_PTY_PORT"},
    {"torchrun", "WORLD_SIZE", "RANK", nullptr, true},
};

/// The variables of this MPI library's own launcher.
constexpr const char* own_sizes[] = {
#ifdef OPEN_MPI
    "OMPI_COMM_WORLD_SIZE"
#else
    "PMI_SIZE", "MV2_COMM_WORLD_SIZE"
#endif
};

/// The number that a variable holds; −1 where it is not set or holds anything else.
long number_in(const Environment& environment, const char* name) {
  const char* const text = name == nullptr ? nullptr : environment(name);
  if (text == nullptr || *text < '0' || *text > '9') return -1;
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  return *end == '\0' && number < std::numeric_limits<int>::max() ? number : -1;
}

bool has_terminal() {
  const int terminal = open("/dev/tty", O_RDONLY | O_NOCTTY);
  if (terminal >= 0) close(terminal);
  return terminal >= 0;
}

/// \param processes that it started; so many at least where a rank alone tells
LaunchFault fault_of(const Launcher& launcher, const char* variable, long processes) {
  const bool is_torchrun = launcher.needs_both;
  const std::string shown = variable;
  return {shown,
          std::string(launcher.name) + " started " + (variable == launcher.size ? "" : "at least ") +
              std::to_string(processes) +
              " processes, and MPI sees this one alone: each of them would be a run of its own",
          (is_torchrun ? std::string("in Python call torch.distributed.init_process_group and leave comm out "
                                     "(docs/guide/python.md); start other programs by mpirun")
                       : "start ranks by mpirun or mpiexec of this MPI library, " + mpi_library() +
                             ", or by srun with the --mpi that fits it (docs/guide/slurm.md)") +
              "; where each is to be a run of its own, unset " + shown};
}

}  // namespace

LaunchFault launch_fault(int world_size, const Environment& environment, bool has_terminal) {
  if (world_size > 1) return {};
  for (const char* const own : own_sizes)
    if (number_in(environment, own) == 1) return {};
  for (const Launcher& launcher : launchers) {
    const long size = number_in(environment, launcher.size), rank = number_in(environment, launcher.rank);
    if (launcher.shell != nullptr && environment(launcher.shell) != nullptr && has_terminal) continue;
    if (launcher.needs_both && (size < 0 || rank < 0 || rank >= size)) continue;
    if (std::max(size, rank + 1) > 1)
      return fault_of(launcher, size > 1 ? launcher.size : launcher.rank, std::max(size, rank + 1));
  }
  return {};
}

LaunchFault launch_fault() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm parent = MPI_COMM_NULL;
  MPI_Comm_get_parent(&parent);
  if (parent != MPI_COMM_NULL) return {};
  return launch_fault(
      size, [](const char* name) -> const char* { return std::getenv(name); }, has_terminal());
}

bool has_launcher() {
  const auto is_set = [](const char* name) { return name != nullptr && std::getenv(name) != nullptr; };
  return std::any_of(std::begin(own_sizes), std::end(own_sizes), is_set) ||
         std::any_of(std::begin(launchers), std::end(launchers),
                     [&](const Launcher& launcher) { return is_set(launcher.size) || is_set(launcher.rank); });
}

void check_launch() {
  if (const LaunchFault fault = launch_fault()) throw InputError(fault.variable, fault.what, fault.remedy);
}

}  // namespace onebit
