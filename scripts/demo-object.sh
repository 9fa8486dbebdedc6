#!/usr/bin/env bash
# A bucket as a file system: starts an S3 server for development (versitygw, which keeps objects as plain files, so that one sees what is in the
# bucket), mounts a bucket, and shows what a backup needs, with a killed mount in the middle.
#   scripts/demo-object.sh     needs /dev/fuse; installs versitygw with `go install` where it is missing (minutes, once)
set -euo pipefail
cd "$(dirname "$0")/.."
freehold=${FREEHOLD:-${CARGO_TARGET_DIR:-target}/release/freehold}
[ -x "$freehold" ] || cargo build --release --locked -p freehold
bin=${FREEHOLD_SERVERS:-$HOME/.cache/freehold-servers}
if [ ! -x "$bin/versitygw" ]; then
    command -v go >/dev/null 2>&1 || { echo "Go is missing, and versitygw with it: see https://go.dev/dl" >&2; exit 1; }
    echo "==> installing versitygw"
    mkdir -p "$bin"
    GOBIN=$bin GOFLAGS=-mod=mod go install github.com/versity/versitygw/cmd/versitygw@latest
fi
export AWS_ACCESS_KEY_ID=demo AWS_SECRET_ACCESS_KEY=demosecret AWS_EC2_METADATA_DISABLED=true
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_REGION AWS_DEFAULT_REGION
data=$(mktemp -d)
mnt=$data/mnt store=$data/store/backups
mkdir -p "$mnt" "$store"
server=
stop() {
    mountpoint -q "$mnt" && "$freehold" umount --force "$mnt" || true
    [ -z "$server" ] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
    rm -rf "$data"
}
trap stop EXIT
port=$((20000 + RANDOM % 10000))
ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY \
    "$bin/versitygw" --port "127.0.0.1:$port" --keep-alive --quiet posix "$data/store" >"$data/log" 2>&1 &
server=$!
./scripts/listens.sh "$server" "$port" || { echo "versitygw did not start:" >&2; cat "$data/log" >&2; exit 1; }
export AWS_ENDPOINT_URL=http://127.0.0.1:$port

say() { printf '\n==> %s\n' "$*"; }
mount_it() { "$freehold" mount s3://backups "$mnt"; }
say "freehold mount s3://backups $mnt"
mount_it
say "a backup of this project's sources, through the mount"
mkdir "$mnt/src"
tar -C crates -cf - . | tar -xf - -C "$mnt/src"
diff -r crates "$mnt/src" && echo "read back: the same"
say "one large file, in parts; visible for others when it is closed"
head -c 64M /dev/urandom >"$data/dump"
cp "$data/dump" "$mnt/dump"
cmp "$data/dump" "$store/dump" && echo "in the bucket: the same"
say "a line is appended: the 64 MiB are copied within the store"
echo "one more line" >>"$mnt/dump"
tail -c 14 "$store/dump"
say "a directory is renamed"
mv "$mnt/src" "$mnt/sources"
ls "$store/sources" | head -3
say "the mount is killed while a file is being written"
(head -c 64M /dev/urandom; sleep 30) | dd of="$mnt/unfinished" bs=1M iflag=fullblock status=none 2>/dev/null &
writer=$!
sleep 3
pkill_pid=$(pgrep -f "mount --server.*$mnt" | head -n 1)
kill -9 "$pkill_pid"
kill "$writer" 2>/dev/null || true
wait "$writer" 2>/dev/null || true
"$freehold" umount "$mnt" || true
mount_it
# It may be there, empty: dd makes it and closes one of its descriptors before it writes.
[ ! -s "$mnt/unfinished" ] || { echo "half of a file is there" >&2; exit 1; }
echo "nothing half-written is there"
cmp -n $((64 << 20)) "$data/dump" "$mnt/dump"
echo "what was closed is whole"
say "what it had sent is listed, and given up"
"$freehold" object parts s3://backups
"$freehold" object gc s3://backups --older 0
"$freehold" umount "$mnt"
say "done"
