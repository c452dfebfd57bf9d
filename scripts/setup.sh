#!/usr/bin/env bash
# Installs what OneBit needs and is missing. May be run as often as you like.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: scripts/setup.sh [--cuda] [--cuda-mpi] [--hip] [--fuzz] [--style] [--docs] [--reframe]
                        [--python] [--smpi]

On Debian and Ubuntu: installs the packages that are missing, builds Kokkos and
Kokkos Kernels where no usable Kokkos is found, and exports the default corpus.
Elsewhere: says what to provide.

  --cuda      also build Kokkos and Kokkos Kernels for CUDA (needs nvcc on PATH)
  --cuda-mpi  also build a CUDA-aware Open MPI, of the version that the
              distribution has, where the site has none (needs nvcc on PATH)
  --hip       also install hipcc and build Kokkos and Kokkos Kernels for HIP.
              Debian's OpenMP runtimes for hipcc and for --fuzz exclude each
              other, so apt removes the other one
  --fuzz      also install clang, for the fuzzers of tests/fuzz
  --style     also install clang-format, and ruff from PyPI where that can be
              reached, for the test integration.style
  --docs      also install Sphinx and Doxygen, for scripts/docs.sh and the
              test integration.site
  --reframe   also install ReFrame from PyPI where that can be reached, for
              packaging/reframe and the test integration.reframe
  --python    also install mpi4py, NumPy and PyTorch for the system's Python, and
              scikit-build-core from PyPI where that can be reached, for the
              package of python/ and its tests
  --smpi      also install SimGrid, for the preset smpi and the test integration.smpi
  --help      this text

Environment:
  Kokkos_ROOT, KokkosKernels_ROOT, CMAKE_PREFIX_PATH
                      where to look for Kokkos before building one: 3.4 to 5.x
                      with OpenMP (and CUDA for --cuda, HIP for --hip)
  ONEBIT_KOKKOS_SOURCE
                      sources of the Kokkos to build in place of the
                      distribution's, with those of Kokkos Kernels, if wanted, in
                      the folder kokkos-kernels beside them
  ONEBIT_DEPS         where to build what is built (default: .deps in the
                      checkout); several checkouts may share one
  ONEBIT_CUDA_ARCH    compute capability without the dot (default: 90, Hopper)
  ONEBIT_HIP_ARCH     AMD's architecture behind gfx (default: 908, MI100)
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export ONEBIT_DEPS=${ONEBIT_DEPS:-$root/.deps}

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

flavours=(host)
cuda_mpi=no
fuzz=no
style=no
docs=no
reframe=no
python=no
smpi=no
for argument in "$@"; do
  case $argument in
    --cuda) flavours+=(cuda) ;;
    --cuda-mpi) cuda_mpi=yes ;;
    --hip) flavours+=(hip) ;;
    --fuzz) fuzz=yes ;;
    --style) style=yes ;;
    --docs) docs=yes ;;
    --reframe) reframe=yes ;;
    --python) python=yes ;;
    --smpi) smpi=yes ;;
    --help|-h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

# --- packages ---------------------------------------------------------------

packages=(
  g++ cmake ninja-build pkg-config ccache patch # build tools
  git                                           # results name their commit
  libopenmpi-dev openmpi-bin                    # MPI
  libopenblas-openmp-dev                        # BLAS with OpenMP threads
  libdnnl-dev                                   # oneDNN: products with AVX-512, and in bf16
  libyaml-cpp-dev libcli11-dev                  # input files, command line
  nlohmann-json3-dev                            # figures of merit as JSON
  libhdf5-openmpi-dev                           # array files
  libsentencepiece-dev libprotobuf-dev          # subword tokens; Ubuntu 24.04 forgets to ask for the second
  iproute2                                      # network laboratory
  libgtest-dev python3                          # tests
  python3-matplotlib python3-yaml               # the studies
  python3-numpy python3-scipy                   # predictions; the reference of 1-bit training
  python3-protobuf                              # execution traces
  bible-kjv bible-kjv-text                      # text of the default corpus
  dpkg-dev ca-certificates                      # fetch the sources of Kokkos
)

optional=() # left out where the release has none
if [[ $fuzz == yes ]]; then
  packages+=(clang libomp-dev) # libomp-dev: omp.h for Kokkos' headers
  optional+=(libclang-rt-dev)  # libFuzzer; in Ubuntu 22.04 a part of clang
