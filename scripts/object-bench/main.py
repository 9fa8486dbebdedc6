"""Buckets as file systems, side by side. Started by scripts/object-bench.sh."""

import argparse
import base64
import contextlib
import functools
import hashlib
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zlib

import loads
import subjects
from subjects import BUCKET, KEYS, Net

MIB = 1 << 20


class Run:
    """A server with its data, and what the loads need of it: versitygw, which keeps objects as files."""

    serves = "versitygw"

    def __init__(self, data):
        self.place = tempfile.mkdtemp(prefix="freehold-bench-", dir=data)
        self.work = tempfile.mkdtemp(prefix="freehold-bench-")
        self.bucket = os.path.join(self.place, "store", BUCKET)
        os.makedirs(os.path.dirname(self.bucket))
        self.made, self.count = set(), 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        environment = os.environ | {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
        with open(os.path.join(self.work, "server.log"), "wb") as log:
            command = [subjects.program(self.serves), *self.arguments(os.path.dirname(self.bucket))]
            self.server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.work)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        for _ in range(600):
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.05)
        else:
            raise RuntimeError("the server does not start")
        until = time.monotonic() + 60
        while self.rclone("mkdir", f"s:{BUCKET}").wait() != 0:
            if time.monotonic() > until:
                raise RuntimeError("the server makes no bucket")
            time.sleep(0.5)

    def arguments(self, place):
        return ["--port", f"127.0.0.1:{self.port}", "--keep-alive", "--quiet", "posix", place]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait()
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)

    def mount(self, subject, endpoint=None):
        return subject.mount(endpoint or self.endpoint, self.work)

    def backend(self, name):
        """The file in which the server keeps an object."""
        return os.path.join(self.bucket, name)

    def size(self, name):
        """Bytes of an object that the server has, or None."""
        try:
            return os.stat(self.backend(name)).st_size
        except FileNotFoundError:
            return None

    def open(self, name):
        """The bytes of an object."""
        return open(self.backend(name), "rb")

    def rename(self, old, new):
        os.rename(self.backend(old), self.backend(new))

    def duplicate(self, old, new):
        """With the attributes in which the server keeps what it knows of it."""
        shutil.copy2(self.backend(old), self.backend(new))

    def fresh(self, subject, what):
        """A new name."""
        self.count += 1
        return f"{what}-{''.join(c for c in subject.name if c.isalnum())}-{self.count}"

    def forget(self, name):
        self.made.discard(name)
        if os.path.exists(self.backend(name)):
            os.unlink(self.backend(name))

    def remove(self, directory):
        shutil.rmtree(self.backend(directory))

    def rclone(self, *words):
        """A client that has nothing to do with a file system."""
        environment = os.environ | KEYS | subjects.rclone_environment(self.endpoint, None)
        return subprocess.Popen([subjects.program("rclone"), *words], env=environment, stdin=subprocess.PIPE)

    def object(self, size, suffix=""):
        """An object that rclone put there; made once."""
        name = f"object-{size}{suffix}"
        if suffix:
            # As many as are needed, from the first one.
            first = self.object(size)
            if name not in self.made:
                self.duplicate(first, name)
                self.made.add(name)
        elif name not in self.made:
            words = ["--size", str(size), "--s3-chunk-size", "64M", "--s3-upload-cutoff", "64M"]
            with self.rclone("rcat", f"s:{BUCKET}/{name}", *words) as putting:
                for at in range(0, size, len(loads.BLOCK)):
                    putting.stdin.write(loads.BLOCK[: size - at])
                putting.stdin.close()
            if putting.returncode or not loads.same(self, name, size):
                raise RuntimeError(f"{name} is not put")
            self.made.add(name)
        return name

    def directory(self, count):
        """A directory of small objects; made once, as files of the server, which keeps ETags and checksums in their extended attributes."""
        name = f"directory-{count}"
        if name not in self.made:
            os.mkdir(self.backend(name))
            for i in range(count):
                body = f"{i}\n".encode()
                with open(self.backend(f"{name}/file-{i:06}"), "wb") as file:
                    file.write(body)
                    os.setxattr(file.fileno(), "user.etag", hashlib.md5(body).hexdigest().encode())
                    # As of any object that is put. Without it the listing has an element of no checksum, which mountpoint-s3 does not take.
                    checksum = {"Algorithm": "CRC32", "Type": "FULL_OBJECT", "CRC32": base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()}
                    os.setxattr(file.fileno(), "user.checksums", json.dumps(checksum).encode())
            self.made.add(name)
        return name


