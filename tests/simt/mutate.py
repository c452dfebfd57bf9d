"""Writes a copy of a header in which one text is another one.

Called as `mutate.py HEADER COPY OLD NEW`, with \\n for the end of a line. Fails unless OLD is there exactly once, so
that a mutant cannot become the original unnoticed.
"""

import pathlib
import sys

header, copy = sys.argv[1:3]
old, new = (text.replace("\\n", "\n") for text in sys.argv[3:])
text = pathlib.Path(header).read_text(encoding="utf-8")
if text.count(old) != 1:
    sys.exit(f"error: {header}: '{old}' is there {text.count(old)} times, not once: choose another text in "
             "tests/simt/CMakeLists.txt")
pathlib.Path(copy).parent.mkdir(parents=True, exist_ok=True)
pathlib.Path(copy).write_text(text.replace(old, new), encoding="utf-8")
