#!/usr/bin/env bash
# Makes the documentation's site of the pages and of the headers that are installed.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: scripts/docs.sh [DIRECTORY]

Makes the site in DIRECTORY (default: build/docs) and prints where it begins.
Warnings of Sphinx and Doxygen are errors. scripts/setup.sh --docs installs both.

Exit status: 0; 1 where there are warnings; 2 where an argument is wrong;
77 where Sphinx or Doxygen is missing.
TEXT
}

case ${1:-} in
  --help|-h) usage; exit 0 ;;
  -*) usage >&2; exit 2 ;;
esac
[[ $# -le 1 ]] || { usage >&2; exit 2; }

lacking() {
  echo "docs: no $1 here: scripts/setup.sh --docs installs it" >&2
  exit 77
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
output=$(realpath -m "${1:-$root/build/docs}")
command -v doxygen >/dev/null || lacking Doxygen
sphinx=
for python in python3 /usr/bin/python3; do # the first one on PATH may not be Debian's
  if "$python" -c 'import sphinx, myst_parser, breathe' 2>/dev/null; then
    sphinx=$python
    break
  fi
done
[[ -n $sphinx ]] || lacking "Sphinx with MyST and Breathe"

# All pages are read again, because Sphinx does not repeat the warnings of pages that it has read before.
"$sphinx" -m sphinx -q -E -a -W --keep-going -b html -c "$root/scripts/site" -d "$output/doctrees" "$root" \
  "$output/html" || exit 1
echo "$output/html/index.html"
