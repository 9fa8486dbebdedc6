#!/usr/bin/env bash
# Several unmodified programs at work on one volume at the same time, past the kernel (freehold run): tar, make with gcc, sqlite3,
# git and grep. What they left is compared through the mount, by a program that knows nothing of sessions, with the same work done outside.
# Then rates of single calls beside ext4 on a loop device, where root may have one. A part of scripts/demo.sh.
#
#   scripts/demo/programs.sh FREEHOLD MOUNT WORK REGISTRY LIST
#       FREEHOLD   the command; libfreehold_preload.so and freehold-calls stand beside it
#       MOUNT      where a volume is mounted; its directory live is made and removed
#       WORK       a directory outside, for comparison; its directory live is made and removed, and with it an image for ext4
#       REGISTRY   a directory of source trees, of which the file LIST names those to use
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
freehold=$1 mnt=$2 work=$3/live registry=$4 list=$5
live=$mnt/live
calls=$(dirname "$freehold")/freehold-calls

note() { printf '    %s\n' "$*"; }
fail() { printf '\nDEMO FAILED: %s\n' "$*" >&2; exit 1; }
now() { date +%s.%N; }
calc() { awk "BEGIN { printf \"%.1f\", $1 }"; }
run() { "$freehold" run -- "$@"; }

pids=() loop=
cleanup() {
    local code=$?
    trap - EXIT INT TERM
    for pid in "${pids[@]}"; do kill -- "-$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    ! grep -q " $work/ext4 " /proc/mounts || umount "$work/ext4" || true
    [ -z "$loop" ] || losetup --detach "$loop" || true
    rm -rf "$work" "$live"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
mkdir "$work" "$live"
mkdir "$work/host" "$work/out"

# Source trees of at most some 40 MB in one archive.
: >"$work/trees"
room=40000
while read -r tree; do
    size=$(du -sk --apparent-size "$registry/$tree" | cut -f1)
    [ "$size" -gt 8000 ] || [ "$size" -gt "$room" ] || { echo "$tree" >>"$work/trees"; room=$((room - size)); }
done <"$list"
tar -C "$registry" -cf "$work/trees.tar" -T "$work/trees"
tar -C "$repo" -cf "$work/project.tar" Cargo.toml Cargo.lock crates docs scripts
# Forty programs of one source, with all levels of optimization.
{
    echo 'all:'
    for i in $(seq 40); do
        printf 'all: churn%d\nchurn%d: churn.c\n\tcc -O%d -DPART=%d -o $@ churn.c\n' "$i" "$i" $((i % 4)) "$i"
    done
} >"$work/Makefile"
for i in $(seq 0 49); do
    echo "BEGIN; WITH RECURSIVE n(i) AS (SELECT $((i * 1000)) UNION ALL SELECT i + 1 FROM n WHERE i < $((i * 1000 + 999)))
          INSERT INTO item SELECT i, 'item ' || i, printf('%0100d', i * 7919) FROM n; COMMIT;"
done >"$work/rows"

# Each job works in the directory $1, which is the volume's or one outside. The programs are the machine's own.
job_tar() { mkdir "$1/tar" && tar -C "$1/tar" -xf "$work/trees.tar"; }
job_make() { mkdir "$1/make" && cp "$repo/scripts/demo/churn.c" "$work/Makefile" "$1/make" && make -s -C "$1/make"; }
job_sqlite() {
    { echo 'PRAGMA journal_mode = WAL; CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, payload TEXT);'
      cat "$work/rows"; echo 'CREATE INDEX item_name ON item (name);'; } | sqlite3 "$1/db.sqlite" >/dev/null
}
job_git() {
    mkdir "$1/origin" && tar -C "$1/origin" -xf "$work/project.tar"
    (cd "$1/origin" && git init -q -b main . && git add -A && git -c user.name=demo -c user.email=demo@localhost commit -q -m all && git gc -q)
    git clone -q --no-hardlinks "$1/origin" "$1/clone"
}
job_grep() { (cd "$1" && xargs grep -rc 'fn ' <"$list") >"$2"; }
export -f job_tar job_make job_sqlite job_git job_grep
export work repo list

jobs=(tar make sqlite git grep)
start=$(now)
# With groups of their own, so that all processes of a job can be ended.
set -m
for job in "${jobs[@]}"; do
    # What tar unpacks comes bit by bit; the directory crates is there from before.
    case $job in grep) arguments=("$mnt/crates" "$work/out/grep.live") ;; *) arguments=("$live") ;; esac
    (t=$(now); run bash -euo pipefail -c "job_$job \"\$@\"" demo "${arguments[@]}" && calc "$(now) - $t" >"$work/out/$job") \
        </dev/null >"$work/out/$job.err" 2>&1 &
    pids+=($!)
