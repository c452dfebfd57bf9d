"""OneBit for Spack, from the checkout that holds this file:

    spack repo add packaging/spack
    spack install onebit            # with GPUs: onebit+cuda cuda_arch=90, or onebit+rocm amdgpu_target=gfx90a
"""

import pathlib

from spack.package import *

try:  # Spack 1.0 and newer; older ones have these in spack.package
    from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
    from spack_repo.builtin.build_systems.cuda import CudaPackage
    from spack_repo.builtin.build_systems.rocm import ROCmPackage

    has_alloc_async = True
except ImportError:
    has_alloc_async = False  # its recipe of Kokkos lacks that variant


class Onebit(CMakePackage, CudaPackage, ROCmPackage):
    """Trains a transformer data-parallel over MPI with 1-bit Adam, as a Kokkos mini-app."""

    # There is no release yet. The first one adds `url`, the address of its tarball, and a version with its checksum.
    git = f"file://{pathlib.Path(__file__).resolve().parents[4]}"
    license("Apache-2.0 WITH LLVM-exception")
    version("main", branch="main")

    # Each is an option of CMakeLists.txt, but for onednn, which CMake uses where it finds it. The other options are
    # ONEBIT_BUILD_TESTS, which is Spack's --test=root, those that leave a part out, and those for work on OneBit.
    variant("openmp", default=True, description="OpenMP backend")
    variant("native", default=False, description="machine code for the processor that it is built on")
    variant("nccl", default=True, when="+cuda", description="transport nccl")
    variant("rccl", default=True, when="+rocm", description="transport nccl, by RCCL")
    variant("onednn", default=True, description="products in bf16 on the host")
    conflicts("+native", when="+cuda", msg="the compiler for GPUs takes no -march=native")
    conflicts("+native", when="+rocm", msg="the compiler for GPUs takes no -march=native")
    conflicts("+cuda", when="+rocm", msg="Kokkos has one GPU backend at a time")
    conflicts("cuda_arch=none", when="+cuda", msg="say for which GPU: cuda_arch=90")
    conflicts("amdgpu_target=none", when="+rocm", msg="say for which GPU: amdgpu_target=gfx90a")

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
    depends_on("kokkos@3.4:5+openmp+serial")  # docs/guide/build.md says which were tried
    depends_on("kokkos-kernels+openmp+serial+blas")
    for arch in CudaPackage.cuda_arch_values:
        with when(f"+cuda cuda_arch={arch}"):
            depends_on(f"kokkos+cuda+cuda_lambda+cuda_constexpr+wrapper cuda_arch={arch}")
            if has_alloc_async:  # CUDA IPC cannot share memory of cudaMallocAsync
                depends_on("kokkos~alloc_async", when="^kokkos@4.2:")
            else:
                conflicts("^kokkos@4.2:4.4", msg="this Kokkos allocates by cudaMallocAsync: take another version")
            depends_on(f"kokkos-kernels+cuda cuda_arch={arch}")
            depends_on(f"nccl cuda_arch={arch}", when="+nccl")
    for target in ROCmPackage.amdgpu_targets:
        with when(f"+rocm amdgpu_target={target}"):
            depends_on(f"kokkos+rocm amdgpu_target={target}")
            depends_on(f"rocblas amdgpu_target={target}")
            depends_on(f"rccl amdgpu_target={target}", when="+rccl")
    # onebit-sweep, report.py, predict.py, chakra.py and study.py
    depends_on("python@3.9:", type="run")
    depends_on("py-matplotlib", type="run")
    depends_on("py-numpy", type="run")
    depends_on("py-scipy", type="run")
    depends_on("py-pyyaml", type="run")
    depends_on("py-protobuf", type="run")

    generator("ninja")

    def cmake_args(self):
        arguments = [
            self.define("ONEBIT_BUILD_TESTS", self.run_tests),
            self.define_from_variant("ONEBIT_OPENMP", "openmp"),
            self.define_from_variant("ONEBIT_NATIVE", "native"),
            self.define("ONEBIT_NCCL", self.spec.satisfies("+nccl") or self.spec.satisfies("+rccl")),
            self.define("CMAKE_DISABLE_FIND_PACKAGE_oneDNN", self.spec.satisfies("~onednn")),
        ]
        if self.spec.satisfies("+rocm"):
            arguments.append(self.define("CMAKE_CXX_COMPILER", self.spec["hip"].hipcc))
        return arguments

    @run_after("install")
    def install_scripts(self):
        for folder in ("scripts", "inputs", "docs"):
            install_tree(folder, join_path(self.prefix.share, "onebit", folder))
