#!/bin/bash
# The guest itself: three controllers under the kernel's driver, a block device that works, VFIO, and a Freehold that starts.
. "$LAB/lib.sh"

eventually 20 address lab-c
for name in a b c; do
    if at=$(address "lab-$name"); then pass "controller lab-$name at $at"; else fail "no controller lab-$name"; fi
done
dev=$(namespace "$(address lab-a)")
head -c 65536 /dev/urandom > /tmp/written
dd if=/tmp/written of="$dev" bs=64k oflag=direct status=none
expect "$dev gives back what was written" cmp -n 65536 /tmp/written "$dev"
expect "the modules of VFIO are there" modprobe vfio-pci
expect "freehold starts" "$freehold" --version
finish
