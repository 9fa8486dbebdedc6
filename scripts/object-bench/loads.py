"""The loads. Each takes a run and a subject, and returns what was measured; the first value is the one that is compared, in seconds."""

import os
import subprocess
import threading
import time

MIB = 1 << 20
BLOCK = os.urandom(4 * MIB)


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def write_file(path, size, call):
    """Writes a new file with calls of that size, to the end of close."""
    data = memoryview(BLOCK)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        done = 0
        while done < size:
            done += os.write(file, data[done % len(BLOCK) :][: min(call, size - done)])
    finally:
        os.close(file)


def read_file(path, call):
    """Reads a file to its end; how many bytes it had."""
    buffer = bytearray(call)
    file = os.open(path, os.O_RDONLY)
    try:
        total = 0
        while n := os.readv(file, [buffer]):
            total += n
        return total
    finally:
        os.close(file)


def same(run, name, size):
    """Whether an object of the server is what `write_file` wrote."""
    if run.size(name) != size:
        return False
    with run.open(name) as file:
        return all(file.read(len(BLOCK)) == BLOCK[: min(len(BLOCK), size - at)] for at in range(0, size, len(BLOCK)))


def visible(run, name, size, since):
    """Seconds until the server has the object, whole."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if run.size(name) == size:
            return time.monotonic() - since
        time.sleep(0.005)
    raise RuntimeError(f"{name} does not come")


def timed(mount, gib, action):
    """Runs it: its seconds, processor seconds of the mount per GiB, and the most memory it had, MiB."""
    cpu, begun = mount.cpu(), time.monotonic()
    action()
    seconds = time.monotonic() - begun
    return {"seconds": seconds, "cpu_s_per_gib": (mount.cpu() - cpu) / gib, "peak_mib": mount.peak()}


def settled(run, mount, subject, name, size, gib, action):
    """As `timed`, of something that makes an object: until the server has it, for those that return before."""
    cpu, begun = mount.cpu(), time.monotonic()
    action()
    seconds = time.monotonic() - begun
    seen = visible(run, name, size, begun) if subject.after_close else seconds
    out = {"seconds": seconds, "visible": seen, "cpu_s_per_gib": (mount.cpu() - cpu) / gib, "peak_mib": mount.peak()}
    if not same(run, name, size):
        raise RuntimeError(f"{subject.name}: {name} is not what was written")
    return out


def write(run, subject, size, endpoint=None):
    name = run.fresh(subject, "write")
    with run.mount(subject, endpoint) as mount:
        path = os.path.join(mount.at, name)
        out = settled(run, mount, subject, name, size, size / (1 << 30), lambda: write_file(path, size, MIB))
    run.forget(name)
    return out


def read(run, subject, size, endpoint=None):
    name = run.object(size)
    with run.mount(subject, endpoint) as mount:
        drop_caches()
        path = os.path.join(mount.at, name)

        def action():
            if read_file(path, MIB) != size:
                raise RuntimeError(f"{subject.name} reads too little")

        return timed(mount, size / (1 << 30), action)


def together(n, action):
    """Runs action(i) on n threads."""
    errors = []

    def one(i):
        try:
            action(i)
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    if errors:
        raise errors[0]


def streams_write(run, subject, n, size):
    names = [run.fresh(subject, f"stream{i}") for i in range(n)]
    gib = n * size / (1 << 30)
    with run.mount(subject) as mount:
        out = timed(mount, gib, lambda: together(n, lambda i: write_file(os.path.join(mount.at, names[i]), size, 4 * MIB)))
        begun = time.monotonic()
        wait = max(visible(run, name, size, begun) for name in names)
        out["visible"] = out["seconds"] + (wait if subject.after_close else 0)
        out["peak_mib"] = mount.peak()
    for name in names:
        run.forget(name)
    return out


def streams_read(run, subject, n, size):
    names = [run.object(size, f"-{i}") for i in range(n)]
    gib = n * size / (1 << 30)
    with run.mount(subject) as mount:
        drop_caches()

        def action(i):
            if read_file(os.path.join(mount.at, names[i]), 4 * MIB) != size:
                raise RuntimeError(f"{subject.name} reads too little")

        return timed(mount, gib, lambda: together(n, action))


def small(run, subject, count, endpoint=None, net=None):
    """Many small files in a new directory."""
    top = run.fresh(subject, "small")
    with run.mount(subject, endpoint) as mount:
        directory = os.path.join(mount.at, top)
        os.mkdir(directory)
        if net:
            net.counts()

        def action():
            for i in range(count):
                write_file(os.path.join(directory, f"file-{i:05}"), 4096, 4096)

        out = timed(mount, count * 4096 / (1 << 30), action)
        begun = time.monotonic()
        wait = max(visible(run, f"{top}/file-{i:05}", 4096, begun) for i in range(count))
        out["visible"] = out["seconds"] + (wait if subject.after_close else 0)
        del out["cpu_s_per_gib"]
        if net:
            out["requests"] = net.counts()
    run.remove(top)
    return out


def list_long(run, subject, count, endpoint=None, net=None):
    """ls -l of a directory, cold."""
    name = run.directory(count)
    with run.mount(subject, endpoint) as mount:
        drop_caches()
        if net:
            net.counts()
        rows = []

        def action():
            done = subprocess.run(["ls", "-l", os.path.join(mount.at, name)], stdout=subprocess.PIPE, check=True)
            rows.append(done.stdout.count(b"\n"))

        out = timed(mount, 1, action)
        out["cpu_s"] = out.pop("cpu_s_per_gib")
        if net:
            out["requests"] = net.counts()
        if rows != [count + 1]:
            raise RuntimeError(f"{subject.name} lists {rows[0] - 1} names instead of {count}")
    return out


def rename(run, subject, size, endpoint=None, net=None):
    """mv of a large file."""
    name, new = run.object(size, "-rename"), run.fresh(subject, "renamed")
    with run.mount(subject, endpoint) as mount:
        os.stat(os.path.join(mount.at, name))
        if net:
            net.counts()
        out = settled(
            run, mount, subject, new, size, size / (1 << 30), lambda: os.rename(os.path.join(mount.at, name), os.path.join(mount.at, new))
        )
        until = time.monotonic() + 60
        while run.size(name) is not None:
            if time.monotonic() > until:
                raise RuntimeError(f"{subject.name} leaves the old name")
            time.sleep(0.01)
        if net:
            out["requests"] = net.counts()
    run.rename(new, name)
    return out


def append(run, subject, size, endpoint=None, net=None):
    """1 MiB at the end of a large object."""
    name = run.object(size, "-append")
    with run.mount(subject, endpoint) as mount:
        drop_caches()
        path = os.path.join(mount.at, name)
        if net:
            net.counts()

        def action():
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(file, BLOCK[size % len(BLOCK) :][:MIB])
            finally:
                os.close(file)

        try:
            out = settled(run, mount, subject, name, size + MIB, size / (1 << 30), action)
        finally:
            # Everybody has an object of the same size: s3fs fails with some others.
            run.forget(name)
        if net:
            out["requests"] = net.counts()
    return out
