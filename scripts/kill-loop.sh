#!/usr/bin/env bash
# Kills programs that work on a served volume, and the server, again and again, and looks what is left: crates/freehold/tests/kill.rs says what must hold.
#   scripts/kill-loop.sh [SECONDS [SEED]]     default: 600 seconds, a seed of its own. `make test` does 20 seconds.
# Needs /dev/fuse, and root or fusermount3.
set -euo pipefail
cd "$(dirname "$0")/.."
export FREEHOLD_KILL_SECONDS=${1:-600} FREEHOLD_KILL_SEED=${2:-$((RANDOM << 15 | RANDOM))}
exec cargo test --locked -p freehold --test kill -- --nocapture --exact programs_and_servers_are_killed
