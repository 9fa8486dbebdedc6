# The same calls at random, of several processes in turn, which share files by name and by fork; each line of the output is a call and what it answered.
#   random_calls.py DIRECTORY SEED STEPS [mixed]     mixed: the second process and those that it starts do without the library
import errno, fcntl, hashlib, json, mmap, os, random, signal, socket, sys, tempfile, time

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
base, seed, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
mixed, told_at = sys.argv[4:5] == ['mixed'], sys.argv[5:]
chance = random.Random(seed)
all_names = ['d0/a', 'd0/b', 'd0/c', 'd1/a', 'd1/b', 'x', 'y']
dirs = ['d0/m', 'd1/m', 'm', 'd0']
sizes = [0, 1, 7, 100, 4096, 5000, 8192, 20000, 70000]
places = [0, 1, 100, 4096, 8192, 12288, 30000]
most = {'files': 12, 'processes': 5}

def path(name): return os.path.join(base, name)
def summed(data): return [len(data), hashlib.md5(data).hexdigest()[:8]]
def data(of, n): return (bytes((of * 37 + k) & 255 for k in range(61)) * (n // 61 + 1))[:n]
def told(st): return [st.st_mode] + ([st.st_size, st.st_nlink] if st.st_mode & 0o170000 == 0o100000 else [])

def mapped(fd):
    n = os.fstat(fd).st_size
    if n == 0: return 0
    with mmap.mmap(fd, n, mmap.MAP_PRIVATE, mmap.PROT_READ) as m: return summed(m[:])

def send(to, fd, n):
    # Of what is written over while it is read nobody says anything.
    return 'same' if os.path.sameopenfile(to, fd) else os.sendfile(to, fd, None, n)

def whole(name):
    with open(path(name), 'rb') as f: return summed(f.read())

def put(name, of, n):
    with open(path(name), 'wb') as f: return f.write(data(of, n))

def remove_dir(name):
    try: os.rmdir(path(name))
    except OSError as e: raise OSError(errno.ENOTEMPTY if e.errno == errno.EEXIST else e.errno, '')

# Of these the first argument is an open file, and of those below none is.
of_files = {
    'read': lambda fd, n: summed(os.read(fd, n)), 'pread': lambda fd, n, at: summed(os.pread(fd, n, at)),
    'write': lambda fd, of, n: os.write(fd, data(of, n)), 'pwrite': lambda fd, of, n, at: os.pwrite(fd, data(of, n), at),
    'append': lambda fd, of, n: [os.lseek(fd, 0, os.SEEK_END), os.write(fd, data(of, n))],
    'seek': os.lseek, 'ftruncate': os.ftruncate, 'fstat': lambda fd: told(os.fstat(fd)), 'fsync': os.fsync, 'fchmod': os.fchmod,
    'fallocate': os.posix_fallocate, 'map': mapped, 'flags': lambda fd: fcntl.fcntl(fd, fcntl.F_GETFL), 'close': os.close, 'dup': os.dup,
    'sendfile': lambda fd, other, n: send(files[other], fd, n),
    'copy': lambda fd, other, n, at, to: os.copy_file_range(fd, files[other], n, at, to),
}
of_names = {
    'open': lambda name, flags: os.open(path(name), flags, 0o644), 'whole': whole, 'put': put,
    'stat': lambda name: told(os.stat(path(name))), 'truncate': lambda name, n: os.truncate(path(name), n),
    'unlink': lambda name: os.unlink(path(name)), 'rename': lambda name, to: os.rename(path(name), path(to)),
    'link': lambda name, to: os.link(path(name), path(to)), 'mkdir': lambda name: os.mkdir(path(name)), 'rmdir': remove_dir,
    'list': lambda name: sorted(os.listdir(path(name))),
}
# Open files of this process by numbers of our own, as those of the kernel may differ.
files = {}

def made(op, a):
    try:
        if op in of_names: answer = of_names[op](*a)
        else:
            # The kernel reckons from the size that it knows (docs/SEMANTICS.md), and asks for it here.
            if mixed: [os.fstat(files[n]) for n in [a[0]] + a[1:2] * (op == 'copy')]
            answer = of_files[op](files[a[0]], *a[1:])
    except OSError as e: return errno.errorcode[e.errno]
    if op in ('open', 'dup'):
        number = max(files, default=0) + 1
        files[number] = answer
        return number
    if op == 'close': del files[a[0]]
    return answer

def serve(channel):
    for line in channel:
        op, a = json.loads(line)
        if op == 'fork':
            # The child has all files of its parent, and is told what to do at a socket of its own.
            with socket.socket(socket.AF_UNIX) as door:
                door.bind(a[0]); door.listen(1)
                if os.fork() == 0:
                    channel.close(); mine, _ = door.accept(); door.close()
                    return serve(mine.makefile('rwb'))
            answer = 0
        elif op == 'pid': answer = os.getpid()
        elif op == 'end':
            if a[0]: os.kill(os.getpid(), 9)
            os._exit(0)
        else: answer = made(op, a)
        channel.write(json.dumps(answer).encode() + b'\n'); channel.flush()
    os._exit(0)

if told_at: serve(socket.socket(fileno=int(told_at[0])).makefile('rwb'))

class Process:
    def __init__(self, channel, open_files): self.channel, self.files = channel, set(open_files)
    def call(self, op, a):
        self.channel.write(json.dumps([op, a]).encode() + b'\n'); self.channel.flush()
        return json.loads(self.channel.readline())

def is_there(pid):
    try: os.kill(pid, 0)
    except ProcessLookupError: return False
    return True

for name in ['d0', 'd1']: os.makedirs(path(name), exist_ok=True)
processes = []
for n in range(2):
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        for process in processes: process.channel.close()
        ours.close()
        if mixed and n == 1:
            theirs.set_inheritable(True)
            env = {name: value for name, value in os.environ.items() if name != 'LD_PRELOAD'}
            os.execve(sys.executable, [sys.executable, *sys.argv, str(theirs.fileno())], env)
        serve(theirs.makefile('rwb'))
    theirs.close(); processes.append(Process(ours.makefile('rwb'), []))

O = os
opening = [O.O_RDWR] * 2 + [O.O_RDWR | O.O_CREAT] * 3 + [O.O_RDONLY, O.O_WRONLY | O.O_CREAT, O.O_RDWR | O.O_CREAT | O.O_EXCL,
           O.O_RDWR | O.O_TRUNC, O.O_RDWR | O.O_CREAT | O.O_APPEND, O.O_WRONLY | O.O_APPEND]
kinds = ['read', 'pread', 'pwrite', 'seek'] * 3 + ['write', 'append'] * 8 + ['fstat', 'stat', 'unlink', 'whole', 'put'] * 2 + [
    'ftruncate', 'rename', 'link', 'mkdir', 'rmdir', 'list', 'fsync', 'fchmod', 'copy', 'sendfile', 'map', 'flags', 'dup', 'truncate', 'fallocate']
which = 0
for step in range(steps):
    if step % 60 == 0:
        # Few kinds of calls for a while, on few files: leases and what is kept come to be by what is done again and again, and end with most other calls.
        names = chance.sample(all_names, chance.choice([1, 1, 2, 7]))
        does = chance.choice([kinds, chance.sample(kinds, 3), chance.sample(['append', 'write', 'pwrite', 'seek', 'fstat', 'pread'], 2)])
        # How likely it is that the process that made the last call makes the next one, and that it opens or closes a file.
        stays, moves = chance.choice([0.3, 0.9, 1, 1]), chance.choice([0.01, 0.05, 0.2])
    if chance.random() > stays: which = chance.randrange(len(processes))
    process = processes[which]
    some = sorted(process.files) or [0]
    fd, other, name = chance.choice(some), chance.choice(some), chance.choice(names)
    n, at, of, draw = chance.choice(sizes), chance.choice(places), chance.randrange(256), chance.random()
    if len(process.files) < 3 or draw < moves and len(process.files) < most['files']: op = 'open'
    elif draw < 2 * moves: op = 'close'
    else: op = chance.choice(does)
    if op == 'dup' and len(process.files) >= most['files']: op = 'close'
    a = {'open': [name, chance.choice(opening)], 'close': [fd], 'dup': [fd], 'read': [fd, n], 'pread': [fd, n, at], 'write': [fd, of, n],
         'pwrite': [fd, of, n, at], 'append': [fd, of, n], 'seek': [fd, chance.choice([0, 1, 5000]), chance.randrange(3)],
         'ftruncate': [fd, chance.choice([0, 3, 4096, 10000])], 'fstat': [fd], 'fsync': [fd], 'fchmod': [fd, chance.choice([0o600, 0o644])],
         'fallocate': [fd, at, max(n, 1)], 'map': [fd], 'flags': [fd], 'sendfile': [fd, other, n],
         'copy': [fd, other, n, at, chance.choice([0, 4096, 50000])], 'whole': [name], 'put': [name, of, n], 'stat': [name],
         'truncate': [name, chance.choice([0, 10, 5000])], 'unlink': [name], 'rename': [name, chance.choice(names)],
         'link': [name, chance.choice(names)], 'mkdir': [chance.choice(dirs)], 'rmdir': [chance.choice(dirs)], 'list': [chance.choice(['.', 'd0', 'd1'])]}[op]
    answer = process.call(op, a)
    print(step, which, op, a, answer)
    if op in ('open', 'dup') and isinstance(answer, int): process.files.add(answer)
    if op == 'close': process.files.discard(fd)
    if chance.random() < 0.004 and len(processes) < most['processes']:
        door = os.path.join(tempfile.gettempdir(), f'calls.{os.getpid()}.{step}')
        process.call('fork', [door])
        speaks = socket.socket(socket.AF_UNIX); speaks.connect(door); os.unlink(door)
        processes.append(Process(speaks.makefile('rwb'), process.files))
        print(step, which, 'fork')
    elif chance.random() < 0.003 and len(processes) > 2:
        # What it has said to be done is done. Those who came to be of it since have its files, used or not.
        ends = processes.pop(chance.randrange(len(processes)))
        pid = ends.call('pid', [])
        ends.channel.write(json.dumps(['end', [chance.randrange(2)]]).encode() + b'\n'); ends.channel.flush()
        while is_there(pid): time.sleep(0.001)
        print(step, 'one ended')
        which = 0
for name in all_names: print(name, processes[0].call('whole', [name]))
