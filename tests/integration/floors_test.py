#!/usr/bin/env python3
"""The floors of docs/develop/design.md: a folder of src uses only floors below its own.

usage: floors_test.py SOURCE_DIRECTORY

Looks at every #include under src and at what each folder's library links, at who may know MPI, YAML, JSON, HDF5 and
the versions of Kokkos, and at enums: none has a twin, and base/choices.hpp names each value of its enums. No folder has
more than 16 files.
"""

import re
import sys
from pathlib import Path

FLOORS = {
    "app": 6,
    "train": 5, "bench": 5,
    "optim": 4, "workload": 4,
    "comm": 3, "nn": 3, "data": 3,
    "compress": 2, "linalg": 2, "config": 2, "io": 2,
    "base": 1,
}  # fmt: skip

# What only these folders may include.
KNOWN_TO = {
    r"mpi(-ext)?\.h$": {"base", "comm"},
    r"yaml-cpp/": {"config"},
    r"hdf5\.h$": {"io"},
    r"nlohmann/": {"io"},
    r"io/": {"io", "data", "train", "bench", "app"},
    r"sentencepiece": {"data"},
    r"CLI/": {"app"},
    r"Kokkos_Core\.hpp$": {"base"},
    r"base/mpi\.hpp$": {"app", "train", "workload", "bench", "comm", "io", "base"},
    r"base/kokkos\.hpp$": FLOORS.keys() - {"config"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


MOST_FILES = 16  # of a folder of src


def may_use(user: str, used: str) -> bool:
    return user == used or FLOORS[used] < FLOORS[user]


def include_errors(src: Path, file: Path) -> list[str]:
    """Errors of one file, as a compiler would print them."""
    folder = file.relative_to(src).parts[0]
    errors = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        place = f"{file}:{number}"
        if "KOKKOS_VERSION" in line and file != src / "base" / "kokkos.hpp":
            errors.append(f"{place}: tests the version of Kokkos, which only base/kokkos.hpp may")
        found = INCLUDE.match(line)
        if not found:
            continue
        path = found[1] or found[2]
        if found[1]:
            used = path.split("/")[0]
            if "/" not in path or used not in FLOORS:
                errors.append(f"{place}: \"{path}\" does not begin with a folder of src")
            elif not may_use(folder, used):
                errors.append(f"{place}: {folder} (floor {FLOORS[folder]}) uses {used} (floor {FLOORS[used]})")
        for pattern, folders in KNOWN_TO.items():
            if re.search("^" + pattern, path) and folder not in folders:
                errors.append(f"{place}: {folder} must not know {path}")
    return errors


def link_errors(lists: Path) -> list[str]:
    """Errors of the libraries' links in src/CMakeLists.txt."""
    errors = []
    declared = set()
    for folder, arguments in re.findall(r"^onebit_add_folder\((\w+)([^)]*)\)", lists.read_text(encoding="utf-8"), re.M):
        declared.add(folder)
        if folder not in FLOORS:
            errors.append(f"{lists}: {folder} has no floor")
            continue
        for used in re.findall(r"\bonebit_(\w+)\b(?!\.)", arguments):
            if used not in FLOORS or used == folder or not may_use(folder, used):
                errors.append(f"{lists}: onebit_{folder} links onebit_{used}")
    if not declared:
        errors.append(f"{lists}: no onebit_add_folder(…) was found")
    return errors


def enum_errors(src: Path) -> list[str]:
    """Errors of enums: a name or values that two of them share, and names of choices that do not fit the values."""
    errors = []
    seen: dict[object, Path] = {}
    for file in sorted(path for path in src.rglob("*") if path.suffix in {".h", ".hpp", ".cpp"}):
        text = re.sub(r"//.*", "", file.read_text(encoding="utf-8"))
        for name, body in re.findall(r"\benum class (\w+)[^{;]*\{([^}]*)\}", text):
            values = tuple(re.findall(r"(\w+)(?:\s*=[^,]*)?\s*(?:,|$)", body.strip()))
            for key in (name, frozenset(values)):
                if key in seen:
                    errors.append(f"{file}: enum {name} is the twin of one in {seen[key]}")
                seen[key] = file
            if file == src / "base" / "choices.hpp":
                found = re.search(rf"names\({name}\) \{{\s*return std::array\{{([^}}]*)\}}", text)
                names = tuple(re.findall(r'"(\w+)"', found[1])) if found else ()
                if names != tuple(value.replace("automatic", "auto") for value in values):
                    errors.append(f"{file}: the names of enum {name} are not its values")
    if not seen:
        errors.append(f"{src}: no enum was found")
    return errors


def folder_errors(src: Path) -> list[str]:
    """Errors of folders in which a stranger would have to search: more files than fit into one look."""
    counts = {folder: sum(path.is_file() for path in folder.iterdir()) for folder in src.rglob("*") if folder.is_dir()}
    return [f"{folder}: {count} files; at most {MOST_FILES}, beside subfolders that say what they hold"
            for folder, count in sorted(counts.items()) if count > MOST_FILES]


def main() -> None:
    src = Path(sys.argv[1]) / "src"
    errors = link_errors(src / "CMakeLists.txt") + enum_errors(src) + folder_errors(src)
    files = sorted(path for path in src.rglob("*") if path.suffix in {".h", ".hpp", ".cpp", ".in"})
    for file in files:
        folder = file.relative_to(src).parts[0]
        if folder in FLOORS:
            errors += include_errors(src, file)
        else:
            errors.append(f"{file}: {folder} has no floor")
    print("\n".join(errors))
    print(f"{len(files)} files looked at, {len(errors)} errors")
    sys.exit(bool(errors) or not files)


if __name__ == "__main__":
    main()
