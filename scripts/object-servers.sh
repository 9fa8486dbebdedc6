#!/usr/bin/env bash
# Mounted buckets, and the client of object stores below them, against servers that others wrote.
#   scripts/object-servers.sh test [SERVER...]   installs what is missing (with `go install`, which takes minutes), starts each server with its
#                                                data in a temporary directory, runs the tests against it, and stops it: the requests themselves,
#                                                killed mounts (looked at with curl), fsx and pjdfstest over a mount; versitygw once more over TLS
# Servers: versitygw (default), seaweedfs and minio (large builds). They are kept in $FREEHOLD_SERVERS (default: ~/.cache/freehold-servers).
set -euo pipefail
cd "$(dirname "$0")/.."

[ "${1:-}" = test ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
shift
servers=("$@")
[ ${#servers[@]} -gt 0 ] || servers=(versitygw)
bin=${FREEHOLD_SERVERS:-$HOME/.cache/freehold-servers}
mkdir -p "$bin"
export AWS_ACCESS_KEY_ID=tester AWS_SECRET_ACCESS_KEY=testersecret AWS_EC2_METADATA_DISABLED=true
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3 AWS_REGION AWS_DEFAULT_REGION
data=$(mktemp -d)
pid=
stop() { [ -z "$pid" ] || { kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; pid=; }; }
trap 'stop; rm -rf "$data"' EXIT

# install NAME PACKAGE
install() {
    [ -x "$bin/$1" ] && return
    command -v go >/dev/null 2>&1 || { echo "Go is missing, and $1 with it: see https://go.dev/dl" >&2; exit 1; }
    echo "==> installing $1"
    GOBIN=$bin GOFLAGS=-mod=mod go install "$2"
}

# Waits until the server listens on the port.
await() {
    ./scripts/listens.sh "$pid" "$1" && return
    echo "the server did not start:" >&2
    cat "$data/log" >&2
    exit 1
}

port=$((20000 + RANDOM % 10000))
for name in "${servers[@]}"; do
    case $name in
        versitygw)
            install versitygw github.com/versity/versitygw/cmd/versitygw@latest
            mkdir -p "$data/versitygw/bucket"
            ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY \
                "$bin/versitygw" --port "127.0.0.1:$port" --keep-alive --quiet posix "$data/versitygw" >"$data/log" 2>&1 &
            pid=$!
            ;;
        seaweedfs)
            [ -x "$bin/weed" ] || ./scripts/seaweedfs.sh "$bin"
            mkdir -p "$data/seaweedfs"
            # A server of many: each has two ports, of which the second is 10,000 above the first.
            (cd "$data" && exec "$bin/weed" server -dir="$data/seaweedfs" -ip=127.0.0.1 -ip.bind=127.0.0.1 -volume.max=30 -filer -s3 -s3.port="$port" \
                -master.port=$((port + 1)) -volume.port=$((port + 2)) -filer.port=$((port + 3)) >"$data/log" 2>&1) &
            pid=$!
            await "$port"
            # The bucket can be made when the parts have found each other.
            for _ in $(seq 60); do
                curl -sf --aws-sigv4 aws:amz:us-east-1:s3 --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" -X PUT "http://127.0.0.1:$port/bucket" && break
                sleep 1
            done
            ;;
        minio)
            install minio github.com/minio/minio@latest
            mkdir -p "$data/minio/bucket"
            MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY \
                "$bin/minio" server --quiet --address "127.0.0.1:$port" "$data/minio" >"$data/log" 2>&1 &
            pid=$!
            ;;
        *)
            echo "unknown server $name" >&2
            exit 2
            ;;
    esac
    await "$port"
    echo "==> $name"
    export FREEHOLD_TEST_S3=http://127.0.0.1:$port/bucket
    cargo test -q --locked -p freehold-object --test s3_servers -- --nocapture
    cargo test -q --locked -p freehold --test bucket -- --nocapture --test-threads 1
    ./scripts/conformance-bucket.sh
    stop
    port=$((port + 1))
    [ "$name" = versitygw ] || continue
    echo "==> $name over TLS"
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=freehold-test -addext subjectAltName=IP:127.0.0.1 \
        -addext basicConstraints=critical,CA:FALSE -keyout "$data/key.pem" -out "$data/certificate.pem" 2>/dev/null
    ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY \
        "$bin/versitygw" --port "127.0.0.1:$port" --cert "$data/certificate.pem" --key "$data/key.pem" --keep-alive --quiet \
        posix "$data/versitygw" >"$data/log" 2>&1 &
    pid=$!
    await "$port"
    AWS_CA_BUNDLE=$data/certificate.pem FREEHOLD_TEST_S3=https://127.0.0.1:$port/bucket \
        cargo test -q --locked -p freehold-object --test s3_servers -- --nocapture
    stop
    port=$((port + 1))
done
