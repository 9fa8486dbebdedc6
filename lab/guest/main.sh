#!/bin/bash
# In the guest, as root: runs the tests that were asked for, one after another, and leaves exit codes and output on the other side.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8
export LAB=/run/lab/shared/lab LAB_BIN=/run/lab/shared/bin LAB_RESULTS=/run/lab/results LAB_MNT=/run/lab/mnt
cd /tmp || exit 1
# shellcheck disable=SC1091
. "$LAB_RESULTS/environment"
ip link set lo up 2>/dev/null
modprobe nvme

# What every process waits for: said shortly before a test that hangs is killed.
tell_waits() {
    local p words
    echo "--- $1 does not end; its processes and where they are in the kernel:"
    for p in /proc/[0-9]*; do
        words=$(tr '\0' ' ' < "$p/cmdline" | cut -c 1-120)
        [ -z "$words" ] || echo "${p#/proc/} $words: $(tr '\n' ' ' < "$p/stack")"
    done 2>/dev/null
}

limit=${LAB_TEST_TIMEOUT:-600}
{
    while read -r t; do
        echo "==> lab: $t"
        { sleep $((limit - 5)) && tell_waits "$t"; } &
        watch=$!
        timeout -k 5 "$limit" bash "$LAB/tests/$t.sh" 2>&1 </dev/null
        code=$?
        kill "$watch" 2>/dev/null
        echo "$code" > "$LAB_RESULTS/$t.exit"
    done < "$LAB_RESULTS/tests"
    date > "$LAB_RESULTS/end"
} >> "$LAB_RESULTS/output.log"
