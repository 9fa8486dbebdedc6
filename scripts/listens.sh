#!/usr/bin/env bash
# Waits until a process listens on a TCP port of this machine, ten seconds. Fails when it ends, or does not do so: another process may have the port.
#   scripts/listens.sh PID PORT
set -euo pipefail
tables=()
for table in /proc/net/tcp /proc/net/tcp6; do [ ! -r "$table" ] || tables+=("$table"); done
while kill -0 "$1" 2>/dev/null && [ $SECONDS -lt 10 ]; do
    own=$(ls -l "/proc/$1/fd" 2>/dev/null || true)
    # Numbers of the sockets that listen there, whoever has them.
    for socket in $(awk -v port="$(printf ':%04X$' "$2")" '$4 == "0A" && $2 ~ port { print $10 }' "${tables[@]}"); do
        [[ $own != *"socket:[$socket]"* ]] || exit 0
    done
    sleep 0.1
done
exit 1
