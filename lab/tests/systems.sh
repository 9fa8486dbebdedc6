#!/bin/bash
# Freehold on its own driver beside ext4, XFS and F2FS on the kernel's, on one controller, one after another (UHSFS's tables 2, 3 and 9): how many files and
# directories are made, looked at and removed in a second, and reads and writes, 32 at a time. Results: systems.md.
#   LAB_PROGRAMS          must name libfreehold_preload.so and freehold-calls
#   LAB_SYSTEMS_FILES     files and directories (default 40000: with few, a row measures how the emulator translates what runs for the first time)
#   LAB_SYSTEMS_SECONDS   of each measurement of reads and writes (default 3)
#   LAB_SYSTEMS_SIZE      of the file that is read and written, MiB (default 128)
#   LAB_SYSTEMS_CACHE     page cache of the volume that ordinary programs use (default 32m: less than the file)
# Everybody is measured in two ways. By programs: freehold-calls for names, and one fio with 32 requests of libaio under way, with O_DIRECT; on Freehold under
# `freehold run`. And by `freehold bench files`: on Freehold by the library in one process, as the paper does it, with its asynchronous calls; on the
# others by system calls, io_uring with registered files and memory. The library is put beside whatever of the others is the fastest in either way, row by row,
# and `freehold run` beside the fastest by the same programs.
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
peers=(ext4 xfs f2fs)
kinds=(create stat unlink mkdir stat-dir rmdir)
# Rows, and fio's pattern and block size.
data=(seq-read-64k:read:64k seq-write-64k:write:64k rand-read-4k:randread:4k rand-write-4k:randwrite:4k)
eventually 20 address lab-a
a=$(address lab-a)
dev=$(namespace "$a")
dir=$LAB_MNT/measured
mkdir -p "$dir"
modprobe fuse
declare -A figure made=([ext4]="mkfs.ext4 -q -F" [xfs]="mkfs.xfs -q -f" [f2fs]="mkfs.f2fs -q -f")

# note COLUMN TEXT: lines of a row and a rate.
note() {
    local row rate
    while read -r row rate _; do figure[$1:$row]=$rate; done <<<"$2"
}

# by_programs COLUMN COMMAND...: all figures on $dir, where programs are started by COMMAND.
by_programs() {
    local column=$1 said row pattern block
    shift
    said=$("$@" "$calls" --dir "$dir" --files "$files" --calls "$files" --only "$(IFS=,; echo "${kinds[*]}")" 2>&1) || { echo "$said"; return 1; }
    note "$column" "$said"
    "$@" fio --name=fill --filename="$dir/file" --size="${size}m" --rw=write --bs=1m --ioengine=psync --direct=1 --end_fsync=1 --minimal >/dev/null || return 1
    for row in "${data[@]}"; do
        IFS=: read -r row pattern block <<<"$row"
        said=$("$@" fio --name=x --filename="$dir/file" --size="${size}m" --rw="$pattern" --bs="$block" --ioengine=libaio --iodepth=32 --direct=1 \
            --time_based --runtime="$seconds" --ramp_time=1 --randrepeat=1 --norandommap --end_fsync=1 --output-format=terse --terse-version=3) || return 1
        said=$(awk -F ';' -v skip="$([ "${pattern#rand}" = read ] && echo 0 || echo 41)" '/^3;/ { print $(8 + skip) }' <<<"$said")
        [ "${said:-0}" -gt 0 ] || return 1
        figure[$column:$row]=$said
    done
}

# by_bench COLUMN PLACE: the same by `freehold bench files`.
by_bench() {
    local said
    said=$("$freehold" bench files "$2" --files "$files" --size "${size}M" --seconds "$seconds" 2>&1) || { echo "$said"; return 1; }
    note "$1" "$said"
}

for system in "${peers[@]}"; do
    modprobe "$system" 2>/dev/null
    blkdiscard -f "$dev" 2>/dev/null
    if ! ${made[$system]} "$dev" >/tmp/made 2>&1 || ! mount -t "$system" "$dev" "$dir"; then
        fail "$system: $(cat /tmp/made)"
        continue
    fi
    if by_programs "$system" && by_bench "bench-$system" "$dir"; then pass "$system is measured"; else fail "$system is not measured"; fi
    umount "$dir"
done
blkdiscard -f "$dev" 2>/dev/null
expect "it is claimed" "$freehold" device claim "$a"
expect "a volume is made" "$freehold" mkfs "nvme:$a" --force
if by_bench library "nvme:$a"; then pass "the library is measured"; else fail "the library is not measured"; fi
expect "it is mounted" "$freehold" mount "nvme:$a" "$dir" -o "cache=$cache"
if by_programs run "$freehold" run --; then pass "freehold run is measured"; else fail "freehold run is not measured"; fi
expect "it is unmounted" "$freehold" umount "$dir"
expect "fsck finds nothing" "$freehold" fsck "nvme:$a"
expect "it is given back" "$freehold" device release "$a"

{
    echo "| in a second | library | ext4 | xfs | f2fs | freehold run | ext4 | xfs | f2fs | library beside the best of all others | freehold run beside the best by programs |"
    echo "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for row in "${kinds[@]}" "${data[@]%%:*}"; do
        line=()
        for column in library "${peers[@]/#/bench-}" run "${peers[@]}"; do line+=("${figure[$column:$row]:-0}"); done
        awk -v row="$row" -v line="${line[*]}" '
            function ratio(v, best) { return best > 0 ? sprintf("%.2fx", v / best) : "-" }
            BEGIN {
                split(line, v, " "); printf "| %s |", row
                for (i = 1; i <= 8; i++) {
                    printf " %d |", v[i]
                    if (i > 1 && i != 5 && v[i] > all) all = v[i]
                    if (i > 5 && v[i] > programs) programs = v[i]
                }
                printf " %s | %s |\n", ratio(v[1], all), ratio(v[5], programs) }'
    done
} | tee "$LAB_RESULTS/systems.md"
finish
