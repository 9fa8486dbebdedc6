#!/usr/bin/env bash
# The main job on real input: a volume in an image file, served by FUSE, with source trees, builds and a database in it, a server
# that is killed in the middle of writing, and a comparison of everything that was synced before; then several programs at the same time
# past the kernel, with figures beside ext4 (scripts/demo/programs.sh). Leaves nothing behind.
# Exit code 0 only when every byte was as it must be.
#
#   DEMO_SIZE=4G      size of the volume        DEMO_DIR=/var/tmp   where its image is put
#   DEMO_KEEP=1       keep the image            DEMO_SECONDS=6      how long is written before each kill
#   DEMO_FREEHOLD=P   use this program instead of building one
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD
size=${DEMO_SIZE:-4G}
seconds=${DEMO_SECONDS:-6}

./scripts/setup.sh fusermount3:fuse3 sqlite3 cc:gcc git make
[ -e /dev/fuse ] || { echo "There is no /dev/fuse: modprobe fuse, or give the container the device." >&2; exit 1; }
command -v cargo >/dev/null || { echo "Rust is missing: see https://rustup.rs (1.88 or later)" >&2; exit 1; }

say() { printf '\n==> %s\n' "$*"; }
note() { printf '    %s\n' "$*"; }
fail() { printf '\nDEMO FAILED: %s\n' "$*" >&2; exit 1; }
now() { date +%s.%N; }
calc() { awk "BEGIN { printf \"%.1f\", $1 }"; }

work=$(mktemp -d "${DEMO_DIR:-${TMPDIR:-/tmp}}/freehold-demo.XXXXXX")
mnt=$work/mnt image=$work/disk.img
mkdir "$mnt" "$work/host"
pids=()
cleanup() {
    local code=$?
    trap - EXIT INT TERM
    for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    if grep -q " $mnt fuse.freehold " /proc/mounts; then
        "$freehold" umount --force "$mnt" 2>/dev/null || umount -l "$mnt" 2>/dev/null || fusermount3 -uz "$mnt" || true
    fi
    if [ "${DEMO_KEEP:-}" = 1 ]; then echo "kept: $image"; else rm -rf "$work"; fi
    exit "$code"
}
freehold=${DEMO_FREEHOLD:-$(realpath -m "${CARGO_TARGET_DIR:-$repo/target}")/release/freehold}
trap cleanup EXIT
trap 'exit 130' INT TERM

if [ -z "${DEMO_FREEHOLD:-}" ]; then
    say "building freehold (release)"
    cargo build --release --locked -p freehold -p freehold-preload -p freehold-workload
fi

start_all=$(now)
say "a volume of $size in $image"
"$freehold" mkfs "$image" --size "$size" --label demo --sparse
server() { "$freehold" mount "$image" "$mnt" --log "$work/log" "$@"; }
# The process that holds the lock on the image.
server_pid() { awk -v i=":$(stat -c %i "$image")$" '$2 == "FLOCK" && $6 ~ i { print $5 }' /proc/locks; }
t=$(now); server; note "mounted at $mnt in $(calc "($(now) - $t) * 1000") ms, served by process $(server_pid)"

# $1 what, $2 directory, $3 start: files, MB and speed of what was put there.
figures() {
    local n mb s
    n=$(find "$2" -type f | wc -l)
    mb=$(du -s --apparent-size -B1000000 "$2" | cut -f1)
    s=$(awk "BEGIN { print $(now) - $3 }")
    note "$1: $n files, $mb MB, $(calc "$s") s ($(calc "$n / $s") files/s, $(calc "$mb / $s") MB/s)"
}
# An fsync of any file makes the whole volume durable.
sync_volume() { dd if=/dev/null of="$mnt/c/sync.mark" conv=fsync status=none; }
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 -r sha256sum); }

say "the project's history: a clone, and trees of several of its commits"
t=$(now)
commits=()
if git clone -q --no-hardlinks "$repo" "$mnt/project" 2>"$work/clone"; then
    mapfile -t commits < <(git -C "$repo" log --format=%h | awk 'NR == 1 || NR % 5 == 0' | head -8)
    for c in "${commits[@]}"; do git -C "$mnt/project" worktree add -q --detach "$mnt/trees/$c" "$c"; done
    git -C "$mnt/project" fsck --no-progress >/dev/null || fail "git fsck inside the volume"
    [ -z "$(git -C "$mnt/project" status --porcelain)" ] || fail "git sees changes that nobody made"
