#!/bin/bash
# Volumes on two controllers by Freehold's own driver, one of them with its queues separated, and on a file, all in one server; a program that uses
# all of them at the same time.
#   LAB_PROGRAMS   names libfreehold_preload.so: the program is run under `freehold run` then, else on the mounts
. "$LAB/lib.sh"

eventually 20 address lab-b
a=$(address lab-a) b=$(address lab-b)
modprobe fuse
mkdir -p "$LAB_MNT"/{a,b,c} /tmp/tree
head -c 3000000 /dev/urandom > /tmp/tree/data
for n in $(seq 30); do echo "file $n" > "/tmp/tree/$n"; done

expect "both are claimed" "$freehold" device claim "$a" "$b"
expect "a volume on the first" "$freehold" mkfs "nvme:$a" --force
expect "a volume on the second" "$freehold" mkfs "nvme:$b" --force
expect "a volume in a file" "$freehold" mkfs /tmp/c.img --size 128M --sparse
refused "queues are chosen on controllers alone" "nvme:ADDRESS" "$freehold" mount /tmp/c.img "$LAB_MNT/c" -o queues=classes
cat > /tmp/volumes.toml <<END
[[volume]]
image = "nvme:$a"
mountpoint = "$LAB_MNT/a"
options = "queues=classes,cache=32m"
[[volume]]
image = "nvme:$b"
mountpoint = "$LAB_MNT/b"
options = "cache=32m"
[[volume]]
image = "/tmp/c.img"
mountpoint = "$LAB_MNT/c"
options = "cache=32m"
END
"$freehold" serve --config /tmp/volumes.toml --log /tmp/serve.log &
server=$!
served() { [ "$(grep -c 'is served at' /tmp/serve.log)" = 3 ]; }
expect "one server has all of them" eventually 60 served

run=()
if [ -f "$LAB_BIN/libfreehold_preload.so" ]; then run=("$freehold" run --); fi
# Copies go on side by side, from each to the next.
work() {
    cd "$LAB_MNT" || return 1
    cp -r /tmp/tree a/tree && cp -r a/tree b/tree && cp -r b/tree c/tree || return 1
    local pid pids=()
    for to in a b c; do
        (for n in 1 2 3; do cp -r "b/tree" "$to/more$n" || exit 1; done) &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || return 1; done
    mv a/more1 b/moved && ln -s ../b/moved/data c/link && sync
    for v in a b c; do diff -r /tmp/tree "$v/tree" && diff -r /tmp/tree "$v/more3" || return 1; done
    diff -r /tmp/tree b/moved && cmp /tmp/tree/data c/link
}
export -f work
export LAB_MNT
expect "a program uses all of them${run:+, without the kernel}" "${run[@]}" bash -c work
expect "what it left is seen through the mounts" diff -r /tmp/tree "$LAB_MNT/b/moved"

kill -TERM "$server"
wait "$server" && pass "the server ends cleanly" || fail "the server ends with $?: $(tail -n 5 /tmp/serve.log)"
for medium in "nvme:$a" "nvme:$b" /tmp/c.img; do expect "fsck of $medium" "$freehold" fsck "$medium"; done
expect "both are given back" "$freehold" device release "$a" "$b"
for d in $(namespace "$a") $(namespace "$b"); do expect "fsck of $d, by the kernel's driver" "$freehold" fsck "$d"; done
if dmesg | grep -E 'BUG:|WARNING:|Oops|hung task|DMAR:.*fault' >&2; then fail "the kernel complained"; else pass "no complaints of the kernel, nor of the IOMMU"; fi
finish
