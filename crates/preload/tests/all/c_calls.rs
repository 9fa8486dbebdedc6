//! Small programs in C, as in `c_programs`: calls with arguments that few programs use, and what libc does by itself.

use crate::c_programs::compiles;
use crate::rig::Rig;

/// Walks of libc that change the current directory: names are those of where it has gone. The arguments: where to stand, and a tree elsewhere.
const WALKS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static void make(const char *name, int size) { int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644); ftruncate(fd, size); close(fd); }
static long size(const char *name) { struct stat st; return stat(name, &st) ? -1 : S_ISDIR(st.st_mode) ? 0 : (long)st.st_size; }
static long sum; static int files;
static int each(const char *path, const struct stat *st, int kind, struct FTW *at) {
    if (kind != FTW_F) { sum += 1000 * (size("x") >= 0); return 0; }
    sum += size(path + at->base); files += remove(path + at->base) == 0; return 0;
}
static int look(const char *path, const struct stat *st, int kind, struct FTW *at) { sum += kind == FTW_F ? size(path) : 0; return 7 * (at->level == 2); }
static void tree(const char *in) {
    char name[300]; const char *all[] = { "x", "y", "d/x", "d/e/x" };
    sprintf(name, "%s/d", in); mkdir(name, 0755); strcat(name, "/e"); mkdir(name, 0755);
    for (int i = 0; i < 4; i++) { sprintf(name, "%s/%s", in, all[i]); make(name, 10 + i); }
}
static void here(const char *what) { char at[4096]; getcwd(at, sizeof at); printf("%s: %s %ld %ld; %ld %d\n", what, at, size("x"), size("own"), sum, files); sum = files = 0; }
int main(int n, char **a) {
    chdir(a[1]); make("x", 100); make("own", 200); here("begins");
    tree(a[2]); int r = nftw(a[2], each, 9, FTW_CHDIR | FTW_PHYS); printf("%d ", r); here("nftw");
    tree(a[2]); r = nftw(a[2], each, 9, FTW_CHDIR | FTW_PHYS | FTW_DEPTH); printf("%d ", r); here("in depth");
    tree(a[2]); r = nftw(a[2], look, 9, FTW_PHYS); printf("%d ", r); here("without");
    r = nftw("/none", each, 9, FTW_CHDIR); printf("%d %d ", r, errno); here("nowhere");
    for (int flags = 0; flags < 2; flags++) {
        char *paths[] = { a[2], NULL }; FTS *f = fts_open(paths, FTS_PHYSICAL | (flags ? FTS_NOCHDIR : 0), NULL); FTSENT *e;
        while (errno = 1, e = fts_read(f)) {
            if (e->fts_info == FTS_F) { sum += size(e->fts_accpath); files += strcmp(e->fts_accpath, e->fts_name) == 0; }
            else if (e->fts_info == FTS_D) for (FTSENT *c = fts_children(f, 0); c; c = c->fts_link) sum += 10000;
        }
        printf("%d ", errno); r = fts_close(f); printf("%d ", r); here("fts");
    }
    return 0;
}
"#;

#[test]
fn walks_that_change_the_directory() {
    let rig = Rig::new();
    if compiles(&rig, "a", WALKS, &[]) {
        rig.same("mkdir tree; timeout 20 ./a $T $PWD/tree; echo $?; rm -r tree; ls $T");
    }
}

/// Vectors that are longer than what is written at a time.
const VECTORS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
enum { PART = 5 << 20, PARTS = 9 };
static char *part; static struct iovec v[PARTS];
static void say(const char *what, int fd, long n) {
    struct stat st; char c[3]; fstat(fd, &st); long at = lseek(fd, 0, SEEK_CUR); pread(fd, c, 1, st.st_size - 1); pread(fd, c + 1, 1, 7L * PART + 100); pread(fd, c + 2, 1, 0);
    printf("%s: %ld, size %ld, at %ld, %c%c%c\n", what, n, (long)st.st_size, at, c[0], c[1], c[2]);
}
int main(int n, char **a) {
    chdir(a[1]);
    for (int i = 0; i < PARTS; i++) { v[i].iov_base = memset(malloc(PART), 'a' + i, PART); v[i].iov_len = PART; }
    int fd = open("f", O_CREAT | O_RDWR, 0644); write(fd, "0123456789", 10);
    say("writev", fd, writev(fd, v, PARTS)); say("pwritev", fd, pwritev(fd, v, PARTS, 3)); say("one", fd, writev(fd, v + 8, 1)); say("none", fd, writev(fd, v, 0));
    say("pwritev2", fd, pwritev2(fd, v, PARTS, -1, 0)); ftruncate(fd, 5); lseek(fd, 0, SEEK_SET); say("appended", fd, pwritev2(fd, v, PARTS, -1, RWF_APPEND)); ftruncate(fd, 5);
    int end = open("f", O_RDWR | O_APPEND); say("at the end", end, writev(end, v, PARTS)); say("readv", fd, readv(fd, v, PARTS));
    unlink("f"); return 0;
}
"#;

