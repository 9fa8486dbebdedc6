#!/bin/sh
# Runs pjdfstest (POSIX semantics of file system calls) on the mounted directory DIR and prints the summary.
#
#   scripts/pjdfstest.sh DIR [TEST_PATTERN...]
#
# Needs root, a file system that all users may enter, and pjdfstest (cargo install pjdfstest). No users are made: the two
# that the tests switch to are nobody and daemon, with their groups as this machine has them. DIR's file system is
# remounted read-only and back by some tests. Exit status: 0 when nothing failed.
set -eu
dir=${1:?usage: scripts/pjdfstest.sh DIR [TEST_PATTERN...]}
shift
tool=$(command -v pjdfstest || echo "${CARGO_HOME:-$HOME/.cargo}/bin/pjdfstest")
[ -x "$tool" ] || { echo "pjdfstest is not installed: cargo install pjdfstest" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "pjdfstest needs root" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
pair() { printf '  ["%s", "%s"],\n' "$1" "$(id -gn "$1")"; }
{
    cat "$(dirname "$0")/../crates/fuse/tests/pjdfstest.toml"
    echo '[dummy_auth]'
    echo 'entries = ['
    pair nobody
    pair daemon
    echo ']'
} > "$work/config.toml"

# A second file system for the tests of EXDEV.
second=/dev/shm
[ "$(stat -c %d "$second")" != "$(stat -c %d "$dir")" ] || second=/tmp

umask 022
status=0
"$tool" -c "$work/config.toml" -p "$dir" -s "$second" "$@" > "$work/out" 2>&1 || status=$?
grep -E 'FAILED|failed|panicked|Error' "$work/out" | grep -vE '0 failed' || true
tail -n 5 "$work/out"
[ -z "${PJDFSTEST_LOG:-}" ] || cp "$work/out" "$PJDFSTEST_LOG"
exit "$status"
