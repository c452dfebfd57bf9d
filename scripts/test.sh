#!/usr/bin/env bash
# Sets up, builds and runs every test; where nvcc is, compiles for CUDA too.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: scripts/test.sh [--no-cuda]

Sets up, builds with the preset 'openmp' and runs every test. Where nvcc is
found, it also compiles and links everything for CUDA in build/cuda, which runs
nothing and needs no GPU. Fails if any of it fails.

  --no-cuda  leave CUDA out
  --help     this text
TEXT
}

cuda=no
if command -v nvcc >/dev/null; then
  cuda=yes
fi
for argument in "$@"; do
  case $argument in
    --no-cuda) cuda=no ;;
    --help|-h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/environment.sh
# The tests use more threads than there are cores: those that wait must sleep.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}

if [[ $cuda == yes ]]; then
  scripts/setup.sh --fuzz --cuda
else
  scripts/setup.sh --fuzz
fi

launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
cmake --preset openmp "${launcher[@]}"
cmake --build build/openmp

# Not with ccache: it does not know nvcc_wrapper, and would miss changes that
# only the compilation for the device sees.
cuda_failed=no
if [[ $cuda == yes ]]; then
  if cmake --preset cuda && cmake --build build/cuda; then
    echo "CUDA: everything compiled and linked in build/cuda; nothing of it was run"
  else
    cuda_failed=yes # the tests below still say what they have to say
  fi
else
  echo "CUDA: not compiled"
fi

if [[ $cuda_failed == yes ]]; then
  trap 'echo "CUDA: did not compile, see above" >&2' EXIT
fi
tests_failed=no
ctest --preset openmp --output-on-failure --no-tests=error || tests_failed=yes
[[ $tests_failed == no && $cuda_failed == no ]]
