# For scripts that build from the distribution's source packages into $prefix, whose `recipe` prints everything that the
# build depends on. Defines root, deps, processors, say, fail, up_to_date, lock and download_source.
# shellcheck shell=bash disable=SC2034,SC2154

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=${ONEBIT_DEPS:-$root/.deps}
processors=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # nproc believes them

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# The stamp is the recipe. It is written last, so a failed or interrupted build leaves none.
up_to_date() { [[ -f $prefix/.onebit-stamp && $(<"$prefix/.onebit-stamp") == "$(recipe)" ]]; }

# Checkouts that share $ONEBIT_DEPS must not build at once.
lock() { mkdir -p "$deps"; exec 9>"$deps/.lock"; flock 9; }

# Prints a deb-src line for this distribution's release, made from the entry that apt itself uses for binary packages.
source_line() {
  local codename uri suite component signed_by
  # shellcheck source=/dev/null
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  while IFS='|' read -r uri suite component; do
    # Debian has what is wanted in main, Ubuntu in universe.
    [[ $suite == "$codename" && $component =~ ^(main|universe)$ ]] || continue
    signed_by=$(keyring_of "$uri")
    printf 'deb-src %s%s %s %s\n' "${signed_by:+[signed-by=$signed_by] }" "$uri" "$suite" "$component"
  done < <(apt-get indextargets --format "\$(REPO_URI)|\$(RELEASE)|\$(COMPONENT)" 'Created-By: Packages' | sort -u)
}

# Prints the key that the system's sources name for a repository, if any: apt lists repositories without their keys.
keyring_of() {
  local uri=${1%/}/
  {
    # *.sources files: stanzas with their fields in any order.
    find /etc/apt/sources.list.d -name '*.sources' -exec awk -v uri="$uri" '
      BEGIN { RS = ""; FS = "\n" }
      { key = ""; matches = 0
        for (i = 1; i <= NF; i++) {
          field = $i; gsub(/[ \t]+/, "/ ", field)
          if (field ~ /^URIs:/ && index(field "/", uri)) matches = 1
          if (field ~ /^Signed-By:\/ \//) { key = field; sub(/^[^ ]* /, "", key) }
        }
        if (matches && key != "") print key }' {} \;
    # *.list files: a line each.
    find /etc/apt/sources.list /etc/apt/sources.list.d -name '*.list' -exec awk -v uri="$uri" '
      $1 == "deb" { line = $0; gsub(/[ \t]+/, "/ ", line); if (index(line, uri)) print }' {} + |
      sed -n 's/.*signed-by=\(\/[^] ]*\).*/\1/p'
  } 2>/dev/null | head -n 1
}

# The SHA-256 sums in Debian control data, in the format of sha256sum.
sums_in_control_data() {
  awk '/^[^ ]/ { sums = ($1 == "Checksums-Sha256:") } sums && NF == 3 { print $1 "  " $3 }' "$@"
}

# Downloads a package's upstream archive into the current directory with its own sources.list and checks.
fetch_and_check() {
  local package=$1
  # Lists and caches of its own leave the system's apt alone. apt refuses packages without the distribution's signature.
  local options=(
    -q
    -o "Dir::Etc::SourceList=$PWD/sources.list" -o Dir::Etc::SourceParts=-
    -o "Dir::State::Lists=$PWD/lists" -o "Dir::Cache=$PWD/cache"
    -o Acquire::AllowInsecureRepositories=false -o APT::Get::AllowUnauthenticated=false
    -o "APT::Sandbox::User=$(id -un)"
  )
  mkdir -p lists/partial cache/archives/partial
  apt-get "${options[@]}" -o APT::Update::Error-Mode=any update
  # The distribution's own part is not used, and mirrors of Ubuntu exist that lack it.
  apt-get "${options[@]}" source --download-only --tar-only "$package"
  # apt has checked the index's signature and hashes. Check what is on disk again; this fails where nothing is.
  apt-cache "${options[@]}" showsrc --only-source "$package" | sums_in_control_data >index.sha256
  sha256sum --check --strict --ignore-missing index.sha256
}

# download_source PACKAGE DIRECTORY REMEDY: leaves the package's upstream archive, checked, in a new DIRECTORY.
download_source() {
  local package=$1 work=$2 remedy=$3 lines status
  lines=$(source_line)
  [[ -n $lines ]] || fail "apt has no repository of this distribution's release: $remedy"
  rm -rf "$work"
  mkdir -p "$work"
  echo "$lines" >"$work/sources.list"
  # Not in a condition, where bash ignores -e.
  set +e
  (set -e; cd "$work"; fetch_and_check "$package") >"$work/log" 2>&1
  status=$?
  set -e
  if [[ $status -ne 0 ]]; then
    tail -n 30 "$work/log" >&2
    fail "could not fetch $package: see $work/log"
  fi
  say "checked $package: the index is signed by the distribution, its SHA-256 sum is right"
}
