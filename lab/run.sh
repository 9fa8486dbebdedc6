#!/usr/bin/env bash
# Runs test scripts inside a small virtual machine that has NVMe controllers, an IOMMU and VFIO, whatever this machine has.
#   lab/run.sh [--if-possible] [TEST...]      tests are lab/tests/TEST.sh (default: smoke claim driver two group removal)
#
# With --if-possible nothing is installed, and a machine without QEMU or without a kernel for the guest is no failure: the
# reason is said, and that is all. Without, missing packages are installed (as root) or named.
#
# Environment:
#   LAB_PROFILE   what the guest runs of Freehold: dev (default) or release. It is built first.
#   LAB_BUILD     0: run what has been built before
#   LAB_PROGRAMS  other programs that the tests run: they are found in the guest's $LAB_BIN
#   LAB_TIMEOUT   seconds until the guest is killed (default 900)
#   LAB_KVM       1: try KVM, and fall back to emulation (TCG) when a guest does not boot under it in 30 seconds
#   LAB_IOMMU     0: a guest without an IOMMU
#   LAB_MEMORY    of the guest (default 2G)
#   LAB_KERNEL    release of the guest's kernel: /boot/vmlinuz-RELEASE and /lib/modules/RELEASE (default: the newest there)
#   LAB_*         other variables are handed to the tests
#
# What comes back is in target/lab: output.log (what the tests printed), console.log (the guest's kernel), TEST.exit, and whatever the
# tests put there. The exit code is 0 when every test passed. The guest sees this machine's files read-only, and nothing of its network.
set -euo pipefail
lab=$(cd "$(dirname "$0")" && pwd)
tree=$(dirname "$lab")
cd "$tree"

if_possible=
if [ "${1:-}" = --if-possible ]; then
    if_possible=1
    shift
fi
tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(smoke claim driver two group removal)
for t in "${tests[@]}"; do
    [ -f "$lab/tests/$t.sh" ] || { echo "there is no test lab/tests/$t.sh" >&2; exit 2; }
done

