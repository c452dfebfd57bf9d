#!/usr/bin/env bash
# Sets up, builds and runs every test, some of them on a simulated device; where nvcc is, compiles for CUDA too.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: scripts/test.sh [--no-cuda | --cuda-tests]

Sets up, builds with the preset 'openmp' and runs every test. Beside them it runs
device code on a simulated device, in build/simt (docs/develop/tests.md). Where nvcc
is found, it also compiles and links the program for CUDA in build/cuda-check, and
trains with its host backends, which needs no GPU. Fails if any of it fails.

Ends with the skipped pieces, by name and reason. With CI=true in the
environment it also fails if one of them is not in tests/allowed_skips.txt, which
lists what a machine of continuous integration cannot have.

  --no-cuda     leave CUDA out
  --cuda-tests  compile the tests for CUDA too, which takes as long again; they run
                on a machine with a GPU (scripts/gpu_check.sh)
  --help        this text
TEXT
}

cuda=no cuda_tests=OFF without_cuda="no nvcc here: nothing was compiled for CUDA"
if command -v nvcc >/dev/null; then
  cuda=yes
fi
for argument in "$@"; do
  case $argument in
    --no-cuda) cuda=no without_cuda="left out by --no-cuda" ;;
    --cuda-tests) cuda_tests=ON ;;
    --help|-h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
if [[ $cuda == no && $cuda_tests == ON ]]; then
  echo "test.sh: --cuda-tests: $without_cuda" >&2
  exit 2
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
scripts/setup.sh --fuzz --style --docs --reframe --python --smpi

launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD} # what another checkout has compiled counts, too
fi
processors=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)  # nproc believes them
# Most of the time of a compiler goes into Kokkos' headers, which sources read together.
unity=(-DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16)
cmake --preset openmp "${unity[@]}" "${launcher[@]}"
cmake --build build/openmp

# The tests use more threads than there are cores: those that wait must sleep.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
export ONEBIT_SKIPS=$PWD/build/skips.txt
: >"$ONEBIT_SKIPS"

# What follows runs beside the tests, which often wait, at the lowest priority. CUDA without ccache, which does not know
# nvcc_wrapper and would miss changes in device code. Nothing of it runs on a device, so -O0 is for the code of both. A
# directory of its own leaves build/cuda to those who run it.
simt_log=build/simt.log simt_tests_log=build/simt_tests.log
rm -f "$simt_tests_log"
(cmake --preset simt "${unity[@]}" "${launcher[@]}" && nice -n 19 cmake --build --preset simt) >"$simt_log" 2>&1 &&
  exec nice -n 19 ctest --preset simt --parallel "$processors" --no-tests=error >"$simt_tests_log" 2>&1 &
simt=$!
trap 'kill "$simt" 2>/dev/null || true' EXIT
cuda_log=build/cuda.log
if [[ $cuda == yes ]]; then
  (nice -n 19 scripts/setup.sh --cuda &&
    cmake --preset cuda -B build/cuda-check "${unity[@]}" -DCMAKE_CXX_FLAGS_RELEASE=-O0 \
          -DONEBIT_BUILD_TESTS="$cuda_tests" &&
    export NVCC_APPEND_FLAGS="-Xcicc -O0 -Xptxas -O0" &&
    exec nice -n 19 cmake --build build/cuda-check --parallel "$processors") >"$cuda_log" 2>&1 &
  cuda_build=$!
  trap 'kill "$simt" "$cuda_build" 2>/dev/null || true' EXIT
fi

failed=no
ctest --preset openmp --parallel "$processors" --output-on-failure --no-tests=error || failed=yes

skip() { ONEBIT_TEST=$1 python3 tests/skips.py skip "" "$2" 2>/dev/null || true; }
if wait "$simt"; then
  cat "$simt_tests_log"
elif grep -q "is an execution space of Kokkos 3.4" "$simt_log"; then
  skip simt "the simulated device needs Kokkos 3.4, and the one here is another"
elif [[ -e $simt_tests_log ]]; then
  cat "$simt_tests_log"
  failed=yes
else
  grep -E -A 12 'error|FAILED' "$simt_log" | head -n 100
  echo "simulated device: did not compile, see above and $simt_log" >&2
  failed=yes
fi
if [[ $cuda == no ]]; then
  echo "CUDA: not compiled"
  skip cuda.compilation "$without_cuda"
elif wait "$cuda_build"; then
  echo "CUDA: compiled and linked in build/cuda-check; of it, the host backends are run, without a GPU"
  python3 tests/cuda/without_gpu.py build/cuda-check || failed=yes
else
  grep -E -A 12 'error|FAILED|^setup: ' "$cuda_log" | head -n 100
  echo "CUDA: did not compile, see above and $cuda_log" >&2
  failed=yes
fi
if [[ -e /dev/nvidiactl ]]; then
  skip cuda.tests "this script runs nothing on the GPU here: build and test with the preset 'cuda'"
else
  skip cuda.tests "no GPU here: the tests ran on the host alone"
fi

python3 tests/skips.py summary "$ONEBIT_SKIPS" || failed=yes
[[ $failed == no ]]
