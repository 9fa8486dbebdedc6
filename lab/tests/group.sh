#!/bin/bash
# Two controllers of one IOMMU group, which one process may open: volumes on both in one server.
. "$LAB/lib.sh"

eventually 20 address lab-d
c=$(address lab-c) d=$(address lab-d)
group=$(readlink -f "/sys/bus/pci/devices/$c/iommu_group")
if [ "${LAB_IOMMU:-1}" != 1 ]; then
    echo "skipped: there are no IOMMU groups"
    exit 0
fi
[ -d "$group" ] && pass "there are IOMMU groups" || fail "there are no IOMMU groups"
[ "$(readlink -f "/sys/bus/pci/devices/$d/iommu_group")" = "$group" ] && pass "both are of one group" || fail "they are of different groups"
# Nothing else of the group may have a driver of the kernel.
for other in "$group"/devices/*; do
    case $(basename "$other") in "$c" | "$d") continue ;; esac
    [ ! -e "$other/driver" ] || basename "$other" > "$other/driver/unbind"
done
modprobe fuse
mkdir -p "$LAB_MNT"/{c,d}
head -c 5000000 /dev/urandom > /tmp/data

expect "both are claimed" "$freehold" device claim "$c" "$d"
for a in "$c" "$d"; do expect "a volume on $a" "$freehold" mkfs "nvme:$a" --force; done
cat > /tmp/group.toml <<END
[[volume]]
image = "nvme:$c"
mountpoint = "$LAB_MNT/c"
options = "cache=32m"
[[volume]]
image = "nvme:$d"
mountpoint = "$LAB_MNT/d"
options = "cache=32m"
END
"$freehold" serve --config /tmp/group.toml --log /tmp/group.log &
server=$!
served() { [ "$(grep -c 'is served at' /tmp/group.log)" = 2 ]; }
expect "one server has both" eventually 60 served
refused "another process has neither" "busy|use" "$freehold" fsck "nvme:$d"
# Both at work at once, to each from the other.
for i in 1 2 3; do
    cp /tmp/data "$LAB_MNT/c/data$i" & one=$!
    cp /tmp/data "$LAB_MNT/d/data$i" & other=$!
    wait "$one" && wait "$other" && sync && pass "written $i" || fail "written $i"
    echo 3 > /proc/sys/vm/drop_caches
    cp "$LAB_MNT/c/data$i" "$LAB_MNT/d/copy$i" & one=$!
    cp "$LAB_MNT/d/data$i" "$LAB_MNT/c/copy$i" & other=$!
    wait "$one" && wait "$other" && sync && pass "copied $i" || fail "copied $i"
done
# One goes, the other goes on: nothing of it was given back with the first.
expect "the first is unmounted" "$freehold" umount "$LAB_MNT/c"
expect "the second goes on" cp /tmp/data "$LAB_MNT/d/after"
expect "it is unmounted too" "$freehold" umount "$LAB_MNT/d"
wait "$server" && pass "the server ends cleanly" || fail "the server ends with $?: $(tail -n 5 /tmp/group.log)"
for a in "$c" "$d"; do expect "fsck of nvme:$a" "$freehold" fsck "nvme:$a"; done
expect "both are given back" "$freehold" device release "$c" "$d"
for v in c d; do
    a=${!v}
    eventually 20 namespace "$a"
    expect "$v is mounted by the kernel's driver" "$freehold" mount "$(namespace "$a")" "$LAB_MNT/$v"
    for i in 1 2 3; do for f in data copy; do expect "$f$i of $v is there" cmp /tmp/data "$LAB_MNT/$v/$f$i"; done; done
    expect "$v is unmounted" "$freehold" umount "$LAB_MNT/$v"
done
if dmesg | grep -E 'BUG:|WARNING:|Oops|hung task|DMAR:.*fault' >&2; then fail "the kernel complained"; else pass "no complaints of the kernel, nor of the IOMMU"; fi
finish