# The newest kernel of which both the image and the modules are there.
guest_kernel() {
    local image release
    for image in $(printf '%s\n' /boot/vmlinuz-* | sort -rV); do
        release=${image#/boot/vmlinuz-}
        if [ -r "$image" ] && [ -f "/lib/modules/$release/modules.dep" ]; then
            echo "$release"
            return
        fi
    done
    return 1
}

tools=(qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio modprobe:kmod fio lspci:pciutils mkfs.ext4:e2fsprogs
    mkfs.f2fs:f2fs-tools mkfs.xfs:xfsprogs timeout:coreutils setpriv:util-linux flock:util-linux)
export PATH=$PATH:/usr/sbin:/sbin
if [ "$(uname -m)" != x86_64 ]; then
    echo "skipped: the lab's guest is an x86_64 machine, and this one is $(uname -m)"
    [ "$if_possible" ] && exit 0 || exit 1
fi
if [ "$if_possible" ]; then
    # Only what every test needs: those that need more say so themselves.
    for tool in qemu-system-x86_64 busybox cpio modprobe setpriv; do
        command -v "$tool" >/dev/null || { echo "skipped: there is no $tool (make lab installs what is missing)"; exit 0; }
    done
    [ "${LAB_KERNEL:-}" ] || guest_kernel >/dev/null || { echo "skipped: no kernel for the guest in /boot (make lab installs one)"; exit 0; }
else
    ./scripts/setup.sh "${tools[@]}"
    if [ -z "${LAB_KERNEL:-}" ] && ! guest_kernel >/dev/null; then
        if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
            echo "Missing: a kernel for the guest, in /boot with its modules in /lib/modules. As root: apt-get install linux-image-amd64" >&2
            exit 1
        fi
        echo "==> installing linux-image-amd64"
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends linux-image-amd64 >/dev/null 2>&1 ||
            { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends linux-image-amd64 >/dev/null; }
    fi
fi
kernel=${LAB_KERNEL:-$(guest_kernel)}

profile=${LAB_PROFILE:-dev}
[ "${LAB_BUILD:-1}" = 0 ] || cargo build --quiet --locked --profile "$profile" -p freehold
bin=${CARGO_TARGET_DIR:-target}/${profile/#dev/debug}
results=${CARGO_TARGET_DIR:-target}/lab
mkdir -p "${results%/*}"
# One run at a time: results of two would be mixed.
exec 9> "$results.lock"
flock -w "${LAB_TIMEOUT:-900}" 9 || { echo "lab: another run in this tree does not end" >&2; exit 1; }
rm -rf "$results"
mkdir -p "$results"
results=$(cd "$results" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/freehold-lab.XXXXXX")
qemu=
cleanup() {
    # QEMU dies with its parent, timeout(1): see boot.
    [ -z "$qemu" ] || kill -KILL "$qemu" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

# The initial file system of the guest: busybox, and the modules that it needs to see this machine's files. Others it finds there.
make_initramfs() {
    local root=$work/initramfs module
    mkdir -p "$root"/{bin,modules,proc,sys,dev,host}
    cp "$(command -v busybox)" "$root/bin/busybox"
    cp "$lab/guest/init" "$root/init"
    chmod 755 "$root/init"
    for module in virtio_pci 9pnet_virtio 9p; do
        modprobe -S "$kernel" --show-depends "$module"
    done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' > "$work/modules"
    while read -r module; do
        cp "$module" "$root/modules/"
        echo "${module##*/}" >> "$root/modules/order"
    done < "$work/modules"
    (cd "$root" && find . | cpio --quiet -o -H newc) | gzip -1 > "$work/initramfs.gz"
}

# boot SECONDS LOG WORDS... -- ARGUMENTS...: starts a guest in the background, its process in `qemu`. It ends after SECONDS at the latest, and
# when this script ends in whatever way.
boot() {
    local seconds=$1 log=$2 words=()
    shift 2
    while [ "$1" != -- ]; do
        words+=("$1")
        shift
    done
    shift
    # no_timer_check: on a busy machine the check of the timer panics at times. tsc=reliable: else the guest tells time by the HPET, of which each look
    # waits for the lock that QEMU emulates devices under; no real machine has that.
    setpriv --pdeathsig KILL timeout -s KILL "$seconds" setpriv --pdeathsig KILL qemu-system-x86_64 \
        -nodefaults -display none -monitor none -no-reboot -smp 2 -m "${LAB_MEMORY:-2G}" -nic none \
        -serial "file:$log" -kernel "/boot/vmlinuz-$kernel" -initrd "$work/initramfs.gz" \
        -append "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable ${words[*]}" "$@" </dev/null >>"$results/qemu.log" 2>&1 &
    qemu=$!
}

# What the guest runs is a copy: it believes that the files it sees do not change.
mkdir -p "$work/shared/bin"
cp -r "$lab" "$work/shared/lab"
cp "$bin/freehold" "$work/shared/bin/"
for program in ${LAB_PROGRAMS:-}; do cp "$program" "$work/shared/bin/"; done

make_initramfs
# The emulator runs these byte by byte and bit by bit, where processors are at their widest (copies, CRC-32C): without them the guest's kernel and
# programs use what the emulator is no slower at than at anything else.
accel=(-accel "tcg,thread=multi" -cpu max,-erms,-fsrm,-sse4.2)
if [ "${LAB_KVM:-0}" = 1 ] && [ -w /dev/kvm ]; then
    boot 30 "$work/probe.log" lab.probe=1 -- -machine q35,kernel-irqchip=split -accel kvm -cpu host
    wait "$qemu" 2>/dev/null || true
    qemu=
    if grep -q "lab: booted" "$work/probe.log"; then
        accel=(-accel kvm -cpu host)
    else
        echo "==> a guest does not boot under KVM here; it is emulated"
    fi
fi

# Two controllers of their own, the second of them with a second namespace, and two that share their IOMMU group, with a network card besides: behind a bridge to conventional PCI
# the IOMMU cannot tell devices apart.
devices=()
for name in a b c d; do truncate -s 2G "$work/$name.img"; done
truncate -s 256M "$work/b2.img"
iommu=(intel_iommu=on iommu=pt)
if [ "${LAB_IOMMU:-1}" = 1 ]; then
    devices+=(-device "intel-iommu,intremap=on,caching-mode=on")
else
    iommu=()
fi
devices+=(
    -drive "file=$work/a.img,format=raw,if=none,id=a" -device "nvme,drive=a,serial=lab-a,max_ioqpairs=16,addr=4"
    -drive "file=$work/b.img,format=raw,if=none,id=b" -device "nvme,id=b,drive=b,serial=lab-b,max_ioqpairs=16,addr=5"
    -drive "file=$work/b2.img,format=raw,if=none,id=b2" -device "nvme-ns,drive=b2,bus=b,nsid=2"
    -device "pcie-pci-bridge,id=conventional,addr=6"
    -drive "file=$work/c.img,format=raw,if=none,id=c" -device "nvme,drive=c,serial=lab-c,bus=conventional,addr=1"
    -device "e1000,bus=conventional,addr=2"
    -drive "file=$work/d.img,format=raw,if=none,id=d" -device "nvme,drive=d,serial=lab-d,bus=conventional,addr=3"
)
share() { # share TAG PATH OPTIONS
    devices+=(-fsdev "local,id=$1,path=$2,security_model=none,multidevs=remap$3" -device "virtio-9p-pci,fsdev=$1,mount_tag=$1")
}
share root / ,readonly=on
share shared "$work/shared" ,readonly=on
share results "$results" ""

printf '%s\n' "${tests[@]}" > "$results/tests"
for name in "${!LAB_@}"; do declare -p "$name"; done > "$results/environment"
limit=${LAB_TIMEOUT:-900}
started=$SECONDS
touch "$results/output.log"
boot "$limit" "$results/console.log" "${iommu[@]}" -- -machine q35,kernel-irqchip=split "${accel[@]}" "${devices[@]}"
tail -n +1 -f --pid="$qemu" "$results/output.log" &
shown=$!
wait "$qemu" 2>/dev/null || true
qemu=
wait "$shown" || true

failed=0
for t in "${tests[@]}"; do
    code=$(cat "$results/$t.exit" 2>/dev/null || echo "no end")
    [ "$code" = 0 ] || { echo "lab: $t: exit code: $code" >&2; failed=1; }
done
if [ ! -f "$results/end" ]; then
    echo "lab: the guest did not get to its end in $limit s; its last words (all of them: $results/console.log):" >&2
    tail -n 20 "$results/console.log" >&2 || true
    cat "$results/qemu.log" >&2
    failed=1
fi
echo "lab: ${tests[*]}: $([ $failed = 0 ] && echo passed || echo FAILED) in $((SECONDS - started)) s; results in $results"
exit $failed