fi
if [[ " ${flavours[*]} " == *" hip "* ]]; then
  [[ $fuzz == no ]] || fail "$*: Debian's OpenMP runtimes for hipcc and clang exclude each other; give one of them"
  packages+=(hipcc rocm-device-libs libamdhip64-dev libomp-15-dev) # Debian 12's hipcc runs clang 15
fi
if [[ $style == yes ]]; then
  packages+=(clang-format python3-pip)
fi
if [[ $docs == yes ]]; then
  packages+=(python3-sphinx python3-myst-parser python3-breathe doxygen)
fi
if [[ $reframe == yes ]]; then
  packages+=(python3-pip)
fi
if [[ $python == yes ]]; then
  packages+=(python3-mpi4py python3-numpy python3-pip python3-venv)
  optional+=(python3-torch) # not in Ubuntu 24.04
fi
if [[ $smpi == yes ]]; then
  packages+=(libsimgrid-dev)
fi

without_apt() {
  cat >&2 <<'TEXT'
setup: this system has no apt, so nothing was installed. Provide:
  - a compiler for C++17 (Kokkos 5: C++20), CMake 3.22 or newer, Ninja, pkg-config, Python 3.9
    with matplotlib, NumPy, SciPy, PyYAML and protobuf
  - MPI 3, OpenBLAS (or another BLAS) with OpenMP, parallel HDF5,
    yaml-cpp, CLI11, nlohmann-json, SentencePiece, GoogleTest
  - Kokkos 3.4 to 5.x with OpenMP and Serial (and CUDA or HIP); Kokkos Kernels are
    optional. ONEBIT_KOKKOS_SOURCE=/sources/of/kokkos makes this script build one.
Tell CMake where Kokkos is:
  export Kokkos_ROOT=/path/to/kokkos
With Spack:
  spack install kokkos-kernels@:4+openmp+serial+blas ^openblas threads=openmp
  spack install hdf5+mpi yaml-cpp cli11 nlohmann-json sentencepiece googletest cmake ninja pkgconf \
                py-matplotlib py-numpy py-scipy py-pyyaml py-protobuf
  spack load kokkos-kernels hdf5 yaml-cpp cli11 nlohmann-json sentencepiece googletest cmake ninja pkgconf \
             py-matplotlib py-numpy py-scipy py-pyyaml py-protobuf
Then: cmake --preset openmp && cmake --build build/openmp
See docs/guide/build.md.
TEXT
  exit 1
}

