#!/usr/bin/env bash
# Installs the Debian packages named as arguments where they are missing, or says what to install when that needs root.
# An argument is PROGRAM:PACKAGE, or PROGRAM where both have one name; or /FILE:PACKAGE.
set -euo pipefail

missing=()
for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || [[ $pair == /* && -e ${pair%%:*} ]] || missing+=("${pair##*:}")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing: ${missing[*]}. Install them with your system's package manager, then try again." >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "Missing: ${missing[*]}. As root: apt-get install ${missing[*]}" >&2
    exit 1
fi
echo "==> installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }
install 2>/dev/null || { apt-get update -qq && install; }
