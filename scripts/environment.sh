# Sourced by the scripts that run MPI programs on the machine they are started
# on, a laptop or a container. Batch scripts do not: there Slurm decides.
# shellcheck shell=bash

# Open MPI refuses to run as root unless told twice, and as root is how
# containers run.
if [[ $(id -u) -eq 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# More ranks than cores are wanted here. Open MPI 4, then 5.
export OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# Programs that run side by side would all be bound to the first cores.
export OMPI_MCA_hwloc_base_binding_policy=none
export PRTE_MCA_hwloc_default_binding_policy=none
# The same for threads; unset, Kokkos would warn about it in every rank.
export OMP_PROC_BIND=${OMP_PROC_BIND:-false}

# Containers usually forbid one process to read another's memory, which Open
# MPI's shared memory transport does for large messages.
if [[ -e /.dockerenv || -e /run/.containerenv || -n ${container:-} ]]; then
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
fi
