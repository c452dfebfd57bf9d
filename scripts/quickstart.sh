#!/usr/bin/env bash
# From nothing to a comparison of Adam and 1-bit Adam on four ranks.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: scripts/quickstart.sh

Sets up and builds OneBit, trains a small GPT on the King James Bible with Adam
and with 1-bit Adam on 4 MPI ranks, and prints both results as a table.
TEXT
}

case ${1:-} in
  '') ;;
  --help|-h) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
export OMP_NUM_THREADS=1 # four ranks fill a small machine by themselves

# Kernels for an older processor leave much of a newer one idle. These are OpenBLAS' names for AVX-512.
if [[ -n ${OPENBLAS_CORETYPE:-} ]] && grep -qw avx512f /proc/cpuinfo 2>/dev/null &&
  [[ ! ${OPENBLAS_CORETYPE,,} =~ ^(skylakex|cooperlake|sapphirerapids)$ ]]; then
  echo "quickstart: ignoring OPENBLAS_CORETYPE=$OPENBLAS_CORETYPE: this processor has AVX-512"
  unset OPENBLAS_CORETYPE
fi

scripts/setup.sh
cmake --preset openmp >/dev/null
cmake --build build/openmp --target onebit

results=results/quickstart
for algorithm in adam onebit_adam; do
  echo
  echo "=== $algorithm, 4 ranks ==="
  mpirun -n 4 build/openmp/onebit train "inputs/quickstart_$algorithm.yaml" \
    --set "run.output=$results/$algorithm"
done

echo
python3 scripts/quickstart_table.py "$results"/{adam,onebit_adam}
echo
echo "More in $results/{adam,onebit_adam}/{run,steps,profile}.csv"
