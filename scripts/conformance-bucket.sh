#!/usr/bin/env bash
# POSIX over a mounted bucket: random data operations (freehold-fsx) and pjdfstest through FUSE. crates/object/tests/pjdfstest.expected names the tests
# of pjdfstest that cannot pass, and why; one that fails beside them, or passes nevertheless, fails the script. pjdfstest needs root and is skipped,
# aloud, without.
#
#   scripts/conformance-bucket.sh     with the simulated store, once with all that a store can do and once with the least of it; or, when
#                                     FREEHOLD_TEST_S3=http://HOST:PORT/BUCKET is set, with that one. CONFORMANCE_FSX_OPS=N (default 4000),
#                                     PROFILE=release
set -euo pipefail
cd "$(dirname "$0")/.."
ops=${CONFORMANCE_FSX_OPS:-4000}
pjdfstest_version=0.2.2
profile=${PROFILE:-dev}

if [ ! -r /dev/fuse ]; then
    echo "/dev/fuse is not there: nothing over FUSE can be tested" >&2
    exit 1
fi
cargo build --locked --profile "$profile" -p freehold -p freehold-preload -p freehold-sim
target=$(realpath "${CARGO_TARGET_DIR:-target}/${profile/dev/debug}")
freehold=$target/freehold

work=$(mktemp -d "${TMPDIR:-/tmp}/freehold-bucket.XXXXXX")
mnt=$work/mnt helper='' server=''
mkdir "$mnt"
chmod 755 "$work" "$mnt"
unmount() { ! grep -q " $mnt " /proc/mounts || "$freehold" umount "$mnt" || "$freehold" umount --force "$mnt"; }
stop() { [ -z "$server" ] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; server=; }; }
cleanup() {
    unmount || true
    stop
    [ -z "$helper" ] || rm -f "$helper"
    rm -rf "$work"
}
trap cleanup EXIT

options=-opart_size=1m
if [ "$(id -u)" = 0 ]; then
    options+=,allow_other
    # Remounting, which the tests of EROFS do, goes through mount(8) and its helper.
    if [ ! -e /sbin/mount.fuse.freehold ]; then
        helper=/sbin/mount.fuse.freehold
        ln -s "$freehold" "$helper"
    fi
    if ! command -v pjdfstest >/dev/null 2>&1 && [ ! -x "${CARGO_HOME:-$HOME/.cargo}/bin/pjdfstest" ]; then
        echo "==> installing pjdfstest"
        cargo install --quiet --locked --version "$pjdfstest_version" pjdfstest
    fi
fi

# conform NAME URL ENDPOINT: mounts it, and tests it. Nobody else changes it; for pjdfstest what is known counts for a minute, because the store tells
# times in whole seconds, which then stand for finer ones.
conform() {
    "$freehold" mount "$2" "$mnt" "$options,endpoint=$3"
    echo "==> $1: random data operations: two processes, $ops operations each"
    local seed=${FREEHOLD_SEED:-1}
    "$target/freehold-fsx" "$mnt/a" --ops "$ops" --seed "$seed" --size 12582912 --no-holes & first=$!
    "$target/freehold-fsx" "$mnt/b" --ops "$ops" --seed $((seed + 1)) --size 1048576 --no-holes & second=$!
    wait "$first"
    wait "$second"
    rm "$mnt/a" "$mnt/b"
    unmount
    if [ "$(id -u)" = 0 ]; then
        echo "==> $1: pjdfstest"
        "$freehold" mount "$2" "$mnt" "$options,endpoint=$3,expiry=60"
        PJDFSTEST_EXPECTED=crates/object/tests/pjdfstest.expected ./scripts/pjdfstest.sh "$mnt"
        unmount
    else
        echo "==> $1: pjdfstest SKIPPED: it needs root"
    fi
}

export AWS_EC2_METADATA_DISABLED=true
if [ -n "${FREEHOLD_TEST_S3:-}" ]; then
    bucket=${FREEHOLD_TEST_S3##*/}
    conform "$FREEHOLD_TEST_S3" "s3://$bucket/conformance" "${FREEHOLD_TEST_S3%/*}"
    exit
fi
export AWS_ACCESS_KEY_ID=tester AWS_SECRET_ACCESS_KEY=testersecret
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_REGION AWS_DEFAULT_REGION
for abilities in "" --few; do
    mkfifo "$work/stdin"
    # It ends with its standard input, and so with this script.
    "$target/freehold-s3" $abilities <"$work/stdin" >"$work/address" & server=$!
    exec 3>"$work/stdin"
    rm "$work/stdin"
    for _ in $(seq 100); do [ ! -s "$work/address" ] || break; sleep 0.1; done
    read -r endpoint _ <"$work/address"
    conform "simulated store${abilities:+ with $abilities abilities}" s3://bucket "$endpoint"
    exec 3>&-
    stop
done
