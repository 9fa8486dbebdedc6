#!/bin/bash
# ext4, XFS and F2FS on the kernel's NVMe driver, measured with fio on one controller, one after another, in rounds: the side of the kernel in a
# comparison on the same guest. Results: peers.json, one object for each file system, workload, depth and round.
#   LAB_PEERS_SECONDS   of each measurement (default 3)
#   LAB_PEERS_ROUNDS    (default 1; each begins with another file system, so that drift shows)
#   LAB_PEERS_SIZE      of the file (default 256m)
# Under emulation every instruction is slow, the kernel's and fio's: compare within one run, and report ratios alone.
. "$LAB/lib.sh"
seconds=${LAB_PEERS_SECONDS:-3}
rounds=${LAB_PEERS_ROUNDS:-1}
size=${LAB_PEERS_SIZE:-256m}
systems=(ext4 xfs f2fs)
# Name, fio's pattern, block size.
workloads=("rand-read randread 4k" "rand-write randwrite 4k" "seq-read read 64k" "seq-write write 64k")

eventually 20 address lab-a
dev=$(namespace "$(address lab-a)")
dir=$LAB_MNT/peer
mkdir -p "$dir" /tmp/fio
declare -A made=([ext4]="mkfs.ext4 -q -F" [xfs]="mkfs.xfs -q -f" [f2fs]="mkfs.f2fs -q -f")
command -v fio >/dev/null || { echo "FAIL fio is missing"; exit 1; }

separator="["
results=$LAB_RESULTS/peers.json
: > "$results"

# measure SYSTEM ROUND: all workloads on a file that has been written as a whole, past the page cache, from one process.
measure() {
    local system=$1 round=$2 name pattern block depth figures
    fio --name=fill --filename="$dir/file" --size="$size" --rw=write --bs=1m --direct=1 --end_fsync=1 --minimal >/dev/null || return 1
    for workload in "${workloads[@]}"; do
        read -r name pattern block <<<"$workload"
        for depth in 1 32; do
            fio --name="$name" --filename="$dir/file" --size="$size" --rw="$pattern" --bs="$block" --direct=1 --ioengine=io_uring \
                --iodepth="$depth" --time_based --runtime="$seconds" --ramp_time=1 --randrepeat=1 --norandommap \
                --output-format=terse --terse-version=3 > /tmp/fio/out || return 1
            # Fields of fio(1), "TERSE OUTPUT": those of writes stand 41 behind those of reads. Times are microseconds.
            figures=$(awk -F ';' -v skip="$([ "${pattern#rand}" = read ] && echo 0 || echo 41)" '/^3;/ {
                for (i = 18; i <= 37; i++) if ($(i + skip) ~ /^99[.]000000%=/) { sub(/.*=/, "", $(i + skip)); p99 = $(i + skip) }
                iops = $(8 + skip)
                printf "\"iops\": %d, \"latency_mean_us\": %.1f, \"latency_p99_us\": %d", iops, $(16 + skip), p99
                } END { exit !(iops > 0) }' /tmp/fio/out) || return 1
            printf '%s\n  {"system": "%s", "workload": "%s", "block": "%s", "depth": %s, "round": %s, "seconds": %s, %s}' \
                "$separator" "$system" "$name" "$block" "$depth" "$round" "$seconds" "$figures" >> "$results"
            separator=","
            echo "$system $name depth $depth round $round: ${figures//\"/}"
        done
    done
}

for ((round = 1; round <= rounds; round++)); do
    for ((n = 0; n < ${#systems[@]}; n++)); do
        system=${systems[$(((n + round - 1) % ${#systems[@]}))]}
        modprobe "$system" 2>/dev/null
        # Each begins on an empty device.
        blkdiscard -f "$dev" 2>/dev/null
        if ! ${made[$system]} "$dev" >/tmp/made 2>&1; then
            fail "$system: mkfs: $(cat /tmp/made)"
        elif ! mount -t "$system" "$dev" "$dir"; then
            fail "$system: it cannot be mounted"
        else
            if measure "$system" "$round"; then pass "$system is measured, round $round"; else fail "$system: fio: $(tail -n 3 /tmp/fio/out)"; fi
            umount "$dir"
        fi
    done
done
printf '\n]\n' >> "$results"
finish