#[test]
fn long_vectors() {
    let rig = Rig::new();
    if compiles(&rig, "a", VECTORS, &[]) {
        rig.same("timeout 40 ./a $T; echo $?");
    }
}

/// Descriptors that files of ours cannot have are refused, as where processes may not have them, and nothing is left of the attempt.
#[test]
fn numbers_that_are_too_high() {
    let Some(rig) = Rig::with_python() else { return };
    rig.same_python(
        r#"
import resource
# As in the ordinary directory where the limit is just so high. Who may not have so many is refused in both.
most = 70000 if t.startswith('/freehold') else 65536
try: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
except ValueError: pass
f = os.open(j(t, 'f'), os.O_CREAT | os.O_RDWR); os.write(f, b'text')
def listed(): return [int(n) for n in os.listdir('/proc/self/fd') if int(n) < 600 or int(n) > 60000]
before = listed(); n = 66000
print(tries(lambda: os.dup2(f, n)), tries(lambda: os.dup2(f, n, False)), tries(lambda: fcntl.fcntl(f, fcntl.F_DUPFD, n)) in ('EMFILE', 'EINVAL'), listed() == before)
print(tries(lambda: os.dup2(f, 400)), os.pread(400, 9, 0)); os.close(400); print(listed() == before)
"#,
    );
}

/// Flags that change while other threads use the descriptor, and those that change for many at once.
const FLAGS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int fd; static volatile int stop; static long failed, done;
static void *uses(void *arg) { char c; while (!stop) { done++; failed += pread(fd, &c, 1, 0) != 1 || pwrite(fd, "y", 1, 5) != 1; } return 0; }
int main(int n, char **a) {
    char path[300]; sprintf(path, "%s/f", a[1]); fd = open(path, O_CREAT | O_RDWR, 0644); write(fd, "x", 1);
    pthread_t t[3]; for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, uses, 0);
    for (int i = 0; i < 3000 || done < 300; i++) failed += fcntl(fd, F_SETFL, i & 1 ? 0 : O_APPEND) != 0;
    stop = 1; for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
    printf("%ld %d\n", failed, done >= 300); close(fd);
    for (int i = 0; i < 3; i++) {
        fd = open(path, O_RDONLY); int other = open(path, O_RDONLY); close_range(fd, ~0, CLOSE_RANGE_CLOEXEC); printf("%d %d", fcntl(fd, F_GETFD), fcntl(other, F_GETFD));
        close(fd); close(other); fd = open(path, O_RDONLY); printf(" %d", fcntl(fd, F_GETFD)); close(fd); fd = open(path, O_RDONLY | O_CLOEXEC); printf(" %d\n", fcntl(fd, F_GETFD)); close(fd);
    }
    return 0;
}
"#;

#[test]
fn flags_that_change() {
    let rig = Rig::new();
    if compiles(&rig, "a", FLAGS, &["-pthread"]) {
        rig.same("timeout 40 ./a $T; echo $?");
    }
}

