#!/usr/bin/env bash
# Builds Kokkos and Kokkos Kernels into $ONEBIT_DEPS/{host,cuda,hip}, from the sources in $ONEBIT_KOKKOS_SOURCE or from
# the distribution's source package of Trilinos, which has both. Called by setup.sh.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: scripts/build_kokkos.sh [--is-built] host|cuda|hip

  host        OpenMP and Serial, BLAS from OpenBLAS
  cuda        CUDA, OpenMP and Serial, BLAS from cuBLAS and OpenBLAS
  hip         HIP, OpenMP and Serial, BLAS from OpenBLAS
  --is-built  build nothing; succeed if an up-to-date build is there

Environment: ONEBIT_DEPS, ONEBIT_KOKKOS_SOURCE, ONEBIT_CUDA_ARCH, ONEBIT_HIP_ARCH
(see setup.sh --help)
TEXT
}

# shellcheck source=scripts/source_package.sh
. "$(dirname "${BASH_SOURCE[0]}")/source_package.sh"
cuda_arch=${ONEBIT_CUDA_ARCH:-90}
hip_arch=${ONEBIT_HIP_ARCH:-908}
patches=$root/cmake/patches

only_check=no
if [[ ${1:-} == --is-built ]]; then
  only_check=yes
  shift
fi
flavour=${1:-}
case $flavour in
  host|cuda|hip) ;;
  --help|-h) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
[[ $cuda_arch =~ ^[0-9]+$ ]] || fail "ONEBIT_CUDA_ARCH is '$cuda_arch': give a number such as 90"
[[ $hip_arch =~ ^[0-9a-f]+$ ]] || fail "ONEBIT_HIP_ARCH is '$hip_arch': give what follows gfx, such as 908"
prefix=$deps/$flavour
kokkos_source=$(realpath -ms "${ONEBIT_KOKKOS_SOURCE:-$deps/source/kokkos}")
kernels_source=${kokkos_source%/*}/kokkos-kernels

# --- what to build ----------------------------------------------------------

common_options=(
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=17
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_LIBDIR=lib
)
kokkos_options=(-DKokkos_ENABLE_OPENMP=ON -DKokkos_ENABLE_SERIAL=ON)
# OneBit uses gemm alone of Kokkos Kernels, which calls the BLAS from its headers. Explicit instantiation would take
# minutes for nothing. OpenBLAS' OpenMP flavour shares its threads with Kokkos.
blas=$(dpkg -L libopenblas-openmp-dev 2>/dev/null | grep '/libopenblas\.so$' || true) # without dpkg, the linker's
kernels_options=(
  -DKokkosKernels_ENABLED_COMPONENTS=BLAS -DKokkosKernels_ADD_DEFAULT_ETI=OFF
  -DKokkosKernels_ENABLE_TPL_BLAS=ON -DKokkosKernels_ENABLE_TPL_LAPACK=OFF
  -DBLAS_LIBRARIES=openblas "-DBLAS_LIBRARY_DIRS=${blas%/*}"
  "-DF77_BLAS_MANGLE=(name,NAME) name ## _" # spares looking for a Fortran compiler
)
if [[ $flavour == cuda ]]; then
  kokkos_options+=(
    -DKokkos_ENABLE_CUDA=ON -DKokkos_ENABLE_CUDA_LAMBDA=ON -DKokkos_ENABLE_CUDA_CONSTEXPR=ON
  )
  kernels_options+=(
    -DKokkosKernels_ENABLE_TPL_CUBLAS=ON
    # Not used, and its old interface is gone from CUDA 12.
    -DKokkosKernels_ENABLE_TPL_CUSPARSE=OFF
  )
elif [[ $flavour == hip ]]; then
  kokkos_options+=(-DKokkos_ENABLE_HIP=ON)
fi

recipe() {
  echo "g++ $(g++ -dumpfullversion)"
  if [[ $flavour == cuda ]]; then
    echo "nvcc $(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'), sm_$cuda_arch"
    patch_sum # without the patches, the host's code is the same or does not compile
  elif [[ $flavour == hip ]]; then
    hipcc --version 2>/dev/null | paste -sd' ' # its errors are of a machine without a GPU
    echo "gfx$hip_arch"
  fi
  printf '%s\n' "${common_options[@]}" "${kokkos_options[@]}" "${kernels_options[@]}"
  if [[ -n ${ONEBIT_KOKKOS_SOURCE:-} ]]; then
    echo "$kokkos_source $(kokkos_version)"
    ! has_kernels || echo "$kernels_source"
  fi
}
patch_sum() { cat "$patches"/*.patch | sha256sum; }
has_kernels() { [[ -f $kernels_source/CMakeLists.txt ]]; }
kokkos_version() {
  sed -n 's/^ *set *(Kokkos_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\)).*/\2/Ip' "$kokkos_source/CMakeLists.txt" \
    2>/dev/null | paste -sd.
}

! up_to_date || exit 0
[[ $only_check == no ]] || exit 1
lock
! up_to_date || exit 0

