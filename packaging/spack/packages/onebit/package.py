"""OneBit for Spack, from the checkout that holds this file:

    spack repo add packaging/spack
    spack install onebit            # with GPUs: onebit+cuda cuda_arch=90
"""

import pathlib

from spack.package import *

try:  # Spack 1.0 and newer; older ones have these in spack.package
    from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
    from spack_repo.builtin.build_systems.cuda import CudaPackage
except ImportError:
    pass


class Onebit(CMakePackage, CudaPackage):
    """Trains a transformer data-parallel over MPI with 1-bit Adam, as a Kokkos mini-app."""

    git = f"file://{pathlib.Path(__file__).resolve().parents[4]}"
    license("Apache-2.0 WITH LLVM-exception")
    version("main", branch="main")

    # Each is an option of CMakeLists.txt, but for onednn, which CMake uses where it finds it. The other options are
    # ONEBIT_BUILD_TESTS, which is Spack's --test=root, and those for work on OneBit itself.
    variant("openmp", default=True, description="OpenMP backend")
    variant("native", default=True, description="machine code for the processor that it is built on")
    variant("nccl", default=True, when="+cuda", description="transport nccl")
    variant("onednn", default=True, description="products in bf16 on the host")
    conflicts("+native", when="+cuda", msg="the compiler for GPUs takes no -march=native")
    conflicts("cuda_arch=none", when="+cuda", msg="say for which GPU: cuda_arch=90")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi@3:")
    depends_on("hdf5+mpi")
    depends_on("yaml-cpp")
    depends_on("cli11")
    depends_on("nlohmann-json@3:")
    depends_on("sentencepiece")
    depends_on("onednn@2:3", when="+onednn")
    depends_on("googletest", type="test")
    depends_on("openblas threads=openmp")
    # CMakeLists.txt takes 5.x as well, which nobody has tried.
    depends_on("kokkos@3.4:4+openmp+serial")
    depends_on("kokkos-kernels+openmp+serial+blas")
    for arch in CudaPackage.cuda_arch_values:
        with when(f"+cuda cuda_arch={arch}"):
            depends_on(f"kokkos+cuda+cuda_lambda+wrapper cuda_arch={arch}")
            depends_on("kokkos~alloc_async", when="^kokkos@4.2:")  # CUDA IPC cannot share memory of cudaMallocAsync
            depends_on(f"kokkos-kernels+cuda cuda_arch={arch}")
            depends_on(f"nccl cuda_arch={arch}", when="+nccl")
    # onebit-sweep, report.py and study.py
    depends_on("python@3.9:", type="run")
    depends_on("py-matplotlib", type="run")
    depends_on("py-pyyaml", type="run")

    generator("ninja")

    def cmake_args(self):
        return [
            self.define("ONEBIT_BUILD_TESTS", self.run_tests),
            self.define_from_variant("ONEBIT_OPENMP", "openmp"),
            self.define_from_variant("ONEBIT_NATIVE", "native"),
            self.define("ONEBIT_NCCL", self.spec.satisfies("+nccl")),
            self.define("CMAKE_DISABLE_FIND_PACKAGE_oneDNN", self.spec.satisfies("~onednn")),
        ]

    @run_after("install")
    def install_scripts(self):
        for folder in ("scripts", "inputs", "docs"):
            install_tree(folder, join_path(self.prefix.share, "onebit", folder))
