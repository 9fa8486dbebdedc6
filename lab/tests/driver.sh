#!/bin/bash
# A volume on a claimed controller, by Freehold's own driver: made, filled, checked, mounted, its server killed; and what it wrote is read
# through the kernel's driver after the controller was given back, and the other way round.
. "$LAB/lib.sh"

eventually 20 address lab-b
a=$(address lab-a) b=$(address lab-b)
dev=$(namespace "$b")
medium=nvme:$b
modprobe fuse
mkdir -p "$LAB_MNT/v" /tmp/tree
head -c 5000000 /dev/urandom > /tmp/tree/data
for n in $(seq 50); do echo "file $n" > "/tmp/tree/$n"; done
# same FILE MEDIUM:FILE
same() { "$freehold" cat "$2" | cmp - "$1"; }
has_the_tree() {
    local f
    for f in /tmp/tree/*; do cmp "$f" "$1/${f##*/}" || return 1; done
}

refused "a controller that the kernel has" "vfio-pci" "$freehold" mkfs "nvme:$a"
refused "nor does it tell us of itself" "nvme smart-log /dev/nvme" "$freehold" device info "$a"
expect "lab-b is claimed" "$freehold" device claim "$b"

# told WHAT WORDS COMMAND...: the command succeeds, and says WORDS (an extended regular expression).
told() {
    local what=$1 words=$2 said
    shift 2
    said=$("$@" 2>&1) && grep -Eq -- "$words" <<<"$said" && pass "$what" || fail "$what: $* said: $said"
}
"$freehold" device info "$b" && "$freehold" device smart "$b"
told "info: the serial number" "^serial number +lab-b$" "$freehold" device info "$medium"
told "info: sixteen queue pairs" "\"queues\": 16" "$freehold" device info "$b" --json
told "smart: 50 degrees, as QEMU has it" "\"temperature\": 50" "$freehold" device smart "$b" --json

expect "a volume is made" "$freehold" mkfs "$medium" --force
expect "fsck finds nothing" "$freehold" fsck "$medium"
expect "it is mounted" "$freehold" mount "$medium" "$LAB_MNT/v"
expect "a tree is copied in" cp -r /tmp/tree "$LAB_MNT/v/tree"
expect "and read again" has_the_tree "$LAB_MNT/v/tree"
"$freehold" device list
refused "a controller that is driven is not given back" "is open in process [0-9]+ \(freehold\)" "$freehold" device release "$b"
told "its server is asked" "in use by a served volume" "$freehold" device info "$medium"
told "also for its health" "^warnings +none$" "$freehold" device smart "$medium"
refused "nobody else drives it meanwhile" "in use" "$freehold" fsck "$medium"
sync -f "$LAB_MNT/v/tree"
echo "synced" > "$LAB_MNT/v/synced" && sync "$LAB_MNT/v/synced"
server=$("$freehold" device list --json | sed -n 's/^ *"pid": \([0-9]*\).*/\1/p' | head -n 1)
kill -KILL "$server"
eventually 10 test ! -e "/proc/$server"
expect "the dead mount is cleared away" "$freehold" umount "$LAB_MNT/v"
expect "after SIGKILL it is mounted again" "$freehold" mount "$medium" "$LAB_MNT/v"
expect "what was synced is there" has_the_tree "$LAB_MNT/v/tree"
expect "to the last file" test "$(cat "$LAB_MNT/v/synced")" = synced
expect "it is unmounted" "$freehold" umount "$LAB_MNT/v"
expect "fsck finds nothing" "$freehold" fsck "$medium"

echo "--- another namespace"
second=${medium}n2
refused "a namespace that is not there" "namespace, which is not there" "$freehold" mkfs "${medium}n3" --force
expect "a volume is made on the second" "$freehold" mkfs "$second" --force
expect "it is mounted" "$freehold" mount "$second" "$LAB_MNT/v"
refused "the first is not driven by somebody else meanwhile" "in use" "$freehold" fsck "$medium"
expect "a tree is copied in" cp -r /tmp/tree "$LAB_MNT/v/second"
told "its server is asked for the controller" "in use by a served volume" "$freehold" device info "$medium"
expect "it is unmounted" "$freehold" umount "$LAB_MNT/v"
expect "fsck finds nothing on the second" "$freehold" fsck "$second"
expect "nor on the first" "$freehold" fsck "$medium"

echo "--- given back, and taken again"
expect "the kernel has lab-b again" "$freehold" device release "$b"
expect "the same bytes are a volume on its block device" "$freehold" fsck "$dev"
expect "with the same files" same /tmp/tree/data "$dev:/tree/data"
expect "and those of the other namespace are on its own" same /tmp/tree/data "${dev%1}2:/second/data"
refused "and on that alone" "does not exist" "$freehold" cat "$dev:/second/data"
head -c 3000000 /dev/urandom > /tmp/more
expect "a file is written there" "$freehold" cp /tmp/more "$dev:/more"
expect "lab-b is claimed again" "$freehold" device claim "$b"
expect "it is mounted" "$freehold" mount "$medium" "$LAB_MNT/v"
expect "and the driver reads what went through the kernel's" cmp /tmp/more "$LAB_MNT/v/more"
expect "it is unmounted" "$freehold" umount "$LAB_MNT/v"
expect "lab-b is given back" "$freehold" device release "$b"
if dmesg | grep -E 'BUG:|WARNING:|Oops|hung task|DMAR:.*fault' >&2; then fail "the kernel complained"; else pass "no complaints of the kernel, nor of the IOMMU"; fi
finish
