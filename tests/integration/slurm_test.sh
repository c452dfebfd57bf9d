#!/usr/bin/env bash
# Submits scripts/slurm/cpu.sbatch to a real Slurm of one node, which it starts
# and ends, and checks that the job completed and wrote run.csv for two ranks.
#
#   slurm_test.sh BINARY INPUT.yaml [further arguments of 'onebit train']
#
# Exit status 77 (skipped) where Slurm is missing and cannot be installed.
set -euo pipefail

binary=$(realpath "${1:?usage: slurm_test.sh BINARY INPUT.yaml [arguments]}")
input=$(realpath "${2:?usage: slurm_test.sh BINARY INPUT.yaml [arguments]}")
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cluster=$root/scripts/slurm/local_cluster.sh
limit=${ONEBIT_SLURM_TEST_SECONDS:-300}
ranks=2

if ! PATH=$PATH:/usr/sbin command -v slurmctld >/dev/null &&
  { [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; }; then
  echo "SKIPPED: no Slurm here, and it takes root and apt to install it"
  exit 77
fi
if [[ $(nproc) -lt $ranks ]]; then
  echo "SKIPPED: $ranks ranks with a core each need $ranks cores"
  exit 77
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/onebit-slurm.XXXXXX")
export ONEBIT_SLURM_DIR=$work/cluster
finish() {
  "$cluster" stop
  rm -rf "$work"
}
trap finish EXIT

fail() {
  echo "FAILED: $*" >&2
  echo "--- output of the job:" >&2
  cat "$work/job.out" >&2 || true
  echo "--- slurmctld and slurmd:" >&2
  tail -n 15 "$ONEBIT_SLURM_DIR/slurmctld.log" "$ONEBIT_SLURM_DIR/slurmd.log" >&2 || true
  exit 1
}

"$cluster" start
export SLURM_CONF=$ONEBIT_SLURM_DIR/slurm.conf ONEBIT_BINARY=$binary
# What scripts/environment.sh set for mpirun on a shared machine is not for a job.
unset OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES

cd "$root"
job=$(sbatch --parsable --ntasks="$ranks" --cpus-per-task=1 --output="$work/job.out" \
  scripts/slurm/cpu.sbatch "$input" --set run.output="$work/run" "$@")
state=PENDING
deadline=$((SECONDS + limit))
while [[ $state =~ ^(PENDING|CONFIGURING|RUNNING|COMPLETING)$ ]]; do
  [[ $SECONDS -lt $deadline ]] || fail "job $job is still $state after $limit s"
  sleep 0.5
  state=$(scontrol --oneliner show job "$job" | grep -o 'JobState=[A-Z_]*' | cut -d= -f2)
done
[[ $state == COMPLETED ]] || fail "job $job ended as $state"
[[ -s $work/run/run.csv ]] || fail "the job wrote no run.csv"

# Two processes that do not know of each other would each say one rank.
found=$(awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
                 { print $column["ranks"] }' "$work/run/run.csv" | tail -n 1)
[[ $found == "$ranks" ]] || fail "run.csv says '$found' ranks, not $ranks"
cat "$work/job.out"
echo "PASSED: job $job $state with $ranks ranks"
