#!/bin/bash
# Freehold on its own driver beside ext4, XFS and F2FS on the kernel's, on one controller, one after another (UHSFS's tables 2, 3 and 9): how many files and
# directories are made, looked at and removed in a second, and reads and writes, 32 at a time. Freehold is used by ordinary programs under
# `freehold run`. Results: systems.md.
#   LAB_PROGRAMS          must name libfreehold_preload.so and freehold-calls
#   LAB_SYSTEMS_FILES     files and directories (default 40000: with few, a row measures how the emulator translates what runs for the first time)
#   LAB_SYSTEMS_SECONDS   of each measurement of reads and writes (default 3)
#   LAB_SYSTEMS_SIZE      of the file that is read and written, MiB (default 128)
#   LAB_SYSTEMS_CACHE     page cache of Freehold (default 32m: less than the file, so that the device is read)
# Reads and writes are those of one fio with 32 requests of libaio under way, with O_DIRECT, for all. Freehold's go through frames of its page cache
# all the same; so the file must be much larger than that.
# Under emulation every instruction is slow, the kernel's and ours: compare within one run, and report ratios alone.
. "$LAB/lib.sh"
files=${LAB_SYSTEMS_FILES:-40000}
seconds=${LAB_SYSTEMS_SECONDS:-3}
size=${LAB_SYSTEMS_SIZE:-128}
cache=${LAB_SYSTEMS_CACHE:-32m}
calls=$LAB_BIN/freehold-calls
for need in "$calls" "$LAB_BIN/libfreehold_preload.so" "$(command -v fio)"; do
    [ -e "$need" ] || { echo "FAIL missing: ${need:-fio}; see LAB_PROGRAMS"; exit 1; }
done
systems=(freehold ext4 xfs f2fs)
kinds=(create stat unlink mkdir stat-dir rmdir)
workloads=("64 KiB sequential read:read:64k" "64 KiB sequential write:write:64k" "4 KiB random read:randread:4k" "4 KiB random write:randwrite:4k")
eventually 20 address lab-a
a=$(address lab-a)
dev=$(namespace "$a")
dir=$LAB_MNT/measured
mkdir -p "$dir"
modprobe fuse
declare -A figure made=([ext4]="mkfs.ext4 -q -F" [xfs]="mkfs.xfs -q -f" [f2fs]="mkfs.f2fs -q -f")

# measure SYSTEM COMMAND...: all figures on $dir, where programs are started by COMMAND.
measure() {
    local system=$1 kind rate said w name pattern block
    shift
    said=$("$@" "$calls" --dir "$dir" --files "$files" --calls "$files" --only "$(IFS=,; echo "${kinds[*]}")" 2>&1) || { echo "$said"; return 1; }
    while read -r kind rate _; do figure[$system:$kind]=$rate; done <<<"$said"
    "$@" fio --name=fill --filename="$dir/file" --size="${size}m" --rw=write --bs=1m --ioengine=psync --direct=1 --end_fsync=1 --minimal >/dev/null || return 1
    for w in "${workloads[@]}"; do
        IFS=: read -r name pattern block <<<"$w"
        said=$("$@" fio --name=x --filename="$dir/file" --size="${size}m" --rw="$pattern" --bs="$block" --ioengine=libaio --iodepth=32 --direct=1 \
            --time_based --runtime="$seconds" --ramp_time=1 --randrepeat=1 --norandommap --end_fsync=1 --output-format=terse --terse-version=3) || return 1
        figure[$system:$name]=$(awk -F ';' -v skip="$([ "${pattern#rand}" = read ] && echo 0 || echo 41)" '/^3;/ { print $(8 + skip) }' <<<"$said")
        [ "${figure[$system:$name]:-0}" -gt 0 ] || return 1
    done
}

for system in ext4 xfs f2fs; do
    modprobe "$system" 2>/dev/null
    blkdiscard -f "$dev" 2>/dev/null
    if ! ${made[$system]} "$dev" >/tmp/made 2>&1 || ! mount -t "$system" "$dev" "$dir"; then
        fail "$system: $(cat /tmp/made)"
        continue
    fi
    if measure "$system"; then pass "$system is measured"; else fail "$system is not measured"; fi
    umount "$dir"
done
blkdiscard -f "$dev" 2>/dev/null
expect "it is claimed" "$freehold" device claim "$a"
expect "a volume is made" "$freehold" mkfs "nvme:$a" --force
expect "it is mounted" "$freehold" mount "nvme:$a" "$dir" -o "cache=$cache"
if measure freehold "$freehold" run --; then pass "freehold is measured"; else fail "freehold is not measured"; fi
expect "it is unmounted" "$freehold" umount "$dir"
expect "fsck finds nothing" "$freehold" fsck "nvme:$a"
expect "it is given back" "$freehold" device release "$a"

{
    echo "| in a second | ${systems[0]} | ${systems[1]} | ${systems[2]} | ${systems[3]} | beside the best of the others |"
    echo "|---|---:|---:|---:|---:|---:|"
    for row in "${kinds[@]}" "64 KiB sequential read" "64 KiB sequential write" "4 KiB random read" "4 KiB random write"; do
        line=() best=0
        for system in "${systems[@]}"; do
            value=${figure[$system:$row]:-0}
            line+=("$value")
            [ "$system" = freehold ] || [ "$value" -le "$best" ] || best=$value
        done
        awk -v row="$row" -v line="${line[*]}" -v best="$best" 'BEGIN {
            n = split(line, v, " "); printf "| %s |", row
            for (i = 1; i <= n; i++) printf " %d |", v[i]
            printf " %s |\n", (best > 0 ? sprintf("%.2fx", v[1] / best) : "-") }'
    done
} | tee "$LAB_RESULTS/systems.md"
finish
