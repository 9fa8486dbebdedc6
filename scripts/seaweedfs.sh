#!/usr/bin/env bash
# Builds the server SeaweedFS, whose S3 has RenameObject, and puts it into a directory:  scripts/seaweedfs.sh DIR
# `go install` refuses it, because its module has a `replace` in it; here it is built as a dependency of a module with the same requirements.
set -euo pipefail
dir=$(realpath "${1:?"a directory"}")
module=github.com/seaweedfs/seaweedfs
version=v0.0.0-20261109003541-7506e5f91cd6
command -v go >/dev/null 2>&1 || { echo "Go is missing: see https://go.dev/dl" >&2; exit 1; }
echo "==> installing seaweedfs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS=-mod=mod
printf 'module server\n' >go.mod
source=$(go mod download -json "$module@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
cp "$source/go.sum" .
{ printf 'module server\n\nrequire %s %s\n' "$module" "$version"; sed '/^module /d' "$source/go.mod"; } >go.mod
go build -o "$dir/weed" "$module/weed"
