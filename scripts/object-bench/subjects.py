"""Who is measured, and how each is mounted: with the defaults of each, but for what leads to the server."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import time

BUCKET = "bench"
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "benchsecret"}


def program(name):
    """Where a program is, or None."""
    kept = os.path.join(os.environ["FREEHOLD_SERVERS"], name)
    return kept if os.access(kept, os.X_OK) else shutil.which(name)


class Subject:
    """A file system over a bucket. `after_close`: close(2) may return before the object is there. `cannot`: rows that are not tried, and why."""

    def __init__(self, name, binary, arguments, after_close=False, environment=lambda *_: {}, only=None, cannot=()):
        self.name, self.binary, self.arguments, self.after_close = name, binary, arguments, after_close
        self.environment, self.only, self.cannot = environment, only, dict(cannot)

    def mount(self, endpoint, place):
        return Mounted(self, endpoint, place)


class Mounted:
    """A mount of the bucket by a process of its own, in the foreground."""

    def __init__(self, subject, endpoint, place):
        self.subject, self.at = subject, os.path.join(place, "mnt")
        os.makedirs(self.at, exist_ok=True)
        self.log = os.path.join(place, "mount.log")
        cache = os.path.join(place, "cache")
        shutil.rmtree(cache, ignore_errors=True)
        os.makedirs(cache)
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RCLONE_"))}
        environment |= KEYS | {"AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
        environment |= subject.environment(endpoint, cache)
        arguments = subject.arguments(endpoint, self.at, place, cache)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [subject.binary, *arguments], env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        until = time.monotonic() + 30
        while not os.path.ismount(self.at):
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()
                self.process.wait()
                with open(self.log, errors="replace") as log:
                    raise RuntimeError(f"{subject.name} does not mount: {log.read()[-2000:]}")
            time.sleep(0.02)

    def cpu(self):
        """Seconds of processor time that the process has used."""
        with open(f"/proc/{self.process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak(self):
        """The most memory that was resident, MiB."""
        with open(f"/proc/{self.process.pid}/status") as status:
            for line in status:
                if line.startswith("VmHWM"):
                    return int(line.split()[1]) / 1024
        raise RuntimeError("no VmHWM")

    def unmount(self):
        libc = ctypes.CDLL(None, use_errno=True)
        until = time.monotonic() + 20
        while os.path.ismount(self.at) and libc.umount2(self.at.encode(), 0) != 0 and time.monotonic() < until:
            time.sleep(0.05)
        try:
            # What uploads in the background finishes that now.
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if os.path.ismount(self.at):
            libc.umount2(self.at.encode(), 2)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.unmount()


def rclone_environment(endpoint, _cache):
    return {
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_CONFIG_S_TYPE": "s3",
        "RCLONE_CONFIG_S_PROVIDER": "Other",
        "RCLONE_CONFIG_S_ENDPOINT": endpoint,
        "RCLONE_CONFIG_S_ENV_AUTH": "true",
    }


def rclone(mode):
    return lambda _e, at, _p, cache: ["mount", f"s:{BUCKET}", at, "--vfs-cache-mode", mode, "--cache-dir", cache]


def s3fs(endpoint, at, place, _cache):
    passwd = os.path.join(place, "passwd-s3fs")
    with open(os.open(passwd, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as keys:
        keys.write(f"{KEYS['AWS_ACCESS_KEY_ID']}:{KEYS['AWS_SECRET_ACCESS_KEY']}\n")
    return [BUCKET, at, "-f", "-o", f"passwd_file={passwd},url={endpoint},use_path_request_style"]


def freehold(*words):
    def arguments(endpoint, at, _place, _cache):
        return ["mount", "--foreground", f"s3://{BUCKET}", at, "-o", ",".join([f"endpoint={endpoint}", *words])]

    return arguments


def goofys(endpoint, at, _place, _cache):
    return ["-f", "--endpoint", endpoint, "--region", "us-east-1", BUCKET, at]


# S3 refuses that in a bucket of this kind. The server here does as it would with PUT, and the file has its new name and nothing in it.
NO_RENAME = "it renames with RenameObject alone, which this server takes for PUT of an empty object"


def mountpoint(endpoint, at, _place, _cache):
    # What all others allow without being told to.
    return [BUCKET, at, "--endpoint", endpoint, "--region", "us-east-1", "--allow-overwrite", "--allow-delete"]


def subjects(extra):
    """All that are there. `extra`: further words for -o of freehold."""
    words = [w for w in extra.split(",") if w]
    everybody = [
        Subject("freehold", os.environ["FREEHOLD"], freehold(*words)),
        # Attributes of a listing alone, which is all that goofys, geesefs and rclone show.
        Subject("freehold, listed_attributes", os.environ["FREEHOLD"], freehold("listed_attributes", *words), only="list"),
        Subject("s3fs", program("s3fs"), s3fs),
        Subject("goofys", program("goofys"), goofys),
        Subject("geesefs", program("geesefs"), goofys, after_close=True),
        # Its libraries, mounted by object-bench/mountpoint.
        Subject("mountpoint-s3", program("mountpoint-peer"), mountpoint, cannot={"rename": NO_RENAME}),
        Subject("rclone", program("rclone"), rclone("off"), environment=rclone_environment),
        Subject("rclone, writes cached", program("rclone"), rclone("writes"), after_close=True, environment=rclone_environment),
    ]
    return [s for s in everybody if s.binary], [s.name for s in everybody if not s.binary]


def versions():
    """What each says of its version."""
    out = {}
    for name in ("versitygw", "weed", "s3fs", "goofys", "geesefs", "mountpoint-peer", "rclone"):
        flag = "version" if name in ("rclone", "weed") else "--version"
        if path := program(name):
            said = subprocess.run([path, flag], capture_output=True, text=True).stdout.strip().splitlines()
            built = subprocess.run(["go", "version", "-m", path], capture_output=True, text=True).stdout
            module = [line.split()[2] for line in built.splitlines() if line.split()[:1] == ["mod"]]
            out[name] = module[0] if module else (said[0] if said else "?")
    return out


class Net:
    """The network that is further away, in front of the server."""

    def __init__(self, port, delay):
        command = [os.environ["FREEHOLD_SLOW_NET"], "--to", f"127.0.0.1:{port}", "--delay", str(delay)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.endpoint = "http://" + self.process.stdout.readline().strip()

    def counts(self):
        """Requests since the last call, by method."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
