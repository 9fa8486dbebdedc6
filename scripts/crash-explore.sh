#!/usr/bin/env bash
# Looks for a power failure that breaks a promise (docs/SEMANTICS.md, "After a crash"), in three parts:
#   1. every workload of one operation, then those of two, with every placement of every persistence point, on four device models; and long
#      workloads of several clients: crates/block/tests/explore.rs;
#   2. a real server process on an image file whose writes and flushes are noted, killed and cut off: crates/freehold/tests/power.rs;
#   3. the canaries: lying devices and engines without order, which must be caught.
#   scripts/crash-explore.sh [SECONDS [SEED [FROM]]]     default: 600 seconds, a seed of its own, from the first workload. `make test` does a sample.
# Three quarters of the time go to 1, one quarter to 2. FROM is what an earlier run with this seed said in the end: it goes on there.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
seed=${2:-$((RANDOM << 15 | RANDOM))}
export FREEHOLD_SEED=$seed FREEHOLD_FROM=${3:-0} FREEHOLD_SOAK=$((seconds * 3 / 4))
export FREEHOLD_POWER_SEED=$seed FREEHOLD_POWER_SECONDS=$((seconds / 4))
echo "==> $seconds seconds from seed $seed"
cargo test --locked -p freehold-block --test order_canaries -- --nocapture
cargo test --locked -p freehold-block --test explore -- --ignored --nocapture --exact all
cargo test --locked -p freehold --test power -- --nocapture