install_packages() {
  local installed package missing=() wanted=()
  # One query for all is fast. It exits with 1 where it does not know a package.
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" "${optional[@]}" 2>/dev/null || true)
  for package in "${packages[@]}" "${optional[@]}"; do
    grep -qxF "$package installed" <<<"$installed" || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  say "installing ${missing[*]}"
  local elevate=() log=$ONEBIT_DEPS/packages.log
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null || fail "that needs root: run 'apt-get install ${missing[*]}' as root, then this again"
    say "with sudo, which may ask for your password"
    elevate=(sudo)
  fi
  mkdir -p "$ONEBIT_DEPS"
  local apt=("${elevate[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600)
  logged() { "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "could not install packages: see $log"; }; }
  : >"$log"
  logged "${apt[@]}" update
  for package in "${missing[@]}"; do
    # Of a package that others merely suggest apt-cache shows nothing, and succeeds.
    if [[ " ${optional[*]} " == *" $package "* && -z $(apt-cache show "$package" 2>/dev/null) ]]; then
      say "this release has no $package: left out"
    else
      wanted+=("$package")
    fi
  done
  logged "${apt[@]}" install --no-install-recommends "${wanted[@]}"
}

# Debian has no packages of these. Without one of them a test is skipped, so this may fail.
# provide_from_pypi NAME PACKAGE VERSION TEST: installs it in $ONEBIT_DEPS/NAME
provide_from_pypi() {
  local directory=$ONEBIT_DEPS/$1 log=$ONEBIT_DEPS/$1.log
  [[ ! -d $directory/${2//-/_}-$3.dist-info ]] || return 0
  rm -rf "${directory:?}" # another version
  mkdir -p "$ONEBIT_DEPS"
  if python3 -m pip install --quiet --target "$directory" "$2==$3" >"$log" 2>&1; then
    say "installed $1 $3 in $directory"
  else
    say "could not install $1: see $log; $4 leaves it out"
  fi
}
provide_ruff() { provide_from_pypi ruff ruff 0.14.4 integration.style; }
provide_build_backend() { provide_from_pypi scikit-build-core scikit-build-core 1.1.0 python.installed; }
provide_reframe() { provide_from_pypi reframe reframe-hpc 4.9.2 integration.reframe; }

# --- Kokkos -----------------------------------------------------------------

# Prints the Kokkos that CMake finds by itself; or fails and prints why that one is not usable.
find_kokkos() {
  local devices=$1 probe verdict
  probe=$(mktemp -d)
  # Kokkos' version file refuses a version range in find_package(), so the version is compared here.
  cat >"$probe/CMakeLists.txt" <<TEXT
cmake_minimum_required(VERSION 3.22)
project(probe CXX)
find_package(Kokkos QUIET CONFIG)
set(verdict "yes Kokkos \${Kokkos_VERSION} in \${Kokkos_DIR}")
foreach(device $devices)
  if(NOT device IN_LIST Kokkos_DEVICES)
    set(verdict "no Kokkos in \${Kokkos_DIR} was built without \${device}")
  endif()
endforeach()
if(Kokkos_VERSION VERSION_LESS 3.4 OR NOT Kokkos_VERSION VERSION_LESS 6)
  set(verdict "no Kokkos in \${Kokkos_DIR} is \${Kokkos_VERSION}, not 3.4 to 5.x")
endif()
if(NOT Kokkos_FOUND)
  set(verdict "no CMake finds no Kokkos")
endif()
file(WRITE "\${CMAKE_BINARY_DIR}/verdict" "\${verdict}")
TEXT
  cmake -S "$probe" -B "$probe/build" >"$probe/log" 2>&1 || true
  verdict=$(cat "$probe/build/verdict" 2>/dev/null ||
    echo "no CMake cannot configure with it: $(grep -m 1 -A 2 '^CMake Error' "$probe/log" | paste -sd' ')")
  rm -rf "$probe"
  echo "${verdict#* }"
  [[ $verdict == yes* ]]
}

provide_kokkos() {
  local flavour=$1 devices found
  case $flavour in
    host) devices=OPENMP ;;
    cuda) devices='OPENMP CUDA' ;;
    hip) devices='OPENMP HIP' ;;
  esac
  # Kokkos_ROOT comes first in CMake's search, so whoever set it gets that Kokkos or an error.
  if [[ -n ${Kokkos_ROOT:-} ]]; then
    found=$(find_kokkos "$devices") ||
      fail "Kokkos_ROOT=$Kokkos_ROOT will not do for $flavour: $found. Unset it to have Kokkos built."
    say "using $found for $flavour"
  elif "$root/scripts/build_kokkos.sh" --is-built "$flavour"; then
    return 0
  elif [[ -z ${ONEBIT_KOKKOS_SOURCE:-} ]] && found=$(find_kokkos "$devices"); then
    say "using $found for $flavour"
  else
    "$root/scripts/build_kokkos.sh" "$flavour"
  fi
}

# ----------------------------------------------------------------------------

if [[ " ${flavours[*]} $cuda_mpi" =~ cuda|yes ]] && ! command -v nvcc >/dev/null; then
  fail "$*: nvcc is not on PATH. Load the CUDA toolkit (for example: export PATH=/usr/local/cuda/bin:\$PATH)"
fi

if command -v apt-get >/dev/null; then
  install_packages
else
  [[ $cuda_mpi == no ]] || fail "--cuda-mpi builds from apt's source packages, and this system has no apt"
  # A site that has everything needs no apt.
  [[ -n ${ONEBIT_KOKKOS_SOURCE:-} ]] || found=$(find_kokkos OPENMP) || { say "$found" >&2; without_apt; }
fi
for flavour in "${flavours[@]}"; do
  provide_kokkos "$flavour"
done
if [[ $cuda_mpi == yes ]]; then
  "$root/scripts/build_openmpi.sh"
fi
if [[ $style == yes ]]; then
  provide_ruff
fi
if [[ $reframe == yes ]]; then
  provide_reframe
fi
if [[ $python == yes ]]; then
  provide_build_backend
fi
"$root/scripts/corpus.sh"
say "ready"
