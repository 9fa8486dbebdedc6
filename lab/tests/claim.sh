#!/bin/bash
# freehold device on real controllers: what is listed, refused, claimed, given back, and left behind by SIGKILL at random moments.
#   LAB_KILLS    how many claims and releases are killed (default 20)
. "$LAB/lib.sh"

# state ADDRESS FIELD: what freehold device list says of a controller, as JSON (null where it says nothing).
state() {
    "$freehold" device list --json | awk -v at="\"address\": \"$1\"" -v field="\"$2\":" '
        /^  [{]/ { object = "" }
        { object = object $0 "\n" }
        /^  [}]/ { if (index(object, at)) { n = split(object, lines, "\n")
            for (i = 1; i <= n; i++) if (index(lines[i], "    " field) == 1) { sub(/^ *"[^"]*": /, "", lines[i]); sub(/,$/, "", lines[i]); print lines[i] } } }'
}

# is WHAT EXPECTED FOUND
is() { if [ "$2" = "$3" ]; then pass "$1: $3"; else fail "$1: $3, not $2"; fi; }

for name in a b c; do eventually 20 address "lab-$name"; done
a=$(address lab-a) b=$(address lab-b) c=$(address lab-c)
modprobe ext4
dev_a=$(namespace "$a") dev_b=$(namespace "$b") dev_c=$(namespace "$c")
mkdir -p "$LAB_MNT"/{a,b}
mkswap "$dev_b" >/dev/null && swapon "$dev_b"
refused "swap space" "${dev_b#/dev/} is swap space" "$freehold" device claim "$b"
swapoff "$dev_b"
mkfs.ext4 -q -F "$dev_a" 131072 && mkfs.ext4 -q -F "$dev_b" 131072
mount "$dev_b" "$LAB_MNT/b" && head -c 3000000 /dev/urandom > "$LAB_MNT/b/data" && sum=$(sha256sum < "$LAB_MNT/b/data") && umount "$LAB_MNT/b"
mount "$dev_a" "$LAB_MNT/a"

echo "--- list"
"$freehold" device list
is "model of lab-b" '"QEMU NVMe Ctrl"' "$(state "$b" model)"
is "serial of lab-b" '"lab-b"' "$(state "$b" serial)"
is "driver of lab-b" '"nvme"' "$(state "$b" driver)"
is "lab-b is in use by nobody" '[]' "$(state "$b" uses)"
is "lab-a is in use" '[' "$(state "$a" uses)"

echo "--- refusals"
refused "a mounted controller" "${dev_a#/dev/} is mounted at $LAB_MNT/a \(ext4\)" "$freehold" device claim "$a"
refused "of two both or none" "is mounted" "$freehold" device claim "$b" "$a"
is "and the other is left alone" nvme "$(driver "$b")"
sleep 100 < "$dev_b" &
opener=$!
refused "an open device" "is open in process $opener \(sleep\)" "$freehold" device claim "$b"
kill "$opener"
wait "$opener" 2>/dev/null
modprobe dm-mod
if command -v dmsetup >/dev/null && dmsetup create lab --table "0 2048 linear $dev_b 0" 2>/dev/null; then
    refused "a part of a mapped device" "is a part of dm-0 \(lab\)" "$freehold" device claim "$b"
    dmsetup remove lab
fi
refused "what is not there" "no PCI device" "$freehold" device claim 0000:7f:00.0
refused "what is not a controller" "not an NVMe controller" "$freehold" device claim 0000:00:00.0
# In another mount namespace, as a container's.
unshare -m sh -c "mount $dev_b $LAB_MNT/b && touch /tmp/mounted && exec sleep 100" &
hidden=$!
eventually 10 test -e /tmp/mounted
refused "a controller that is mounted elsewhere" "in the mount namespace of process $hidden" "$freehold" device claim "$b"
kill "$hidden"
wait "$hidden" 2>/dev/null

if [ "${LAB_IOMMU:-1}" = 1 ]; then
    group=$(basename "$(readlink "/sys/bus/pci/devices/$c/iommu_group")")
    if modprobe e1000; then
        refused "a controller whose group holds a network card" "IOMMU group $group also holds .*driver e1000" "$freehold" device claim "$c"
        is "and it is left alone" nvme "$(driver "$c")"
    else
        echo "skipped: this kernel has no driver for the network card in the group of $c"
    fi
    option=
else
    refused "a controller without an IOMMU" "has no IOMMU group.*--no-iommu" "$freehold" device claim "$b"
    option=--no-iommu
    modprobe vfio-pci
    if [ ! -e /sys/module/vfio/parameters/enable_unsafe_noiommu_mode ]; then
        refused "where the kernel has no other way" "CONFIG_VFIO_NOIOMMU" "$freehold" device claim --no-iommu "$b"
        is "and it is left alone" nvme "$(driver "$b")"
        echo "this kernel hands nothing out without an IOMMU: nothing more to test"
        umount "$LAB_MNT/a"
        finish
    fi
fi

echo "--- claim and release"
expect "lab-b is claimed" "$freehold" device claim $option "$b"
is "its driver" vfio-pci "$(driver "$b")"
# That of its group, or where the kernel has none, its own for iommufd.
node=$(find /dev/vfio -type c ! -name vfio | sort | head -n 1)
[ -c "$node" ] && pass "there is $node" || fail "no node in /dev/vfio: $(ls /dev/vfio)"
[ ! -e "$dev_b" ] && pass "$dev_b is gone" || fail "$dev_b is still there"
is "its claim" '"stands"' "$(state "$b" claim)"
is "its serial number is remembered" '"lab-b"' "$(state "$b" serial)"
"$freehold" device list
expect "claimed twice" "$freehold" device claim $option "$b"
exec 9<> "$node"
sleep 100 &
opener=$!
exec 9>&-
refused "a controller that is driven" "$node is open in process $opener" "$freehold" device release "$b"
kill "$opener"
wait "$opener" 2>/dev/null
expect "lab-b is given back" "$freehold" device release "$b"
is "its driver" nvme "$(driver "$b")"
is "its override" "(null)" "$(cat "/sys/bus/pci/devices/$b/driver_override")"
expect "given back twice" "$freehold" device release "$b"
expect "given back without a claim" "$freehold" device release "$a"
is "which changed nothing" nvme "$(driver "$a")"

# usable: the kernel drives lab-b, nothing of a claim is left, and its data are there.
usable() {
    local dev
    dev=$(namespace "$b") || { echo "no namespace"; return 1; }
    [ "$(driver "$b")" = nvme ] && [ "$(cat "/sys/bus/pci/devices/$b/driver_override")" = "(null)" ] || { echo "driver $(driver "$b")"; return 1; }
    [ ! -e "/run/freehold/devices/$b" ] || { echo "a record is left"; return 1; }
    mount "$dev" "$LAB_MNT/b" || return 1
    [ "$(sha256sum < "$LAB_MNT/b/data")" = "$sum" ] || echo "other data"
    umount "$LAB_MNT/b" || return 1
}
is "lab-b is usable" "" "$(usable 2>&1)"

echo "--- SIGKILL"
record=/run/freehold/devices/$b
# nap MICROSECONDS: shorter than starting a program takes here.
mkfifo /tmp/nothing
exec 8<> /tmp/nothing
nap() {
    local seconds
    printf -v seconds '%d.%06d' $(($1 / 1000000)) $(($1 % 1000000))
    read -rt "$seconds" -u 8
}
microseconds() { echo $(($(date +%s%N) / 1000)); }
started=$(microseconds)
"$freehold" device claim $option "$b" >/dev/null
span=$(($(microseconds) - started))
echo "a claim takes $((span / 1000)) ms"
"$freehold" device release "$b" >/dev/null
interrupted=0 whole=0
for ((n = 1; n <= ${LAB_KILLS:-16}; n++)); do
    if ((n % 2)); then
        what=claim
        "$freehold" device claim $option "$b" >/dev/null 2>&1 &
    else
        what=release
        "$freehold" device claim $option "$b" >/dev/null
        "$freehold" device release "$b" >/dev/null 2>&1 &
    fi
    victim=$!
    # Most of the time it is starting. So half of the kills wait for its first step; the others come whenever they come.
    moment="at any time"
    if ((n % 4 < 2)); then
        moment="after its first step"
        text=
        while [ -e "/proc/$victim" ] && [[ $text != *"\"${what%e}ing\""* ]]; do
            [ ! -e "$record" ] || read -rd '' text < "$record"
        done 2>/dev/null
        nap $((RANDOM * 40000 / 32768))
    else
        nap $((RANDOM * span / 32768))
    fi
    kill -KILL "$victim" 2>/dev/null
    wait "$victim" 2>/dev/null
    case $(state "$b" claim) in
        '"interrupted"') interrupted=$((interrupted + 1)) left=interrupted ;;
        *) whole=$((whole + 1)) left=whole ;;
    esac
    echo "$n: $what was killed $moment, and is $left ($SECONDS s)"
    said=$("$freehold" device release "$b" 2>&1) || fail "release after killed $what ($n): $said"
    said=$(usable 2>&1)
    [ -z "$said" ] || fail "after killed $what ($n): $said"
done
echo "$interrupted of $((interrupted + whole)) were interrupted in the middle"
[ "$interrupted" -gt 0 ] && pass "killed $((interrupted + whole)) times, and usable each time" || fail "no kill came in the middle"

echo "--- the mounted one was never touched"
expect "lab-a can be written" sh -c "echo still here > $LAB_MNT/a/file && sync $LAB_MNT/a/file"
umount "$LAB_MNT/a"
if dmesg | grep -E 'BUG:|WARNING:|Oops|hung task' >&2; then fail "the kernel complained"; else pass "no complaints of the kernel"; fi
finish
