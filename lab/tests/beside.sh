#!/bin/bash
# Freehold's driver beside the kernel's on one controller, without a file system: 4 KiB at random places, 1 and 32 at a time, and 64 KiB one
# behind the other, 32 at a time. The kernel's driver is measured with fio (libaio, io_uring) and with the loop of `freehold bench device` over io_uring;
# Freehold's driver with the same loop. Results: beside.md, the files of `freehold bench device`, kernel.json and driver.json, and driver.svg.
#   LAB_BESIDE_SECONDS   of each measurement (default 3)
#   LAB_BESIDE_SIZE      bytes of the controller that are used (default 256M)
# Under emulation every instruction is slow, the kernel's and ours: compare within one run, and report ratios alone.
. "$LAB/lib.sh"
seconds=${LAB_BESIDE_SECONDS:-3}
size=${LAB_BESIDE_SIZE:-256M}
command -v fio >/dev/null || { echo "FAIL fio is missing"; exit 1; }
eventually 20 address lab-a
a=$(address lab-a)
dev=$(namespace "$a")
declare -A figure

# by_fio ENGINE PATTERN BLOCK DEPTH: operations in a second.
by_fio() {
    fio --name=x --filename="$dev" --size="$size" --rw="$2" --bs="$3" --direct=1 --ioengine="$1" --iodepth="$4" --time_based \
        --runtime="$seconds" --ramp_time=1 --randrepeat=1 --norandommap --output-format=terse --terse-version=3 2>/tmp/fio.err |
        awk -F ';' -v skip="$([ "${2#rand}" = read ] && echo 0 || echo 41)" '/^3;/ { print $(8 + skip) }'
}

measured=(--size "$size" --seconds "$seconds" --repeat 1 --destroy)
expect "the kernel's driver, by io_uring" "$freehold" bench device "$dev" "${measured[@]}" --json "$LAB_RESULTS/kernel.json"
workloads=("4 KiB random read:randread:4k:1" "4 KiB random read:randread:4k:32" "64 KiB sequential read:read:64k:32"
    "4 KiB random write:randwrite:4k:1" "4 KiB random write:randwrite:4k:32" "64 KiB sequential write:write:64k:32")
for w in "${workloads[@]}"; do
    IFS=: read -r name pattern block depth <<<"$w"
    for engine in libaio io_uring; do
        figure[$name:$depth:$engine]=$(by_fio "$engine" "$pattern" "$block" "$depth")
        [ "${figure[$name:$depth:$engine]:-0}" -gt 0 ] || fail "fio, $engine, $name, depth $depth: $(cat /tmp/fio.err)"
    done
done

expect "it is claimed" "$freehold" device claim "$a"
if "$freehold" bench device "nvme:$a" "${measured[@]}" --json "$LAB_RESULTS/driver.json" --svg "$LAB_RESULTS/driver.svg" > "$LAB_RESULTS/driver.txt"; then
    pass "Freehold's driver"
else
    fail "Freehold's driver"
fi
cat "$LAB_RESULTS/driver.txt"
expect "it is given back" "$freehold" device release "$a"

# value FILE STREAM DEPTH WAY: operations in a second of a stream that was alone.
value() {
    awk -v stream="\"$2\"" -v depth="$3" -v way="\"$4\"" '
        $1 == "\"depth\":" { here = ($2 + 0 == depth) }
        $1 == "\"load\":" { streams = 0; inside = 1; next }
        inside && /\]/ { inside = 0 }
        inside { streams++ }
        $1 == way ":" { this = 1 }
        this && $1 == "\"per_second\":" { seen = $2 + 0; this = 0 }
        $1 == "\"stream\":" { if (here && streams == 1 && index($0, stream)) { printf "%.0f", seen; exit } }' "$1"
}
{
    echo "| operations in a second | depth | fio, libaio | fio, io_uring | our loop, io_uring | our driver | beside the best of the kernel's |"
    echo "|---|---:|---:|---:|---:|---:|---:|"
    for w in "${workloads[@]}"; do
        IFS=: read -r name pattern block depth <<<"$w"
        kernel=$(value "$LAB_RESULTS/kernel.json" "$name" "$depth" io_uring)
        ours=$(value "$LAB_RESULTS/driver.json" "$name" "$depth" threads)
        [ "${ours:-0}" -gt 0 ] && [ "${kernel:-0}" -gt 0 ] || fail "no figures of $name, depth $depth"
        awk -v name="$name" -v depth="$depth" -v a="${figure[$name:$depth:libaio]}" -v b="${figure[$name:$depth:io_uring]}" -v k="$kernel" -v o="$ours" 'BEGIN {
            best = a > b ? a : b; best = k > best ? k : best
            printf "| %s | %d | %d | %d | %d | %d | %.2fx |\n", name, depth, a, b, k, o, (best > 0 ? o / best : 0) }'
    done
} | tee "$LAB_RESULTS/beside.md"
finish
