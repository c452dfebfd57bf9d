"""Shared libraries: what programs need, and where this machine has NVIDIA's."""

import os
import pathlib
import re
import shutil
import site
import subprocess
import sys

# Libraries of glibc, of the driver, and of the CUDA toolkit and NCCL: the other machine has its own.
PROVIDED = re.compile(r"(ld-linux.*|linux-vdso|lib(c|m|dl|pthread|rt|util|resolv|nsl|anl|nss_\w+"
                      r"|cuda|nvidia-\S+|cublas|cublasLt|cudart|nccl))\.so(\.|$)")

PLACES = ("/usr/local", "/opt")  # where CUDA toolkits and drivers are installed


def parse_ldd(text):
    """Output of ldd: ({name: path or None where it is not found}, [what the system's libraries are too old for])."""
    found = {name: None if path.startswith("not found") else path
             for name, path in re.findall(r"^\s+(\S+) => (not found|/\S+)", text, re.M)}
    return found, sorted(set(re.findall(r"version `(\S+)' not found", text)))


def needs(files, environment=None):
    """parse_ldd of all files together. A script among them needs nothing."""
    text = "".join(subprocess.run(["ldd", str(file)], env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True).stdout for file in files)
    return parse_ldd(text)


def closure(files, environment=None):
    """{name: path} of the libraries that files need, directly or not, without PROVIDED."""
    found, _ = needs(files, environment)
    wanted = {name: path for name, path in found.items() if not PROVIDED.match(name)}
    if missing := sorted(name for name, path in wanted.items() if path is None):
        raise FileNotFoundError(f"not found: {', '.join(missing)}")
    return wanted


def python_packages(executable=sys.executable):
    """Directories of a Python's packages: this process's, or another one's."""
    if executable == sys.executable:
        return [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
    asked = subprocess.run([executable, "-c", "import sys; print('\\n'.join(sys.path))"], stdout=subprocess.PIPE,
                           text=True)
    return asked.stdout.split()


def toolkits(environment, roots=PLACES):
    """Directories of CUDA toolkits: those that the user names, that of nvcc, and those in the usual places."""
    named = [environment.get(name) for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")]
    if nvcc := shutil.which("nvcc", path=environment.get("PATH")):
        named.append(pathlib.Path(nvcc).resolve().parents[1])
    usual = [found for root in roots for found in sorted(pathlib.Path(root).glob("cuda*"), reverse=True)]
    return list(dict.fromkeys(map(pathlib.Path, [*filter(None, named), *usual])))


def nvidia_directories(environment, packages=(), roots=PLACES):
    """Directories that may hold NVIDIA's libraries, the likeliest first: those that the user names, CUDA toolkits, the
    driver's, and the wheels `nvidia-*` that PyTorch installs into `packages`."""
    places = [pathlib.Path(path) for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path]
    for toolkit in toolkits(environment, roots):
        places += [toolkit / folder for folder in ("lib64", "lib", "targets/x86_64-linux/lib")]
    places += [pathlib.Path(root) / "nvidia" / folder for root in roots for folder in ("lib64", "lib")]
    for package in packages:
        places += sorted(pathlib.Path(package or ".").glob("nvidia/*/lib*"))
    return [path for path in dict.fromkeys(places) if path.is_dir()]


def find(names, directories):
    """({name: first directory with it}, {name: other versions of it that are there})."""
    found, others = {}, {}
    for name in names:
        stem = re.sub(r"\.so.*", ".so", name)
        for directory in directories:
            if (directory / name).exists():
                found[name] = directory
                break
        else:
            others[name] = sorted({str(path) for directory in directories for path in directory.glob(f"{stem}.*")})
    return found, others


def with_paths(environment, directories):
    """The environment in which the loader looks into these directories first."""
    given = [path for path in environment.get("LD_LIBRARY_PATH", "").split(":") if path]
    paths = list(dict.fromkeys([*map(str, directories), *given]))
    return {**environment, "LD_LIBRARY_PATH": os.pathsep.join(paths)} if paths else dict(environment)
