"""OneBit for Spack, from the checkout that holds this file:

    spack repo add packaging/spack
    spack install onebit            # with GPUs: onebit+cuda cuda_arch=90
"""

import pathlib

from spack.package import *


class Onebit(CMakePackage, CudaPackage):
    """Trains a transformer data-parallel over MPI with 1-bit Adam, as a Kokkos mini-app."""

    git = f"file://{pathlib.Path(__file__).resolve().parents[4]}"
    version("main", branch="main")

    variant("native", default=True, description="machine code for the processor that it is built on")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconf", type="build")
    depends_on("mpi@3:")
    depends_on("hdf5+mpi")
    depends_on("yaml-cpp")
    depends_on("cli11")
    depends_on("sentencepiece")
    depends_on("googletest", type=("build", "test"))
    depends_on("openblas threads=openmp")
    depends_on("kokkos@3.4:5+openmp+serial")
    depends_on("kokkos-kernels+openmp+serial+blas")
    for arch in CudaPackage.cuda_arch_values:
        with when(f"+cuda cuda_arch={arch}"):
            depends_on(f"kokkos+cuda+cuda_lambda cuda_arch={arch}")
            depends_on(f"kokkos-kernels+cuda+cublas cuda_arch={arch}")
    # onebit-sweep, report.py and study.py
    depends_on("python@3.9:", type="run")
    depends_on("py-matplotlib", type="run")
    depends_on("py-pyyaml", type="run")

    generator("ninja")
    build_targets = ["onebit"]

    def cmake_args(self):
        return [self.define_from_variant("ONEBIT_NATIVE", "native")]

    def install(self, spec, prefix):
        mkdirp(prefix.bin)
        install(join_path(self.build_directory, "onebit"), prefix.bin)
        for folder in ("scripts", "inputs", "docs"):
            install_tree(folder, join_path(prefix.share, "onebit", folder))