done
set +m
for i in "${!jobs[@]}"; do
    wait "${pids[$i]}" || { tail -n 5 "$work/out/${jobs[$i]}.err" >&2; fail "${jobs[$i]} under freehold run"; }
done
pids=()
took=$(calc "$(now) - $start")
said=$(for job in "${jobs[@]}"; do printf '%s %s s, ' "$job" "$(cat "$work/out/$job")"; done)
note "at the same time: ${said%, }; all of them $took s"

# The same outside of the volume.
for job in make sqlite git; do "job_$job" "$work/host"; done
job_grep "$registry" "$work/out/grep.want"
sums() { (cd "$1" && find . -type f -print0 | sort -z | xargs -0 -r sha256sum); }
while read -r tree; do (cd "$registry" && find "./$tree" -type f -print0) ; done <"$work/trees" | sort -z |
    (cd "$registry" && xargs -0 -r sha256sum) >"$work/out/sums"
sums "$live/tar" | cmp -s - "$work/out/sums" || fail "what tar unpacked is not what was packed"
note "tar:     $(wc -l <"$work/out/sums") files, as in the archive"
cmp -s <(sums "$live/make") <(sums "$work/host/make") || fail "what make built is not what it builds elsewhere"
note "make:    $(find "$live/make" -type f -perm -u+x | wc -l) programs, byte for byte those of the same make elsewhere"
[ "$(sqlite3 "$live/db.sqlite" 'PRAGMA integrity_check;')" = ok ] || fail "SQLite integrity_check"
cmp -s <(sqlite3 "$live/db.sqlite" .dump) <(sqlite3 "$work/host/db.sqlite" .dump) || fail "the database differs"
note "sqlite3: $(sqlite3 "$live/db.sqlite" 'SELECT count(*) FROM item;') rows, integrity_check ok, .dump as elsewhere"
git -C "$live/clone" fsck --no-progress --full >/dev/null || fail "git fsck"
[ -z "$(git -C "$live/clone" status --porcelain)" ] || fail "git sees changes that nobody made"
[ "$(git -C "$live/clone" rev-parse 'HEAD^{tree}')" = "$(git -C "$work/host/clone" rev-parse 'HEAD^{tree}')" ] || fail "git made another tree"
note "git:     commit, gc, clone, fsck; tree $(git -C "$live/clone" rev-parse --short 'HEAD^{tree}'), the same elsewhere"
cmp -s <(sort "$work/out/grep.live") <(sort "$work/out/grep.want") || fail "grep -r found something else"
note "grep -r: $(wc -l <"$work/out/grep.want") files, with as many matches as in the originals"

if [ ! -x "$calls" ]; then
    note "rates left out: there is no freehold-calls beside $freehold"
    exit 0
fi
rates() { "$@" | awk '{ print $1, $2 }'; }
sizes=(--files 4000 --calls 200000)
beside=
if [ "$(id -u)" != 0 ] || ! command -v mkfs.ext4 losetup >/dev/null; then
    beside="only root may have a loop device with ext4 (mkfs.ext4, losetup)"
else
    # Allocated and written before, so that nobody below allocates while it is measured.
    dd if=/dev/zero of="$work/ext4.img" bs=1M count=512 conv=fsync status=none
    if ! loop=$(losetup --find --show --direct-io=on "$work/ext4.img" 2>"$work/out/losetup"); then
        loop=
        beside="no loop device: $(tail -n 1 "$work/out/losetup")"
    elif ! { mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$loop" && mkdir "$work/ext4" && mount "$loop" "$work/ext4"; } 2>"$work/out/mount"; then
        beside="no ext4: $(tail -n 1 "$work/out/mount")"
    fi
fi
for processes in 1 2; do
    rates run "$calls" --dir "$live" --processes "$processes" "${sizes[@]}" >"$work/out/ours"
    if [ -n "$beside" ]; then
        awk '{ printf "    %-12s %10d /s\n", $1, $2 }' "$work/out/ours"
        continue
    fi
    rates "$calls" --dir "$work/ext4" --processes "$processes" "${sizes[@]}" >"$work/out/ext4"
    note "calls in a second, $processes process$([ "$processes" = 1 ] || echo es): under freehold run, on ext4 on a loop device, ratio"
    paste -d ' ' "$work/out/ours" "$work/out/ext4" | awk '{ printf "        %-12s %10d %10d %8.2fx\n", $1, $2, $4, $2 / $4 }'
done
[ -z "$beside" ] || note "ext4 beside it left out: $beside"
note "once and small, with whatever else runs here; freehold bench measures"