class Renaming(Run):
    """SeaweedFS, which has RenameObject. Objects are looked at over HTTP, which needs no keys here."""

    serves = "weed"

    def arguments(self, place):
        free = [socket.socket() for _ in range(6)]
        [s.bind(("127.0.0.1", 0)) for s in free]
        master, master_grpc, volume, volume_grpc, filer, filer_grpc = (s.getsockname()[1] for s in free)
        [s.close() for s in free]
        ports = {"master.port": master, "master.port.grpc": master_grpc, "volume.port": volume, "volume.port.grpc": volume_grpc, "filer.port": filer}
        ports |= {"filer.port.grpc": filer_grpc, "s3.port": self.port}
        words = [f"-{name}={port}" for name, port in ports.items()]
        return ["server", f"-dir={place}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", "-volume.max=30", *words]

    def ask(self, name, method="GET", query="", **headers):
        request = urllib.request.Request(f"{self.endpoint}/{BUCKET}/{name}{query}", method=method, headers=headers)
        return urllib.request.urlopen(request)

    def size(self, name):
        try:
            with self.ask(name, "HEAD") as answer:
                return int(answer.headers["Content-Length"])
        except urllib.error.HTTPError as e:
            if e.code != 404:
                raise
            return None

    def open(self, name):
        return self.ask(name)

    def rename(self, old, new):
        self.ask(new, "PUT", "?renameObject", **{"x-amz-rename-source": f"/{BUCKET}/{old}"}).close()

    def duplicate(self, old, new):
        self.ask(new, "PUT", **{"x-amz-copy-source": f"/{BUCKET}/{old}"}).close()


def rows(a):
    """Every row: its name, which subjects it is for, and the load."""
    size, large = a.size * MIB, a.large * MIB
    near = {
        f"write {a.size} MiB": ("write", functools.partial(loads.write, size=size)),
        f"read {a.size} MiB": ("read", functools.partial(loads.read, size=size)),
        f"write {a.large} MiB": ("write-large", functools.partial(loads.write, size=large)),
        f"read {a.large} MiB": ("read-large", functools.partial(loads.read, size=large)),
        f"{a.streams} streams, write {a.stream_size} MiB each": ("streams-write", functools.partial(loads.streams_write, n=a.streams, size=a.stream_size * MIB)),
        f"{a.streams} streams, read {a.stream_size} MiB each": ("streams-read", functools.partial(loads.streams_read, n=a.streams, size=a.stream_size * MIB)),
        f"{a.files} files of 4 KiB": ("small", functools.partial(loads.small, count=a.files)),
        f"ls -l of {a.few}": ("list", functools.partial(loads.list_long, count=a.few)),
        f"ls -l of {a.many}": ("list-many", functools.partial(loads.list_long, count=a.many)),
        f"rename of {a.size} MiB": ("rename", functools.partial(loads.rename, size=size)),
        f"rename of {a.size} MiB by a server that can": ("rename-native", functools.partial(loads.rename, size=size)),
        f"append of 1 MiB to {a.size} MiB": ("append", functools.partial(loads.append, size=size)),
    }
    far = {
        f"write {a.size} MiB, {a.delay} ms": ("write-far", functools.partial(loads.write, size=size)),
        f"read {a.size} MiB, {a.delay} ms": ("read-far", functools.partial(loads.read, size=size)),
    }
    return near, far


COUNTED = ("small", "list", "list-many", "rename", "rename-native", "append")