# --- sources ----------------------------------------------------------------

source_dir=$deps/source

download() {
  local work=$deps/download archive
  say "fetching the source package trilinos (about 170 MB)"
  download_source trilinos "$work" "give a Kokkos of yours with Kokkos_ROOT"

  archive=$(find "$work" -maxdepth 1 -name 'trilinos_*.orig.tar.*' ! -name '*.asc')
  rm -rf "$source_dir"
  mkdir -p "$source_dir"
  tar -xf "$archive" -C "$source_dir" --strip-components=2 --wildcards \
    --no-wildcards-match-slash '*/packages/kokkos' '*/packages/kokkos-kernels'
  prepare_sources
  rm -rf "$work"
}

# Kokkos 3.4 is older than CUDA 12, its GPUs and GCC 13. Each patch says why it is there. Newer Kokkos needs none.
prepare_sources() {
  local file
  if [[ $(kokkos_version) == 3.4.* ]]; then
    for file in "$patches"/kokkos-3.4-*.patch; do
      patch --quiet --directory="$kokkos_source" --strip=1 <"$file"
    done
  fi
  patch_sum >"$source_dir/.patches" # last: without it the sources are fetched again
}

# --- build ------------------------------------------------------------------

# The GPU architecture, in the words of this version of Kokkos: of AMD and of NVIDIA.
hip_arch_option() {
  case $(kokkos_version):$hip_arch in
    3.*:90[068]) echo "-DKokkos_ARCH_VEGA$hip_arch=ON" ;;
    3.*) fail "Kokkos 3.4 knows gfx900, gfx906 and gfx908; for gfx$hip_arch set Kokkos_ROOT to a newer one" ;;
    *) echo "-DKokkos_ARCH_AMD_GFX${hip_arch^^}=ON" ;;
  esac
}
arch_options() {
  case $(kokkos_version):$cuda_arch in
    3.4.*:75) echo -DKokkos_ARCH_TURING75=ON ;;
    # Knows nothing newer than Ampere; a patch lets the compiler flag be set.
    3.4.*) echo "-DKokkos_ARCH_AMPERE80=ON -DONEBIT_CUDA_ARCH=$cuda_arch" ;;
    *:75) echo -DKokkos_ARCH_TURING75=ON ;;
    *:8[067]) echo "-DKokkos_ARCH_AMPERE$cuda_arch=ON" ;;
    *:89) echo -DKokkos_ARCH_ADA89=ON ;;
    *:90) echo -DKokkos_ARCH_HOPPER90=ON ;;
    *) echo "-DKokkos_ARCH_BLACKWELL$cuda_arch=ON" ;;
  esac
}

# build NAME SOURCE OPTION…: configure, build and install one package.
build() {
  local name=$1 source=$2 log=$prefix.log
  shift 2
  say "building $name for $flavour"
  {
    cmake -G Ninja -S "$source" -B "$deps/build/$flavour/$name" \
      -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_PREFIX_PATH="$prefix" \
      "${common_options[@]}" "$@" &&
      cmake --build "$deps/build/$flavour/$name" --parallel "$processors" &&
      cmake --install "$deps/build/$flavour/$name"
  } >>"$log" 2>&1 || { tail -n 30 "$log" >&2; fail "building $name for $flavour failed: see $log"; }
}

if [[ -n ${ONEBIT_KOKKOS_SOURCE:-} ]]; then
  [[ -n $(kokkos_version) ]] || fail "ONEBIT_KOKKOS_SOURCE=$ONEBIT_KOKKOS_SOURCE holds no sources of Kokkos: name the \
folder whose CMakeLists.txt has Kokkos' version"
elif [[ $(cat "$source_dir/.patches" 2>/dev/null) != "$(patch_sum)" ]]; then
  download
fi

hip_option=
[[ $flavour != hip ]] || hip_option=$(hip_arch_option) # may refuse
rm -rf "$prefix" "$prefix.log" "${deps:?}/build/$flavour"
recipe_text=$(recipe)
compiler=g++
if [[ $flavour == cuda ]]; then
  compiler=$kokkos_source/bin/nvcc_wrapper
  read -ra arch < <(arch_options)
  kokkos_options+=("${arch[@]}")
elif [[ $flavour == hip ]]; then
  compiler=hipcc
  kokkos_options+=("$hip_option")
fi
[[ $(kokkos_version) != 5.* ]] || common_options+=(-DCMAKE_CXX_STANDARD=20)
build kokkos "$kokkos_source" "-DCMAKE_CXX_COMPILER=$compiler" "${kokkos_options[@]}"
[[ $flavour != cuda ]] || compiler=$prefix/bin/nvcc_wrapper
! has_kernels || build kokkos-kernels "$kernels_source" "-DCMAKE_CXX_COMPILER=$compiler" "${kernels_options[@]}"

rm -rf "${deps:?}/build/$flavour"
printf '%s\n' "$recipe_text" >"$prefix/.onebit-stamp"
say "built Kokkos $(kokkos_version) for $flavour in $prefix"