else
    note "no clone ($(tail -n 1 "$work/clone")): a copy of the tree instead"
    mkdir "$mnt/project" && cp -a Cargo.* crates rustfmt.toml "$mnt/project"
fi
figures "clone, ${#commits[@]} worktrees, git fsck" "$mnt" "$t"

say "the sources of the libraries that Freehold is built from, by tar"
registry=$(echo "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/ | cut -d' ' -f1)
awk '/^name = / { n = $3 } /^version = / { print n "-" $3 }' Cargo.lock | tr -d '"' >"$work/locked"
(cd "$registry" && while read -r c; do [ ! -d "$c" ] || echo "$c"; done <"$work/locked") >"$work/crates"
mkdir "$mnt/crates"
t=$(now)
tar -C "$registry" -cf - -T "$work/crates" | tar -C "$mnt/crates" -xf -
figures "$(wc -l <"$work/crates") libraries" "$mnt/crates" "$t"
t=$(now)
while read -r c; do diff -r --no-dereference "$registry/$c" "$mnt/crates/$c" >/dev/null || fail "library $c differs"; done <"$work/crates"
note "compared with the originals: no difference ($(calc "$(now) - $t") s)"

say "a C program: built and run inside of the volume"
mkdir "$mnt/c"
cp scripts/demo/churn.c "$mnt/c"
(cd "$mnt/c" && cc -O2 -Wall -o churn churn.c && ./churn check . </dev/null >/dev/null) || fail "the C program"
note "cc made $(stat -c %s "$mnt/c/churn") bytes, and they run"

say "a Rust library: built and tested inside of the volume (sources and target directory)"
t=$(now)
tree=$mnt/project
(cd "$tree" && CARGO_TARGET_DIR=$tree/target cargo test --offline --locked -p freehold-format --lib >"$work/cargo" 2>&1) ||
    { tail -n 20 "$work/cargo"; fail "the build inside of the volume"; }
note "$(grep '^test result' "$work/cargo")"
figures "cargo test" "$tree/target" "$t"

say "a SQLite database: 200,000 rows in 200 transactions, an index, integrity_check"
t=$(now)
sqlite3 "$mnt/db.sqlite" >/dev/null <<'SQL'
PRAGMA journal_mode = WAL;
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, payload BLOB);
SQL
for i in $(seq 0 199); do
    echo "BEGIN; WITH RECURSIVE n(i) AS (SELECT $((i * 1000)) UNION ALL SELECT i + 1 FROM n WHERE i < $((i * 1000 + 999)))
          INSERT INTO item SELECT i, 'item ' || i, randomblob(100) FROM n; COMMIT;"
done | sqlite3 "$mnt/db.sqlite"
sqlite3 "$mnt/db.sqlite" 'CREATE INDEX item_name ON item (name);'
[ "$(sqlite3 "$mnt/db.sqlite" 'PRAGMA integrity_check;')" = ok ] || fail "SQLite integrity_check"
note "200 synced transactions, $(stat -c %s "$mnt/db.sqlite") bytes, $(calc "200 / ($(now) - $t)") transactions/s; integrity_check: ok"

say "everything so far is synced and its checksums are taken"
t=$(now)
sync_volume
for d in project trees crates c; do [ ! -d "$mnt/$d" ] || sums "$mnt/$d" >"$work/host/$d.sums"; done
note "$(cat "$work"/host/*.sums | wc -l) files, $(calc "$(now) - $t") s"
"$freehold" df "$mnt"

