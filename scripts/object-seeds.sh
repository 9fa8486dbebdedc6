#!/usr/bin/env bash
# The engine and the client of object stores over a store and a network that fail, by many seeds: what was acknowledged must be in the store, whole, and
# no error may be swallowed (crates/object/tests/all/stack.rs and s3_faults.rs, each test with these seeds). `make test` runs 20 and 30.
#   scripts/object-seeds.sh [SEEDS]     default: 1000, which takes about half an hour on two processors
set -euo pipefail
cd "$(dirname "$0")/.."
export FREEHOLD_SEEDS=${1:-1000}
profile=${PROFILE:-release}
start=$SECONDS
for test in "all stack::" s3_faults; do
    # shellcheck disable=SC2086 # a file of tests, and which of them
    cargo test --locked --profile "$profile" -p freehold-object --test $test -- --nocapture | grep -v '^seed '
done
echo "==> $FREEHOLD_SEEDS seeds in $((SECONDS - start)) s"
