#!/usr/bin/env bash
# Builds a CUDA-aware Open MPI into $ONEBIT_DEPS/cuda-mpi, from the distribution's source package, so that it has the
# version that the distribution's other libraries (HDF5) were built with. Called by setup.sh.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: scripts/build_openmpi.sh

Needs nvcc on PATH. Builds nothing where an up-to-date build is.
Environment: ONEBIT_DEPS (see setup.sh --help)
TEXT
}

case ${1:-} in
  '') ;;
  --help|-h) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

# shellcheck source=scripts/source_package.sh
. "$(dirname "${BASH_SOURCE[0]}")/source_package.sh"
prefix=$deps/cuda-mpi
log=$prefix.log

nvcc=$(command -v nvcc) || fail "nvcc is not on PATH"
cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
[[ -f $cuda/include/cuda.h ]] || fail "nvcc is in $cuda, but $cuda/include/cuda.h is not there"

# Fortran, C++ and OpenSHMEM are not used here. hwloc and libevent come with the distribution's own Open MPI.
options=(
  "--with-cuda=$cuda" --with-hwloc=external --with-libevent=external
  --disable-mpi-fortran --disable-mpi-cxx --disable-oshmem --disable-dependency-tracking
)
recipe() {
  echo "g++ $(g++ -dumpfullversion), Open MPI $(dpkg-query -W -f '${source:Upstream-Version}' libopenmpi-dev)"
  printf '%s\n' "${options[@]}"
}

lock
! up_to_date || exit 0

work=$deps/build/openmpi
rm -rf "$prefix" "$log"
mkdir -p "$deps/build"
say "fetching the source package openmpi (about 7 MB)"
download_source openmpi "$work" "give an MPI of yours with MPI_HOME"
archive=$(find "$work" -maxdepth 1 -name 'openmpi_*.orig.tar.*' ! -name '*.asc')
mkdir "$work/source" "$work/build"
tar -xf "$archive" -C "$work/source" --strip-components=1

say "building Open MPI with CUDA, which takes some minutes"
{
  cd "$work/build" &&
    "$work/source/configure" --prefix="$prefix" "${options[@]}" &&
    make -j "$processors" &&
    make install
} >"$log" 2>&1 || { tail -n 30 "$log" >&2; fail "building Open MPI failed: see $log"; }

"$prefix/bin/ompi_info" --parsable --all | grep -qxF 'mca:mpi:base:param:mpi_built_with_cuda_support:value:true' ||
  fail "the Open MPI in $prefix was built without CUDA: see $log"
cd "$root"
rm -rf "$work"
recipe >"$prefix/.onebit-stamp"
say "built a CUDA-aware Open MPI in $prefix; run with $prefix/bin/mpirun"