cp "$mnt/c/churn" "$work/host/churn"
touch "$work/host/promised"
for round in 1 2 3; do
    say "round $round of 3: the server is killed (SIGKILL) in the middle of writing"
    mkdir "$mnt/churn$round"
    sync_volume
    "$work/host/churn" write "$mnt/churn$round" "$round" >"$work/host/churn$round" 2>/dev/null &
    writer=$!
    # A row a transaction, noted outside after each commit.
    (for i in $(seq 1 1000000); do
        sqlite3 "$mnt/db.sqlite" "PRAGMA synchronous = FULL; INSERT INTO item (name) VALUES ('round $round row $i');" &&
            echo "$round $i" >>"$work/host/promised" || exit 0
    done) 2>/dev/null &
    database=$!
    # Writing that nobody syncs: it may be lost, and must not harm the rest.
    (cp -r "$mnt/crates" "$mnt/unsynced$round") 2>/dev/null &
    copier=$!
    pids=("$writer" "$database" "$copier")
    sleep "$seconds"
    # Without something that must not be lost a round shows nothing. A slow machine has more time for that.
    promised() { [ -s "$work/host/churn$round" ] && grep -q "^$round " "$work/host/promised"; }
    for _ in $(seq 600); do promised && break; sleep 0.1; done
    promised || fail "nothing was synced in round $round"
    victim=$(server_pid)
    kill -9 "$victim"
    wait "$writer" "$database" "$copier" 2>/dev/null || true
    pids=()
    note "killed process $victim; $(wc -l <"$work/host/churn$round") files and $(grep -c "^$round " "$work/host/promised") rows had been synced"
    "$freehold" umount "$mnt" 2>&1 | sed 's/^/    /'
    if "$freehold" help fsck >/dev/null 2>&1; then
        t=$(now)
        "$freehold" fsck "$image" | tail -n 3 | sed 's/^/    /' || fail "freehold fsck found damage"
        note "fsck: clean ($(calc "$(now) - $t") s)"
    fi
    t=$(now); server; note "mounted again in $(calc "($(now) - $t) * 1000") ms"
    t=$(now)
    for d in "$work"/host/*.sums; do
        name=$(basename "$d" .sums)
        (cd "$mnt/$name" && sha256sum --quiet -c "$d") >"$work/wrong" 2>&1 || { head -5 "$work/wrong"; fail "$name is not what it was"; }
    done
    for r in $(seq 1 "$round"); do
        checked=$("$work/host/churn" check "$mnt/churn$r" <"$work/host/churn$r") || fail "a synced file of round $r is wrong"
        [ "$checked" = "$(wc -l <"$work/host/churn$r")" ] || fail "not all files of round $r were checked"
    done
    [ "$(sqlite3 "$mnt/db.sqlite" 'PRAGMA integrity_check;')" = ok ] || fail "SQLite integrity_check after the crash"
    sqlite3 "$mnt/db.sqlite" "SELECT substr(name, 7, instr(name, ' row') - 7) || ' ' || substr(name, instr(name, 'row ') + 4) FROM item WHERE name LIKE 'round %';" |
        sort >"$work/rows"
    lost=$(sort "$work/host/promised" | comm -23 - "$work/rows" | wc -l)
    [ "$lost" = 0 ] || fail "$lost committed rows are missing"
    note "compared: $(cat "$work"/host/*.sums | wc -l) checksums, $(cat "$work"/host/churn? | wc -l) synced files, $(wc -l <"$work/host/promised") rows: all there ($(calc "$(now) - $t") s)"
done

if [ -e "$(dirname "$freehold")/libfreehold_preload.so" ]; then
    say "tar, make with gcc, sqlite3, git and grep at the same time, past the kernel (freehold run)"
    ./scripts/demo/programs.sh "$freehold" "$mnt" "$work" "$registry" "$work/crates"
else
    say "programs past the kernel left out: there is no libfreehold_preload.so beside $freehold"
fi

say "space, a clean stop, and a look at the image without any mount"
rm -rf "$mnt"/unsynced*
"$freehold" df "$mnt"
t=$(now); "$freehold" umount "$mnt"; note "stopped and closed in $(calc "($(now) - $t) * 1000") ms"
"$freehold" cp "$image:/c/churn.c" "$work/host/churn.c" --quiet
cmp "$work/host/churn.c" scripts/demo/churn.c || fail "a file copied out of the image differs"
"$freehold" ls -l "$image" | sed 's/^/    /'
grep -q " $mnt " /proc/mounts && fail "still mounted"
say "DEMO PASSED in $(calc "$(now) - $start_all") s: 3 crashes, nothing lost that was synced"
