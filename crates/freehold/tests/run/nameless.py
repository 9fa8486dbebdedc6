# Shared writable mappings of files whose names lead elsewhere, or that never had one.
import mmap, os, sys, time
top = sys.argv[1]

def file(name, flags=0):
    return os.open(top + '/' + name, os.O_RDWR | os.O_CREAT | flags, 0o600)

def try_it(what, fd):
    os.write(fd, b'a' * 20000)
    m = mmap.mmap(fd, 20000, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    assert m[:3] == b'aaa', m[:3]
    m[5000:5006] = b'mapped'
    m.flush()
    assert os.pread(fd, 6, 5000) == b'mapped'
    os.pwrite(fd, b'written', 12000)
    assert m[12000:12007] == b'written'
    # A child shares it, as a pool of processes does.
    child = os.fork()
    if child == 0:
        m[100:105] = b'child'
        os._exit(0)
    os.waitpid(child, 0)
    assert m[100:105] == b'child'
    # Made longer, it can be used there.
    os.ftruncate(fd, 50000)
    again = mmap.mmap(fd, 50000, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    again[49990:49995] = b'later'
    assert again[100:105] == b'child'
    again.flush()
    st = os.fstat(fd)
    print(what, os.pread(fd, 5, 49990), st.st_size, st.st_nlink)
    again.close()
    os.close(fd)
    # The mapping keeps the file.
    assert m[100:105] == b'child' and m[12000:12007] == b'written'
    m[0:4] = b'last'
    m.close()

fd = file('renamed')
os.rename(top + '/renamed', top + '/new')
try_it('renamed', fd)
fd = file('replaced')
os.rename(top + '/replaced', top + '/kept')
os.close(file('replaced'))
try_it('replaced', fd)
os.mkdir(top + '/d')
fd = file('d/below')
os.rename(top + '/d', top + '/e')
try_it('moved', fd)
fd = file('unlinked')
os.unlink(top + '/unlinked')
try_it('unlinked', fd)
try_it('tmpfile', os.open(top, os.O_RDWR | os.O_TMPFILE, 0o600))
fd = file('link')
os.link(top + '/link', top + '/hard')
os.unlink(top + '/link')
try_it('linked', fd)

def is_given_back():
    # More than the volume has, if what was removed were kept.
    for i in range(12):
        fd = file('large')
        os.unlink(top + '/large')
        os.write(fd, b'x' * (16 << 20))
        m = mmap.mmap(fd, 16 << 20, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        m[0:1] = b'y'
        m.close()
        os.close(fd)

is_given_back()
print(sorted(os.listdir(top)), sorted(os.listdir(top + '/e')))
