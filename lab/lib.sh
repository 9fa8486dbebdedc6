# For the tests in the guest: sourced, not run. A test prints PASS and FAIL lines and ends with `finish`.
freehold=$LAB_BIN/freehold
failures=0
passed=0

pass() {
    echo "PASS $*"
    passed=$((passed + 1))
}

fail() {
    echo "FAIL $*"
    failures=$((failures + 1))
}

# expect WHAT COMMAND...: the command succeeds.
expect() {
    local what=$1 said
    shift
    if said=$("$@" 2>&1); then pass "$what"; else fail "$what: $* said: $said"; fi
}

# refused WHAT WORDS COMMAND...: the command fails, and says WORDS (an extended regular expression).
refused() {
    local what=$1 words=$2 said
    shift 2
    if said=$("$@" 2>&1); then
        fail "$what: $* succeeded and said: $said"
    elif grep -Eq -- "$words" <<<"$said"; then
        pass "$what: $said"
    else
        fail "$what: $* failed, but said: $said"
    fi
}

# eventually SECONDS COMMAND...: tries until the command succeeds.
eventually() {
    local until=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $until ] || return 1
        sleep 0.2
    done
}

# PCI address of the controller with a serial number, as the kernel's driver knows it: address lab-a
address() {
    local c
    for c in /sys/class/nvme/nvme*; do
        if [ "$(tr -d ' ' < "$c/serial")" = "$1" ]; then
            basename "$(readlink -f "$c/device")"
            return
        fi
    done
    return 1
}

# Block device of the first namespace of the controller at a PCI address.
namespace() {
    local d
    for d in "/sys/bus/pci/devices/$1/nvme/nvme"*/nvme*n1; do
        [ -b "/dev/${d##*/}" ] && echo "/dev/${d##*/}" && return
    done
    return 1
}

# Name of the driver that a PCI device has, or nothing.
driver() { basename "$(readlink "/sys/bus/pci/devices/$1/driver")"; }

finish() {
    echo "$passed passed, $failures failed"
    [ "$failures" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}