/// Flags that nobody knows, and memory that nobody has.
const WRONG: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>
#include <utime.h>
#define SAY(call) do { errno = 0; long r = (call); printf("%d: %ld %d\n", __LINE__, r, errno); } while (0)
int main(int n, char **a) {
    struct stat st; struct statx sx; struct statfs sf; struct timespec now[2] = { { 0, UTIME_NOW }, { 0, UTIME_NOW } }; void *bad = (void *)-1, *low = (void *)8;
    chdir(a[1]); int fd = open("f", O_CREAT | O_RDWR, 0644), dir = open(".", O_RDONLY);
    SAY(unlinkat(AT_FDCWD, "f", 0x100)); SAY(unlinkat(dir, "f", 0x1000)); SAY(unlinkat(AT_FDCWD, "f", 0x40000000)); SAY(access("f", F_OK));
    SAY(linkat(AT_FDCWD, "f", AT_FDCWD, "g", 0x100)); SAY(linkat(dir, "f", dir, "g", 0x200)); SAY(access("g", F_OK));
    SAY(fstatat(AT_FDCWD, "f", &st, 0x40000000)); SAY(fstatat(dir, "f", &st, 0x200)); SAY(fstatat(dir, "f", &st, AT_NO_AUTOMOUNT)); SAY(fstatat(dir, "none", &st, 0x200));
    SAY(faccessat(AT_FDCWD, "f", F_OK, 0x8000)); SAY(faccessat(dir, "f", R_OK, AT_EACCESS)); SAY(fchownat(AT_FDCWD, "f", -1, -1, 0x200)); SAY(fchownat(dir, "f", -1, -1, 0x8000));
    SAY(fchmodat(AT_FDCWD, "f", 0600, 0x400)); SAY(utimensat(AT_FDCWD, "f", now, 0x200)); SAY(utimensat(dir, "f", NULL, 0x8000)); SAY(utimensat(dir, "f", now, AT_SYMLINK_NOFOLLOW));
    SAY(statx(AT_FDCWD, "f", 0, 0x80000000, &sx)); SAY(statx(dir, "f", 0x6000, STATX_ALL, &sx)); SAY(statx(dir, "f", 0x2000, STATX_ALL, &sx)); SAY(statx(dir, "f", 0x4000, STATX_ALL, &sx)); SAY(statx(dir, "f", 0x40000000, 0, &sx));
    SAY(stat("f", bad)); SAY(stat("f", low)); SAY(fstat(fd, bad)); SAY(fstat(fd, NULL)); SAY(stat("none", bad)); SAY(statx(dir, "f", 0, 0, bad));
    SAY(syscall(SYS_statx, dir, "f", 0, 0, low)); SAY(statfs("f", NULL)); SAY(statfs("f", bad)); SAY(fstatfs(fd, NULL)); SAY(fstatfs(fd, low)); SAY(statfs("f", &sf));
    SAY(readv(fd, bad, 2)); SAY(readv(fd, low, 2)); SAY(readv(fd, NULL, 0)); SAY(writev(fd, bad, 1)); SAY(pwritev(fd, low, 1, 0)); SAY(preadv(fd, bad, 1, 0));
    SAY(utimensat(AT_FDCWD, "f", bad, 0)); SAY(utimensat(AT_FDCWD, "f", low, 0)); SAY(futimens(fd, bad)); SAY(fcntl(fd, F_GETLK, bad)); SAY(fcntl(fd, F_SETLK, NULL));
    SAY(access("f", F_OK)); SAY(unlinkat(dir, "f", 0)); return 0;
}
"#;

