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
