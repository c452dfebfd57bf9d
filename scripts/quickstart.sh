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

# Kernels for an older processor leave much of a newer one idle. OpenBLAS'
# name for the oldest that has what this one has:
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

# Columns are found by name; the last row of a file is the latest run.
echo
awk '
  # Commas separate, but not inside double quotes.
  function split_csv(line, parts,    n, i, c, quoted) {
    split("", parts)
    n = 1
    for (i = 1; i <= length(line); i++) {
      c = substr(line, i, 1)
      if (c == "\"") quoted = !quoted
      else if (c == "," && !quoted) n++
      else parts[n] = parts[n] c
    }
    return n
  }
  function bytes(n) {
    unit = 1
    while (n >= 1000 && unit < 5) { n /= 1000; unit++ }
    return sprintf(unit == 1 ? "%.0f %s" : "%.1f %s", n, substr("B  kB MB GB TB", 3 * unit - 2, 3))
  }
  function value(name) {
    if (!(name in column)) {
      printf "quickstart: %s has no column %s\n", file, name >"/dev/stderr"
      exit failed = 1
    }
    return field[column[name]]
  }
  function finish_file() {
    if (rows++ == 0) {
      printf "%-12s  %21s  %9s  %10s  %9s  %20s\n", "algorithm", "final validation loss",
             "tokens/s", "bytes sent", "reduction", "variance frozen at"
    }
    step = value("variance_frozen_at_step")
    printf "%-12s  %21.4f  %9.0f  %10s  %8.1fx  %20s\n", value("algorithm"),
           value("final_validation_loss"), value("tokens_per_s"), bytes(value("bytes_sent")),
           value("reduction"), step == "" || step + 0 < 0 ? "never" : "step " step
  }
  FNR == 1 {
    if (NR > 1) finish_file()
    split("", column)
    for (i = split_csv($0, names); i > 0; i--) column[names[i]] = i
    next
  }
  { split_csv($0, field); file = FILENAME }
  END { if (!failed) finish_file() }
' "$results"/{adam,onebit_adam}/run.csv
echo
echo "More in $results/{adam,onebit_adam}/{run,steps,profile}.csv"
