//! Where a process stands, when what leads there is removed or renamed.

use crate::rig::Rig;

/// The kernel has no path for a directory that was removed: relative paths lead nowhere, least of all to a volume.
#[test]
fn directories_that_are_gone() {
    let Some(rig) = Rig::with_python() else { return };
    rig.same_python(
        r#"
open(j(t, 'f'), 'w').write('text'); os.mkdir('gone'); gone = os.open('gone', os.O_PATH); os.chdir('gone'); os.rmdir('../gone')
for go in [lambda: 0, lambda: os.chdir('.'), lambda: os.fchdir(gone)]:
    go()
    for p in [t[1:] + '/f', './' + t[1:] + '/f', 'x/../' + t[1:] + '/f']:
        print(tries(lambda: os.stat(p).st_size), tries(lambda: open(p).read()), tries(lambda: os.mkdir(p + '2')), tries(lambda: os.unlink(p)))
    print(tries(lambda: os.getcwd()), os.listdir(t))
"#,
    );
}

/// Paths from a directory that was renamed are those of now, whatever was known of its path.
#[test]
fn real_paths_from_directories_that_move() {
    let Some(rig) = Rig::with_python() else { return };
    rig.same_python(
        r#"
libc.realpath.restype = ctypes.c_void_p
def real(path):
    to = ctypes.create_string_buffer(4096)
    return to.value.decode()[len(t):] if libc.realpath(path.encode(), to) else errno.errorcode[ctypes.get_errno()]
def say(): print([real(p) for p in ['.', 'f', 'sub', 'sub/..', 'sub/../f', './/.', 'none', j(t, 'e1'), j(t, 'e2')]])
os.makedirs(j(t, 'e1/sub')); os.chdir(j(t, 'e1')); open('f', 'w').write('f'); say()
os.rename('../e1', '../e2'); say(); os.rename('../e2', '../e3'); os.makedirs('../e2/sub'); say(); os.rename('sub', '../moved'); os.chdir('../moved'); os.rename('../moved', '../e1'); say(); print(os.getcwd()[len(t):])
"#,
    );
}
