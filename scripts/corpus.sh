#!/usr/bin/env bash
# Writes the quick start's corpus, corpus/kjv.txt: the King James Bible of Debian's bible-kjv. Called by setup.sh.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
corpus=$root/corpus/kjv.txt

if [[ -s $corpus ]]; then
  exit 0
fi
if ! command -v bible >/dev/null; then
  echo "setup: no program 'bible' (Debian's bible-kjv): the quick start needs a text of yours as $corpus" >&2
  exit 0
fi
# One verse a line, without its number, and a blank line in place of a chapter's heading. The file gets its name when it
# is complete, so that an interrupted run, or two runs at once, leave no partial file.
mkdir -p "$(dirname "$corpus")"
part=$(mktemp "$corpus.XXXXXX")
trap 'rm -f "$part"' EXIT
bible -l9999 gen1:1-rev22:21 </dev/null |
  awk '/^  [0-9]+ / { sub(/^  [0-9]+ /, ""); print; next }
       /[^ ]/ && NR > 3 { print "" }' >"$part"
verses=$(grep -c . "$part")
if [[ $verses -ne 31102 ]]; then
  echo "setup: the Bible has 31102 verses, 'bible' printed $verses: no corpus written" >&2
  exit 1
fi
chmod 644 "$part"
mv "$part" "$corpus"
echo "setup: wrote the default corpus, $(wc -c <"$corpus") bytes"
