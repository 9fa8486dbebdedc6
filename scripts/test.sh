#!/usr/bin/env bash
# Everything that must hold before a change is merged. Each step is timed; the first that fails ends the run, with its exit code.
#   scripts/test.sh [STEP...]     steps: format clippy test doctest docs install conformance bucket lab (default: all)
set -euo pipefail
cd "$(dirname "$0")/.."
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(format clippy test doctest docs install conformance bucket lab)

./scripts/setup.sh cc:gcc git fusermount3:fuse3 mke2fs:e2fsprogs sqlite3 \
    /usr/include/liburing.h:liburing-dev /usr/include/libaio.h:libaio-dev
./scripts/setup.sh python3 rsync losetup:mount setpriv:util-linux make strip:binutils || echo "==> tests of what is missing are skipped"
if ! command -v cargo >/dev/null 2>&1; then
    echo "Rust is missing: see https://rustup.rs (1.88 or later)" >&2
    exit 1
fi

# The runner of the tests is cargo-nextest where it is installed (cargo install cargo-nextest), else cargo's own.
nextest() { cargo nextest --version >/dev/null 2>&1; }

# Cargo runs one program of tests after the other, and many of them mostly wait: so they run in two halves at once. What the second one says comes
# when the first is through.
halves() {
    local tests=(cargo test --workspace --locked --no-fail-fast) other first=0 second=0
    "${tests[@]}" --no-run || return
    other=$(mktemp)
    "${tests[@]}" --lib --bins --test '[!a-l]*' >"$other" 2>&1 &
    "${tests[@]}" --test '[a-l]*' || first=$?
    wait $! || second=$?
    cat "$other"
    rm "$other"
    return $((first | second))
}
export -f halves

# What hangs fails too, while there is time to say so. At a terminal, which may interrupt it, it stays in the foreground.
in_time=(timeout --kill-after 10)
[ ! -t 0 ] || in_time+=(--foreground)
in_time+=(2700)

report=()
step() {
    local name=$1 start=$SECONDS
    shift
    echo "==> $name: $*"
    if ! "${in_time[@]}" "$@"; then
        echo "==> FAILED: $name after $((SECONDS - start)) s" >&2
        exit 1
    fi
    report+=("$(printf '%-10s %5d s' "$name" $((SECONDS - start)))")
}

for name in "${steps[@]}"; do
    case $name in
        format) step format cargo fmt --all --check ;;
        clippy) step clippy cargo clippy --workspace --all-targets --locked -- -D warnings ;;
        test)
            if nextest; then
                step test cargo nextest run --workspace --locked --no-fail-fast
            else
                echo "==> cargo-nextest is not there; cargo test instead"
                step test bash -c halves
            fi
            ;;
        doctest)
            step doctest cargo test --workspace --locked --doc
            ;;
        docs) RUSTDOCFLAGS="-D warnings" step docs cargo doc --workspace --locked --no-deps ;;
        install) step install ./scripts/install.sh ;;
        conformance) step conformance ./scripts/conformance.sh ;;
        bucket) step bucket ./scripts/conformance-bucket.sh ;;
        # Only where QEMU and a kernel for the guest are there already; says so where they are not.
        lab) step lab ./lab/run.sh --if-possible smoke ;;
        *)
            echo "unknown step $name" >&2
            exit 2
            ;;
    esac
done
echo "==> all passed"
printf '    %s\n' "${report[@]}"
