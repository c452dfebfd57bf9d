# Starts the ranks, forwards signals to them and requeues the job. Sourced by the batch scripts, which set `binary`,
# `srun_options` and perhaps `backend`.
# shellcheck shell=bash disable=SC2154

# A task of a sweep's job array finds its arguments, one a line, in its cell's directory, and writes its log there.
if [[ ${1:-} == --cells ]]; then
  cell=$(sed -n "${SLURM_ARRAY_TASK_ID:?--cells is for job arrays}p" "$2")
  mapfile -t arguments <"$cell/arguments"
  set -- "${arguments[@]}"
  # The array's own file stays where something is in it: an error above, or what Slurm says.
  out=$(readlink "/proc/$$/fd/1" || true)
  exec >>"$cell/log" 2>&1
  trap '[[ ! -f $out || -s $out ]] || rm -f -- "$out"' EXIT
fi
input=${1:?usage: sbatch BATCH_SCRIPT INPUT.yaml [arguments]}
shift
binary=$(command -v -- "$binary" || echo "$binary")  # a name without a directory is looked for on PATH
[[ -x $binary ]] || { echo "no program '$PWD/$binary': build it or set ONEBIT_BINARY" >&2; exit 2; }
[[ -r $input ]] || { echo "no input '$PWD/$input'" >&2; exit 2; }

export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export OMP_PROC_BIND=${OMP_PROC_BIND:-close}
export OMP_PLACES=${OMP_PLACES:-cores}

# With PMIx, srun starts Open MPI's and MPICH's ranks and gives each its own cores. Without it, Open MPI's mpirun asks
# Slurm for the nodes. Another MPI may want another interface of srun's.
if [[ -z ${ONEBIT_LAUNCHER:-} ]]; then
  ONEBIT_LAUNCHER=mpirun
  interfaces=$(srun --mpi=list 2>&1 || true)
  if [[ -n ${ONEBIT_SRUN_MPI:-} ]] || grep -qw pmix <<<"$interfaces"; then ONEBIT_LAUNCHER=srun; fi
fi
if [[ $ONEBIT_LAUNCHER == srun ]]; then
  # From Slurm 22.05 on srun no longer takes --cpus-per-task from sbatch.
  launch=(srun "--mpi=${ONEBIT_SRUN_MPI:-pmix}" "--cpus-per-task=$OMP_NUM_THREADS" "${srun_options[@]}")
else
  launch=(mpirun -n "$SLURM_NTASKS" --map-by "slot:PE=$OMP_NUM_THREADS" --bind-to core
    -x OMP_NUM_THREADS -x OMP_PROC_BIND -x OMP_PLACES)
fi

command=("${launch[@]}" "$binary" train "$input" ${backend:+--set "run.backend=$backend"} "$@")
if [[ ${SLURM_RESTART_COUNT:-0} -gt 0 ]]; then
  command+=(--set checkpoint.restart=auto)
fi
echo "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1)):" \
  "$SLURM_NTASKS ranks, $OMP_NUM_THREADS threads each"
echo "${command[*]}"

# On SIGUSR1 every rank writes a checkpoint and ends with status 75. mpirun forwards SIGUSR1, but kills the ranks on
# SIGTERM.
told=no
stop() {
  signalled=yes told=yes
  kill -USR1 "$launcher" 2>/dev/null || true
}
"${command[@]}" &
launcher=$!
trap stop USR1 TERM
while :; do
  signalled=no status=0
  wait "$launcher" || status=$?
  # A signal ends the wait, not the ranks. bash keeps the status of processes that ended meanwhile.
  [[ $signalled == yes && $status -gt 128 ]] || break
done
trap '' USR1 TERM

# 75: stopped with a checkpoint. A rank that had not begun dies of the signal (128 + SIGUSR1) and has nothing to save.
if [[ $status -eq 75 || ($told == yes && $status -eq 138) ]]; then
  job=$SLURM_JOB_ID
  if [[ -n ${SLURM_ARRAY_JOB_ID:-} ]]; then
    # The number of one task is that of the whole array too.
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  fi
  # Not after scancel, which sends signals too, to a job that is to stay away.
  state=$(scontrol --oneliner show job "$job" | grep -o ' JobState=[A-Z_]*' | cut -d= -f2) || state=unknown
  if [[ $state == RUNNING || $state == PREEMPTED ]]; then
    echo "job $job was stopped (status $status) and is requeued"
    scontrol requeue "$job" ||
      echo "job $job could not be requeued: submit it again with --set checkpoint.restart=auto" >&2
  else
    echo "job $job was stopped (status $status) and is $state: not requeued"
  fi
fi
# The exit status of the program becomes that of the job.
exit "$status"
