#!/usr/bin/env bash
# Kills programs that work on a served volume, and the server, again and again, and looks what is left: crates/freehold/tests/kill.rs says what must hold;
# or the server of a mounted bucket (crates/freehold/tests/bucket.rs).
#   scripts/kill-loop.sh [bucket] [SECONDS [SEED]]     default: 600 seconds, a seed of its own. `make test` does 20 seconds, of a bucket 12.
# Needs /dev/fuse, and root or fusermount3.
set -euo pipefail
cd "$(dirname "$0")/.."
test=(kill programs_and_servers_are_killed)
if [ "${1:-}" = bucket ]; then
    test=(bucket the_server_of_a_mount_is_killed)
    shift
fi
export FREEHOLD_KILL_SECONDS=${1:-600} FREEHOLD_KILL_SEED=${2:-$((RANDOM << 15 | RANDOM))}
exec cargo test --locked -p freehold --test "${test[0]}" -- --nocapture --exact "${test[1]}"
