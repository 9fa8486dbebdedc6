#!/bin/bash
# A controller that the kernel is told to take away while a volume is mounted on it.
. "$LAB/lib.sh"

eventually 20 address lab-b
a=$(address lab-a)
modprobe fuse
mkdir -p "$LAB_MNT/a"
expect "it is claimed" "$freehold" device claim "$a"
expect "a volume" "$freehold" mkfs "nvme:$a" --force
expect "a mount" "$freehold" mount "nvme:$a" "$LAB_MNT/a" --log /tmp/a.log
head -c 3000000 /dev/urandom > /tmp/data
cp /tmp/data "$LAB_MNT/a/before"

(echo "$a" > /sys/bus/pci/drivers/vfio-pci/unbind) &
taking=$!
said() { grep -q 'wants it back' /tmp/a.log; }
expect "the server says that the kernel wants it back" eventually 30 said
refused "release waits for nothing meanwhile" "$a" timeout 60 "$freehold" device release "$a"
expect "the volume goes on" cp /tmp/data "$LAB_MNT/a/meanwhile"
if kill -0 "$taking" 2>/dev/null; then pass "the kernel waits"; else fail "the kernel did not wait"; fi
expect "it is unmounted" timeout 60 "$freehold" umount "$LAB_MNT/a"
wait "$taking"
expect "it is given back" timeout 60 "$freehold" device release "$a"
d=$(namespace "$a")
expect "fsck of $d, by the kernel's driver" "$freehold" fsck "$d"
expect "what was written before is there" sh -c "'$freehold' cat $d:/before | cmp - /tmp/data"
expect "what was written meanwhile is there" sh -c "'$freehold' cat $d:/meanwhile | cmp - /tmp/data"
if dmesg | grep -E 'BUG:|WARNING:|Oops|hung task|DMAR:.*fault' >&2; then fail "the kernel complained"; else pass "no complaints of the kernel, nor of the IOMMU"; fi
finish
