#!/usr/bin/env bash
# File calls at random, of several processes in turn, on a volume under the library and in an ordinary directory, by many seeds: both must answer the same
# (crates/preload/tests/all/random_calls.rs). `make test` runs 12.
#   scripts/calls-seeds.sh [SEEDS]     default: 500, which takes about a quarter of an hour on two processors
set -euo pipefail
cd "$(dirname "$0")/.."
export FREEHOLD_SEEDS=${1:-500}
profile=${PROFILE:-release}
start=$SECONDS
cargo build --locked --profile "$profile" -p freehold-preload
cargo test --locked --profile "$profile" -p freehold-preload --test all random_calls -- --nocapture
echo "==> $FREEHOLD_SEEDS seeds in $((SECONDS - start)) s"
