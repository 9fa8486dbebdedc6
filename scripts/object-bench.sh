#!/usr/bin/env bash
# A bucket as a file system beside others that mount one: the same loads, on the same server, in the same run.
#   scripts/object-bench.sh [--repeat N] [--size MIB] [--rows ROW,...] [--only 'NAME;...'] [--out FILE] ...    (--help tells all)
# Installs what is missing: s3fs from the packages of Debian, and versitygw (the server), SeaweedFS (the server of the row rename-native), rclone, geesefs
# and goofys with Go, which takes half an hour, once. mountpoint-s3 is built here, which takes another: no registry has the program, but that of crates has its libraries,
# and object-bench/mountpoint mounts with them. What cannot be installed is left out and said to be. They are kept in $FREEHOLD_SERVERS (default:
# ~/.cache/freehold-servers). No newer s3fs than that of Debian is measured.
# Needs root (mounts, and the page cache must be emptied), and room: the server keeps its data in --data (default: /dev/shm).
set -euo pipefail
cd "$(dirname "$0")/.."
export FREEHOLD_SERVERS=${FREEHOLD_SERVERS:-$HOME/.cache/freehold-servers}
mkdir -p "$FREEHOLD_SERVERS"
target=${CARGO_TARGET_DIR:-target}/release
export PYTHONDONTWRITEBYTECODE=1
export FREEHOLD=${FREEHOLD:-$target/freehold} FREEHOLD_SLOW_NET=${FREEHOLD_SLOW_NET:-$target/freehold-slow-net}
[ -x "$FREEHOLD" ] || cargo build --release --locked -p freehold
[ -x "$FREEHOLD_SLOW_NET" ] || cargo build --release --locked -p freehold-sim --bin freehold-slow-net

# install NAME PACKAGE
install() {
    [ ! -x "$FREEHOLD_SERVERS/$1" ] || return 0
    command -v go >/dev/null 2>&1 || { echo "Go is missing, and $1 with it: see https://go.dev/dl" >&2; return 0; }
    echo "==> installing $1"
    GOBIN=$FREEHOLD_SERVERS GOFLAGS=-mod=mod go install "$2" || echo "$1 cannot be installed" >&2
}

# packages NAME...
packages() {
    apt-get update >/dev/null || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >/dev/null
}

# Where it is built stays when that fails, and the next try goes on from there.
build_mountpoint() {
    local built=$FREEHOLD_SERVERS/mountpoint-build
    if command -v apt-get >/dev/null 2>&1; then
        # Its client is C, which cmake builds and libclang reads; without some of them the build says what it misses.
        packages clang libclang-dev cmake pkg-config libfuse3-dev fuse3 || true
    fi
    cargo build --release --locked --manifest-path scripts/object-bench/mountpoint/Cargo.toml --target-dir "$built" &&
        mv "$built/release/mountpoint-peer" "$FREEHOLD_SERVERS/" && rm -rf "$built"
}

[ -x "$FREEHOLD_SERVERS/weed" ] || ./scripts/seaweedfs.sh "$FREEHOLD_SERVERS" || echo "seaweedfs cannot be installed" >&2
install versitygw github.com/versity/versitygw/cmd/versitygw@latest
install rclone github.com/rclone/rclone@latest
install geesefs github.com/yandex-cloud/geesefs@latest
install goofys github.com/kahing/goofys@latest
if ! command -v s3fs >/dev/null 2>&1 && command -v apt-get >/dev/null 2>&1; then
    echo "==> installing s3fs"
    packages s3fs fuse3 || echo "s3fs cannot be installed" >&2
fi
if [ ! -x "$FREEHOLD_SERVERS/mountpoint-peer" ]; then
    echo "==> building mountpoint-peer"
    build_mountpoint || echo "mountpoint-s3 cannot be built" >&2
fi
exec python3 scripts/object-bench/main.py "$@"