#[test]
fn what_the_kernel_refuses() {
    let rig = Rig::new();
    if compiles(&rig, "a", WRONG, &[]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}

/// Streams with all modes, and such as go elsewhere: programs do not look at what freopen(3) gives them.
const STREAMS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
static void put(const char *name, const char *text) { int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644); write(fd, text, strlen(text)); close(fd); }
static void say(const char *name) { char t[99] = ""; int fd = open(name, O_RDONLY); int n = read(fd, t, 98); close(fd); dprintf(2, "%s has %d: %s|\n", name, n, t); }
static void use(const char *what, FILE *f) {
    char t[20] = ""; errno = 0; int wrote = fputs("NEW", f); int flushed = fflush(f); dprintf(2, "%s: %d at %ld", what, wrote >= 0 && flushed == 0, ftell(f)); clearerr(f);
    rewind(f); size_t n = fread(t, 1, 9, f); dprintf(2, ", read %d %s, %d %d, %d\n", (int)n, t, !!ferror(f), !!feof(f), fileno(f)); clearerr(f);
}
int main(int n, char **a) {
    const char *modes[] = { "r", "w", "a", "r+", "w+", "a+", "rb+", "rt+", "wt+", "re+", "ae+", "rbe+", "r+e", "wb", "ab+", "rm+", "r,ccs+", "abcdef+" }, *news[] = { "wx+", "wxe+", "wx" };
    chdir(a[1]);
    for (int i = 0; i < 18; i++) { put("f", "content"); FILE *f = fopen("f", modes[i]); dprintf(2, "%d ", fcntl(fileno(f), F_GETFD)); use(modes[i], f); fclose(f); say("f"); }
    for (int i = 0; i < 3; i++) { unlink("f"); FILE *f = fopen("f", news[i]); use(news[i], f); fclose(f); say("f"); dprintf(2, "%d %d\n", fopen("f", news[i]) != 0, errno); }
    for (int i = 3; i < 8; i++) { put("f", "content"); FILE *f = fdopen(open("f", O_RDWR), modes[i]); use(modes[i], f); fclose(f); say("f"); }
    for (int i = 0; i < 12; i++) {
        put("f", "first file of them"); put("g", "second"); char c[9] = ""; FILE *f = fopen("f", i & 1 ? "r+" : "w"); int fd = fileno(f); if (i & 1) fread(c, 1, 5, f); fputs("to the first", f);
        FILE *same = freopen("g", modes[i], f); dprintf(2, "%d %d %d ", same == f, fileno(f) == fd, fcntl(fd, F_GETFD)); use(modes[i], f);
        freopen("/dev/null", "w", f); use("null", f); freopen("f", "r", f); use("again", f); fclose(f); say("f"); say("g");
        int next = open("f", O_RDONLY); dprintf(2, "%d\n", next); close(next);
    }
    put("f", ""); FILE *f = fopen("f", "w"); fputs("kept", f); f = (freopen("none/g", "w", f), f); dprintf(2, "%d %d\n", errno, fopen("none/g", "w") != 0); say("f"); int next = open("f", O_RDONLY); dprintf(2, "%d\n", next); close(next);
    f = fopen("/dev/null", "w"); f = freopen("g", "w+", f); use("of libc", f); fclose(f); say("g"); next = open("f", O_RDONLY); dprintf(2, "%d\n", next); close(next);
    /* The standard ones. */
    freopen("out", "w", stdout); printf("to out\n"); freopen("out2", "a", stdout); printf("to out2\n"); freopen("/dev/null", "w", stdout); printf("to none\n"); freopen("out", "a", stdout); printf("to out again\n"); fflush(stdout);
    dprintf(2, "%d\n", fileno(stdout)); say("out"); say("out2"); freopen("out", "r", stdin); char t[99] = ""; fgets(t, 99, stdin); dprintf(2, "%d %s", fileno(stdin), t); freopen("out2", "r", stdin); fgets(t, 99, stdin); dprintf(2, "%s", t);
    freopen("none/x", "w", stdout); dprintf(2, "%d %d\n", errno, fcntl(1, F_GETFD)); return 0;
}
"#;

#[test]
fn streams() {
    let rig = Rig::new();
    if compiles(&rig, "a", STREAMS, &[]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}

/// A vector whose buffers are longer than there is memory for copies of them.
const LONG: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>
int main(int n, char **a) {
    size_t len = 70 << 20; char c[5] = ""; long pages; chdir(a[1]); int fd = open("f", O_CREAT | O_RDWR, 0644); char *long_one = malloc(len); memset(long_one, 'l', len);
    struct iovec v[] = { { "ab", 2 }, { long_one, len }, { "cd", 2 } }; pwrite(fd, long_one, 20 << 20, 0); ftruncate(fd, 0);
    FILE *f = fopen("/proc/self/statm", "r"); fscanf(f, "%ld", &pages); struct rlimit most = { pages * 4096 + (24 << 20), RLIM_INFINITY }; setrlimit(RLIMIT_AS, &most);
    printf("%zd ", writev(fd, v, 3)); printf("%zd ", pwritev(fd, v, 3, 1)); pread(fd, c, 2, 1); pread(fd, c + 2, 2, len + 3); printf("%s %ld\n", c, (long)lseek(fd, 0, SEEK_END)); return 0;
}
"#;

#[test]
fn long_buffers_are_not_copied() {
    let rig = Rig::new();
    if compiles(&rig, "a", LONG, &["-w"]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}
