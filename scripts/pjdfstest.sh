#!/bin/sh
# Runs pjdfstest (POSIX semantics of file system calls) on the mounted directory DIR and prints the summary.
#
#   scripts/pjdfstest.sh DIR [TEST_PATTERN...]
#
# Needs root, a file system that all users may enter, and pjdfstest (cargo install pjdfstest). No users are made: the two
# that the tests switch to are nobody and daemon, with their groups as this machine has them. The tests of EROFS remount
# DIR read-only and back with mount(8), which hands FUSE mounts to a helper of their type; they are skipped where that is
# missing. They run in a process of their own: the other tests leave files open, and then no file system can be remounted.
# PJDFSTEST_LOG=FILE keeps the whole output. PJDFSTEST_UNDER="COMMAND WORD..." starts it under that command. PJDFSTEST_EXPECTED=FILE
# names tests, one a line, that must fail (# begins a comment): one of them that passes is a failure, too.
# Exit status: 0 when nothing failed.
set -eu
dir=${1:?usage: scripts/pjdfstest.sh DIR [TEST_PATTERN...]}
shift
tool=$(command -v pjdfstest || echo "${CARGO_HOME:-$HOME/.cargo}/bin/pjdfstest")
[ -x "$tool" ] || { echo "pjdfstest is not installed: cargo install pjdfstest" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "pjdfstest needs root" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
type=$(findmnt -n -o FSTYPE --target "$dir" | tail -n 1)
remount=true
case $type in fuse*) [ -x "/sbin/mount.$type" ] || remount=false ;; esac
pair() { printf '  ["%s", "%s"],\n' "$1" "$(id -gn "$1")"; }
config() {
    cat "$(dirname "$0")/../crates/fuse/tests/pjdfstest.toml"
    echo "allow_remount = $1"
    if [ -n "${PJDFSTEST_EXPECTED:-}" ]; then
        echo 'expected_failures = ['
        sed -n 's/[[:space:]]*#.*//; s/..*/  "&",/p' "$PJDFSTEST_EXPECTED"
        echo ']'
    fi
    echo '[dummy_auth]'
    echo 'entries = ['
    pair nobody
    pair daemon
    echo ']'
}

# A second file system for the tests of EXDEV.
second=/dev/shm
[ "$(stat -c %d "$second")" != "$(stat -c %d "$dir")" ] || second=/tmp

umask 022
status=0
run() {
    config "$1" > "$work/config.toml"
    shift
    # shellcheck disable=SC2086 # a command and its words
    ${PJDFSTEST_UNDER:-} "$tool" -c "$work/config.toml" -p "$dir" -s "$second" "$@" > "$work/out" 2>&1 || status=$?
    grep -E '(FAILED|PASSED UNEXPECTEDLY)$' "$work/out" || true
    grep '^Summary' "$work/out" || tail -n 20 "$work/out"
    [ -z "${PJDFSTEST_LOG:-}" ] || cat "$work/out" >> "$PJDFSTEST_LOG"
}
run false "$@"
if [ $# = 0 ] && [ "$remount" = true ] && [ -z "${PJDFSTEST_UNDER:-}" ]; then
    echo 'the tests that remount:'
    run true erofs
fi
exit "$status"
