#!/bin/bash
# Freehold's own driver on a controller: its tests, a volume that is used through it, killed servers, and the same bytes through the
# kernel's driver afterwards.
#   LAB_PROGRAMS   may name the test program `vfio` of the crate media: it is run then
. "$LAB/lib.sh"

to_vfio() {
    echo vfio-pci > "/sys/bus/pci/devices/$1/driver_override"
    echo "$1" > "/sys/bus/pci/devices/$1/driver/unbind"
    echo "$1" > /sys/bus/pci/drivers_probe
}

to_kernel() {
    echo > "/sys/bus/pci/devices/$1/driver_override"
    echo "$1" > "/sys/bus/pci/devices/$1/driver/unbind"
    echo "$1" > /sys/bus/pci/drivers_probe
}

# What the server says of the controller, without labels.
metrics() {
    exec 3<>/dev/tcp/127.0.0.1/9464 || return
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    sed -n 's/^freehold_\(nvme_[a-z_]*\){.*} /\1 /p' <&3
    exec 3>&-
}

free_huge() { awk '/^HugePages_Free/ {print $2}' /proc/meminfo; }
all_are_free() { [ "$(free_huge)" = "$huge" ]; }

echo 32 > /proc/sys/vm/nr_hugepages
huge=$(free_huge)
eventually 20 address lab-b
b=$(address lab-b)
modprobe vfio-pci
modprobe fuse
mkdir -p "$LAB_MNT/v"
mnt=$LAB_MNT/v
refused "a controller of the kernel's driver" "vfio-pci" "$freehold" fsck "nvme:$b"
to_vfio "$b"
[ "$(driver "$b")" = vfio-pci ] && pass "bound to vfio-pci" || fail "driver is $(driver "$b")"

if [ -x "$LAB_BIN/vfio" ]; then
    FREEHOLD_NVME=$b RUST_BACKTRACE=1 "$LAB_BIN/vfio" --ignored --nocapture --test-threads 1 && pass "tests of the driver" || fail "tests of the driver"
fi

echo "--- a volume"
expect "mkfs" "$freehold" mkfs "nvme:$b" --label lab --force
refused "mkfs again" "already" "$freehold" mkfs "nvme:$b"
expect "fsck of an empty one" "$freehold" fsck "nvme:$b"
expect "mount" "$freehold" mount "nvme:$b" "$mnt" --metrics 127.0.0.1:9464
[ "$(free_huge)" -lt "$huge" ] && pass "queues are in huge pages" || fail "no huge page is in use: $(free_huge) of $huge are free"
refused "a second mount" "mounted at" "$freehold" mount "nvme:$b" "$mnt"
refused "mkfs of what is mounted" "use" "$freehold" mkfs "nvme:$b" --force
head -c 20000000 /dev/urandom > /tmp/data
cp /tmp/data "$mnt/data" && mkdir "$mnt/dir" && for i in $(seq 200); do echo "$i" > "$mnt/dir/$i"; done
expect "sync" sync "$mnt/data"
expect "what was written is read" cmp /tmp/data "$mnt/data"
said=$(metrics)
grep -qx 'nvme_spare_ratio [01][0-9.]*' <<<"$said" && grep -qx 'nvme_resets_total 0' <<<"$said" && pass "metrics tell of its health" || fail "metrics: $said"
expect "umount" "$freehold" umount "$mnt"
expect "huge pages were given back" eventually 20 all_are_free
expect "fsck" "$freehold" fsck "nvme:$b"

echo "--- killed servers"
for i in 1 2 3; do
    expect "mount $i" "$freehold" mount "nvme:$b" "$mnt"
    cp /tmp/data "$mnt/synced$i" && sync "$mnt/synced$i"
    (while :; do head -c 300000 /dev/urandom > "$mnt/other$RANDOM" || exit; done) 2>/dev/null &
    writer=$!
    sleep 2
    kill -KILL "$(pgrep -n -f "freehold mount --server")" && pass "killed"
    wait "$writer" 2>/dev/null
    umount -l "$mnt"
    expect "fsck $i" "$freehold" fsck "nvme:$b"
done

echo "--- the kernel's driver"
to_kernel "$b"
eventually 20 namespace "$b"
dev=$(namespace "$b")
expect "fsck of $dev" "$freehold" fsck "$dev"
expect "mount of $dev" "$freehold" mount "$dev" "$mnt"
for f in data synced1 synced2 synced3; do expect "$f is there" cmp /tmp/data "$mnt/$f"; done
[ "$(cat "$mnt/dir/"* | awk '{s += $1} END {print s}')" = 20100 ] && pass "200 small files" || fail "small files"
echo "by the kernel" > "$mnt/kernel"
expect "umount" "$freehold" umount "$mnt"

echo "--- and back"
to_vfio "$b"
expect "mount" "$freehold" mount "nvme:$b" "$mnt"
[ "$(cat "$mnt/kernel")" = "by the kernel" ] && pass "what went through the kernel's driver is there" || fail "kernel's file"
expect "umount" "$freehold" umount "$mnt"
to_kernel "$b"
finish