def measure(a):
    here, missing = subjects.subjects(a.freehold_options)
    if a.only:
        wanted = a.only.split(";")
        here = [s for s in here if s.name in wanted]
    near, far = rows(a)
    wanted = a.rows.split(",") if a.rows else None
    results = {}
    with contextlib.ExitStack() as stack:
        server = functools.cache(lambda kind: stack.enter_context(kind(a.data)))
        net = functools.cache(lambda port, delay: stack.enter_context(Net(port, delay)))
        for row, (key, load) in (near | far).items():
            if wanted and key not in wanted:
                continue
            kind = Renaming if key == "rename-native" else Run
            if not subjects.program(kind.serves):
                missing.append(f"{kind.serves} (a server, for {key})")
                continue
            run = server(kind)
            endpoint = net(run.port, a.delay).endpoint if row in far else None
            failed = set()
            for turn in range(a.repeat):
                # Everybody once, then everybody again: what else the machine does meets all of them.
                for subject in here:
                    if subject.name in failed or (subject.only and not key.startswith(subject.only)):
                        continue
                    try:
                        if key in subject.cannot:
                            raise RuntimeError(subject.cannot[key])
                        out = load(run, subject, endpoint=endpoint) if "streams" not in key else load(run, subject)
                        if turn == 0 and key in COUNTED and not a.no_counts:
                            counting = net(run.port, 0)
                            counted = load(run, subject, endpoint=counting.endpoint, net=counting)
                            out["requests"] = counted["requests"]
                    except Exception as e:
                        failed.add(subject.name)
                        print(f"{row}: {subject.name}: {e}", file=sys.stderr)
                        results.setdefault(row, {})[subject.name] = {"error": str(e)[:300]}
                        continue
                    results.setdefault(row, {}).setdefault(subject.name, []).append(out)
                    print(f"{row}: {subject.name}: {told(out)}", file=sys.stderr, flush=True)
    return results, missing


def told(out):
    return ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in out.items())


def middle(outs, key):
    values = [out[key] for out in outs if key in out]
    return statistics.median(values) if values else None


def table(results):
    """Medians, as text."""
    lines = []
    for row, by in results.items():
        lines.append(f"\n{row}\n| | s | in the store after s | CPU s/GiB | peak MiB | requests |\n|---|---|---|---|---|---|")
        for name, outs in by.items():
            if isinstance(outs, dict):
                lines.append(f"| {name} | failed: {outs['error'].splitlines()[0]} | | | | |")
                continue
            seen = middle(outs, "visible")
            cpu = middle(outs, "cpu_s_per_gib")
            requests = next((out["requests"] for out in outs if "requests" in out), {})
            cells = [
                f"{middle(outs, 'seconds'):.2f}",
                "" if seen is None or seen == middle(outs, "seconds") else f"{seen:.2f}",
                "" if cpu is None else f"{cpu:.2f}",
                f"{middle(outs, 'peak_mib'):.0f}",
                " ".join(f"{n} {method}" for method, n in sorted(requests.items())),
            ]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description="Buckets as file systems, side by side")
    p.add_argument("--repeat", type=int, default=5, help="how often everything is measured; medians are told [5]")
    p.add_argument("--size", type=int, default=1024, help="large object, MiB [1024]")
    p.add_argument("--large", type=int, default=4096, help="larger object, MiB [4096]")
    p.add_argument("--streams", type=int, default=64, help="streams at a time [64]")
    p.add_argument("--stream-size", type=int, default=32, help="size of each, MiB [32]")
    p.add_argument("--files", type=int, default=1000, help="small files [1000]")
    p.add_argument("--few", type=int, default=1000, help="names of the small directory [1000]")
    p.add_argument("--many", type=int, default=100_000, help="names of the large directory [100000]")
    p.add_argument("--delay", type=int, default=20, help="added to each request of the rows that are far away, ms [20]")
    p.add_argument("--rows", help="only these: write, read, write-large, read-large, write-far, read-far, streams-write, streams-read, small, list, list-many, rename, rename-native, append")
    p.add_argument("--only", help="only these, separated by ';'")
    p.add_argument("--freehold-options", default="", help="more words for -o of freehold")
    p.add_argument("--no-counts", action="store_true", help="do not count requests (which takes another run of some rows)")
    p.add_argument("--data", default="/dev/shm", help="where the server keeps its data [/dev/shm]")
    p.add_argument("--out", help="JSON of everything; rows that are in it already and not measured now stay")
    p.add_argument("--add", action="store_true", help="what is in it already of the rows that are measured now counts too")
    a = p.parse_args()
    results, missing = measure(a)
    if a.out and os.path.exists(a.out):
        with open(a.out) as file:
            before = json.load(file)["rows"]
        for row, by in results.items():
            for name, outs in by.items():
                known = before.setdefault(row, {}).get(name)
                if a.add and isinstance(known, list) and isinstance(outs, list):
                    outs = known + outs
                before[row][name] = outs
        results = before
    if a.out:
        about = {"kernel": platform.release(), "processors": os.cpu_count(), "versions": subjects.versions(), "not there": missing}
        with open(a.out, "w") as file:
            json.dump(about | {"rows": results}, file, indent=1)
    print(table(results))
    if missing:
        print(f"\nnot there: {', '.join(missing)}")


main()
