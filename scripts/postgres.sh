#!/usr/bin/env bash
# PostgreSQL on a volume, under `freehold run`: the server of the volume is killed in the middle of each round and started again. Then every transaction that
# was acknowledged must be there, and those that are there must be whole; at the end PostgreSQL's checksums and fsck must find nothing.
#   scripts/postgres.sh [ROUNDS [SECONDS]]     default: 5 rounds of 10 seconds
# Needs root, /dev/fuse, the programs of PostgreSQL and its user (Debian: postgresql). FREEHOLD_BIN: a directory with built binaries.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} seconds=${2:-10}
programs=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1) || true
[ -n "$programs" ] || programs=$(dirname "$(realpath "$(command -v initdb || echo none)")")
[ -x "$programs/initdb" ] && [ -x "$programs/pgbench" ] || { echo "there is no PostgreSQL here"; exit 2; }
id postgres >/dev/null || { echo "there is no user postgres here"; exit 2; }
bin=${FREEHOLD_BIN:-}
if [ -z "$bin" ]; then
    cargo build --release --locked -p freehold -p freehold-preload
    bin=${CARGO_TARGET_DIR:-target}/release
fi
bin=$(realpath "$bin")

dir=$(mktemp -d /var/tmp/freehold-postgres.XXXXXX) server=
mnt=$dir/mnt sockets=$dir/sockets
as_postgres() {
    (cd / && setpriv --reuid=postgres --regid=postgres --init-groups env -u LD_PRELOAD HOME=/ \
        PGHOST="$sockets" PGUSER=postgres PGDATA="$mnt/data" "$@")
}
on_volume() { as_postgres "$bin/freehold" run -- "$@"; }
serve() {
    "$bin/freehold" mount "$dir/image" "$mnt" --foreground -o allow_other >>"$dir/server.log" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        if mountpoint -q "$mnt" 2>/dev/null; then return; fi
        sleep 0.1
    done
    echo "the volume is not served"
    cat "$dir/server.log"
    exit 1
}
start() {
    on_volume "$programs/pg_ctl" -w -t 60 -l "$dir/sockets/log" start \
        -o "-k $sockets -c listen_addresses= -c shared_buffers=128MB" >/dev/null
}
stop() { on_volume "$programs/pg_ctl" -w -m "$1" stop >/dev/null; }
ask() { as_postgres "$programs/psql" -AtX -c "$1" postgres; }
tidy_up() {
    set +e
    if [ -e "$mnt/data/postmaster.pid" ]; then stop immediate; fi
    umount "$mnt" 2>/dev/null || umount -l "$mnt" 2>/dev/null
    if [ -n "$server" ]; then wait "$server"; fi
    rm -rf "$dir"
}
trap tidy_up EXIT

chmod 755 "$dir"
mkdir "$mnt" "$sockets"
chown postgres "$sockets"
truncate -s 6G "$dir/image"
"$bin/freehold" mkfs "$dir/image" >/dev/null
serve
mkdir "$mnt/data"
chown postgres "$mnt/data"
chmod 700 "$mnt/data"
on_volume "$programs/initdb" -k -A trust -U postgres >/dev/null
start
as_postgres "$programs/pgbench" -q -i -s 5 postgres >/dev/null 2>&1
acknowledged=0
for round in $(seq "$rounds"); do
    as_postgres "$programs/pgbench" -n -c 4 -j 2 -T "$seconds" --log --log-prefix="$sockets/round-$round" postgres \
        >"$dir/bench.log" 2>&1 &
    bench=$!
    sleep "$(awk -v s="$seconds" -v r="$RANDOM" 'BEGIN { print s * (0.2 + 0.6 * r / 32768) }')"
    kill -9 "$server"
    wait "$server" 2>/dev/null || true
    umount -l "$mnt" 2>/dev/null || true
    serve
    # Those whose sync failed end, and PostgreSQL begins again from its log; or nobody was in the middle of anything.
    wait "$bench" 2>/dev/null || true
    for _ in $(seq 300); do
        if as_postgres "$programs/pg_isready" -q; then break; fi
        sleep 0.1
    done
    if ! as_postgres "$programs/pg_isready" -q; then
        stop immediate || true
        start
    fi
    more=$(cat "$sockets/round-$round"* | wc -l)
    if [ "$more" = 0 ]; then
        echo "FAILED: nothing was done in round $round"
        cat "$dir/bench.log"
        exit 1
    fi
    acknowledged=$((acknowledged + more))
    there=$(ask "select count(*) from pgbench_history")
    sums=$(ask "select (select sum(abalance) from pgbench_accounts) || ' ' || (select sum(tbalance) from pgbench_tellers)
        || ' ' || (select sum(bbalance) from pgbench_branches) || ' ' || (select coalesce(sum(delta), 0) from pgbench_history)")
    echo "round $round: $acknowledged transactions acknowledged, $there there; sums $sums"
    if [ "$there" -lt "$acknowledged" ] || [ "$(tr ' ' '\n' <<<"$sums" | sort -u | wc -l)" != 1 ]; then
        echo "FAILED: transactions are lost, or in part"
        exit 1
    fi
done
stop fast
on_volume "$programs/pg_checksums" --check | grep -E "Bad checksums|Blocks scanned"
umount "$mnt"
wait "$server"
server=
"$bin/freehold" fsck "$dir/image"
echo "nothing is lost"
