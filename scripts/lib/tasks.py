"""Files of a task: what is held out, and how they are written."""

import hashlib


def draw(content):
    """A number in [0, 1) from the hash of a text or of bytes, the same on every machine."""
    content = content.encode() if isinstance(content, str) else content
    return int.from_bytes(hashlib.sha256(content).digest()[:6], "big") / 2**48


def short_hash(content):
    """The start of the SHA-256 of bytes, as the programs print it."""
    return hashlib.sha256(content).hexdigest()[:12]


def write(path, content, what):
    """Writes bytes, so that a reader finds the whole file or none, and prints what they are."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)
    print(f"{path}: {what}, SHA-256 {short_hash(content)}")
