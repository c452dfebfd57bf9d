#!/usr/bin/env bash
# Runs one input at several learning rates and writes one CSV row for each: how the quick start's rate was chosen.
# Usage: scripts/tune_lr.sh OUTPUT.csv "LR …" "SEED …" INPUT.yaml …      (four ranks; ONEBIT=path of the program)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
output=$1 rates=$2 seeds=$3
shift 3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMP_NUM_THREADS=1
echo "algorithm,lr,seed,steps,final_validation_loss,variance_frozen_at_step,reduction" > "$output.partial"
for seed in $seeds; do
  for rate in $rates; do
    for input in "$@"; do
      mpirun -n 4 --oversubscribe "${ONEBIT:-build/openmp/onebit}" train "$input" --set "optimizer.lr=$rate" \
        --set "run.seed=$seed" --set "run.output=$scratch" --set run.progress_interval_s=0 > /dev/null
      # Columns are found by name, so that a new one in run.csv changes nothing here.
      awk -F, -v rate="$rate" -v seed="$seed" '
        NR == 1 { for (i = 1; i <= NF; ++i) column[$i] = i; next }
        { print $column["algorithm"] "," rate "," seed "," $column["steps"] "," $column["final_validation_loss"] "," \
                $column["variance_frozen_at_step"] "," $column["reduction"] }' "$scratch/run.csv" | tee -a "$output.partial"
    done
  done
done
mv "$output.partial" "$output"
