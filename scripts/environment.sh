# Sourced by scripts that run MPI programs on this machine, a laptop or a container. In batch scripts Slurm decides.
# shellcheck shell=bash

# Containers run as root, which Open MPI refuses unless told twice.
if [[ $(id -u) -eq 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# More ranks than cores are wanted here. Open MPI 4, then 5.
export OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# Open MPI would bind programs that run side by side to the same first cores.
export OMPI_MCA_hwloc_base_binding_policy=none
export PRTE_MCA_hwloc_default_binding_policy=none
# The same for threads. Without it Kokkos warns in every rank.
export OMP_PROC_BIND=${OMP_PROC_BIND:-false}

# Without a fabric Open MPI takes ob1 in the end. To ask the others first only makes every start longer.
if [[ -z $(ls -A /sys/class/infiniband 2>/dev/null) ]]; then
  export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1}
fi

# Containers usually forbid a process to read another's memory, as Open MPI's shared memory transport does.
if [[ -e /.dockerenv || -e /run/.containerenv || -n ${container:-} ]]; then
  export OMPI_MCA_btl_vader_single_copy_mechanism=none
fi
