//! Small programs in C, as in `c_programs`: descriptors that run out, are closed past our sight, or are another process's too.

use crate::c_programs::compiles;
use crate::rig::Rig;

/// Who can have no descriptor makes and cuts nothing.
const FULL: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#define SAY(call) do { errno = 0; long r = (long)(call); printf("%d: %d %d\n", __LINE__, r == -1 || r == 0, errno); } while (0)
static void look(void) { struct stat st; stat("f", &st); printf("%d", (int)st.st_size); for (int i = 0; i < 7; i++) { char name[9]; sprintf(name, "new%d", i); printf(" %d", access(name, F_OK)); } printf("\n"); }
int main(int n, char **a) {
    struct rlimit most = { 40, 40 }; char one[] = "newXXXXXX", two[] = "newXXXXXX"; chdir(a[1]);
    int fd = open("f", O_CREAT | O_RDWR, 0644), dir = open(".", O_RDONLY), copies = 0; write(fd, "content", 7); symlink("f", "link"); symlink("new5", "to new"); close(open("f", O_RDWR));
    setrlimit(RLIMIT_NOFILE, &most); while (dup(0) >= 0) copies++;
    SAY(open("f", O_WRONLY | O_TRUNC)); SAY(open("link", O_WRONLY | O_TRUNC)); SAY(open("f", O_CREAT | O_TRUNC | O_RDWR, 0600)); SAY(creat("f", 0600)); SAY(openat(dir, "f", O_WRONLY | O_TRUNC)); SAY(fopen("f", "w")); SAY(open("/dev/fd/3", O_WRONLY | O_TRUNC)); look();
    SAY(open("new0", O_CREAT | O_EXCL | O_RDWR, 0600)); SAY(open("new1", O_CREAT | O_WRONLY, 0600)); SAY(openat(dir, "new2", O_CREAT, 0600)); SAY(creat("new3", 0600)); SAY(fopen("new4", "a")); SAY(open("to new", O_CREAT | O_RDWR, 0600)); SAY(fopen("new6", "wx")); SAY(mkostemp(one, O_CLOEXEC)); SAY(mkstemp(two)); look();
    close(39); SAY(open("none/x", O_CREAT | O_RDWR, 0600)); SAY(open("f", O_CREAT | O_EXCL | O_RDWR, 0600)); int last = open("new0", O_CREAT | O_EXCL | O_RDWR, 0600); printf("%d\n", last); close(last); last = open("f", O_WRONLY | O_TRUNC); printf("%d\n", last); look();
    close(5); close(7); close(8); open("f", O_CREAT | O_EXCL | O_RDWR, 0600); printf("%d", open("f", O_CREAT | O_RDWR, 0600)); printf(" %d\n", open("new1", O_CREAT | O_RDWR, 0600)); return 0;
}
"#;

#[test]
fn descriptors_run_out() {
    let rig = Rig::new();
    if compiles(&rig, "a", FULL, &[]) {
        rig.same("timeout 20 ./a $T; echo $?; ls $T");
    }
}

/// Locks of an open file go with its last descriptor.
const OWNERS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static int lock(int fd, int type) { struct flock l = { .l_type = type }; errno = 0; return fcntl(fd, F_OFD_SETLK, &l) ? errno : 0; }
static void others(void) {
    fflush(stdout); if (fork() == 0) { int fd = open("f", O_RDWR); printf("%d ", lock(fd, F_WRLCK)); fflush(stdout); close(fd); _exit(0); }
    wait(NULL);
}
int main(int n, char **a) {
    chdir(a[1]); int b = open("f", O_CREAT | O_RDWR, 0644), one = open("f", O_RDWR);
    printf("%d ", lock(one, F_WRLCK)); others(); printf("%d ", lock(b, F_RDLCK)); close(one); others(); printf("%d ", lock(b, F_WRLCK)); printf("%d\n", lock(b, F_UNLCK));
    one = open("f", O_RDWR); int two = dup(one); printf("%d ", lock(one, F_WRLCK)); close(one); printf("%d ", lock(b, F_WRLCK)); dup2(0, two); printf("%d ", lock(b, F_WRLCK)); printf("%d ", lock(b, F_UNLCK)); others();
    one = open("f", O_RDWR); close(one); one = open("f", O_RDWR); printf("%d ", lock(one, F_RDLCK)); close(b); others(); close_range(one, one, 0); others(); printf("\n"); return 0;
}
"#;

/// Children that have a copy of the memory, and were made by no function that runs handlers: they and their parents use the files at the same time.
const COPIES: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
enum { SIZE = 3000 };
static int files[2], how;
static int uses(void *who) {
    long me = (long)who, wrong = 0; char mine[SIZE], got[SIZE]; memset(mine, 'a' + me + 2 * how, SIZE);
    for (int i = 0; i < 3000; i++) {
        int fd = files[i & 1]; long at = (me * 50 + i % 50) * SIZE;
        wrong += pwrite(fd, mine, SIZE, at) != SIZE; memset(got, 0, SIZE); wrong += pread(fd, got, SIZE, at) != SIZE || memcmp(mine, got, SIZE);
        if (i % 100 == 0) { int other = open(i & 1 ? "g" : "f", O_RDWR); wrong += other < 0 || pread(other, got, SIZE, at) != SIZE; close(other); }
    }
    return wrong > 100 ? 100 : wrong;
}
static int asks(void *none) { return access("/", F_OK); }
int main(int n, char **a) {
    char *stack = malloc(1 << 20); int status; chdir(a[1]); files[0] = open("f", O_CREAT | O_RDWR, 0644); files[1] = open("g", O_CREAT | O_RDWR, 0644); ftruncate(files[0], 100 * SIZE); ftruncate(files[1], 100 * SIZE);
    for (how = 0; how < 4; how++) {
        struct { unsigned long flags, rest[10]; } more = { 0 }; more.rest[3] = SIGCHLD; long child = -1;
        switch (how) {
            case 0: child = syscall(SYS_fork); break; case 1: child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); break;
            case 2: child = syscall(SYS_clone3, &more, 64); break; case 3: child = clone(uses, stack + (1 << 20), SIGCHLD, (void *)1); break;
        }
        if (child == 0) _exit(uses((void *)1));
        int wrong = uses((void *)0); status = -1; waitpid(child, &status, 0); printf("%d: %d %d %d\n", how, child > 0, wrong, status);
    }
    /* One that closes nothing of its parent's with what it closes of its own. */
    int child = clone(asks, stack + (1 << 20), SIGCHLD | CLONE_FILES, NULL); waitpid(child, &status, 0); printf("%d %d\n", status, uses((void *)0));
    return 0;
}
"#;

/// What a child has from its parent it can use as another user, who could not open it; users that do not exist, where this one may become them.
const USERS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int n, char **a) {
    chdir(a[1]); int fd = open("log", O_CREAT | O_WRONLY | O_APPEND, 0644), secret = open("secret", O_CREAT | O_RDWR, 0600), status; char got[9] = ""; pwrite(secret, "secret", 6, 0); setlinebuf(stdout);
    for (int how = 0; how < 4; how++) {
        if (fork() == 0) {
            switch (how) { case 0: setgroups(0, NULL); setgid(64321); setuid(64321); break; case 1: setresuid(64321, 64321, 64321); break; case 2: seteuid(64321); break; case 3: setegid(64321); setreuid(64321, 64321); }
            errno = 0; int wrote = write(fd, "line\n", 5), e = errno; printf("%d: %d %d", how, wrote, e); printf(" %d", (int)pread(secret, got, 6, 0)); printf(" %s %ld\n", got, (long)lseek(fd, 0, SEEK_CUR)); _exit(how);
        }
        wait(&status); printf("%d\n", status);
    }
    return 0;
}
"#;

#[test]
fn descriptors_of_several() {
    let rig = Rig::new();
    if compiles(&rig, "a", OWNERS, &[]) && compiles(&rig, "b", COPIES, &[]) && compiles(&rig, "c", USERS, &[])
    {
        rig.same(
            "timeout 20 ./a $T; echo $?; timeout 40 ./b $T; echo $?; timeout 20 ./c $T; echo $?; cat $T/log",
        );
    }
}

/// What libc closes, opens anew and sorts, and arguments that libc and the kernel have their own answers for.
const LIBCS: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#define SAY(call) do { errno = 0; long r = (long)(call); dprintf(2, "%d: %ld %d\n", __LINE__, r, errno); } while (0)
static int unequal(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name) > 0; }
static unsigned drawn = 1;
static int any(const struct dirent **a, const struct dirent **b) { drawn = drawn * 1103515245 + 12345; return (int)(drawn >> 16) % 3 - 1; }
static void parked(void) { for (int i = 0; i < 3; i++) close(open("f", O_RDONLY)); }
int main(int n, char **a) {
    char line[99] = "", name[99]; struct dirent **list; chdir(a[1]);
    /* The same file with another mode. */
    for (int i = 0; i < 2; i++) { FILE *s = freopen(NULL, "rb", stdin); if (s) stdin = s; dprintf(2, "%d %d %s", s != NULL, fileno(stdin), fgets(line, 99, stdin)); }
    FILE *f = fopen("f", "w+"), *same; fputs("first ", f); same = freopen(NULL, "a", f); dprintf(2, "%d ", same == f); if (same) { fputs("second", f); dprintf(2, "%d ", fflush(f)); }
    same = freopen(NULL, "r", f); dprintf(2, "%d ", same == f); dprintf(2, "%s\n", same ? fgets(line, 99, f) : ""); same = freopen(NULL, "w", f); fseek(f, 0, SEEK_END); dprintf(2, "%d %ld\n", same == f, ftell(f)); fclose(f);
    /* What was closed gives the lowest number again. */
    parked(); int at = open("f", O_RDONLY); parked(); fclose(stdin); dprintf(2, "%d", open("f", O_RDONLY)); parked(); fclose(stdout); dprintf(2, " %d\n", open("f", O_RDONLY)); close(at);
    DIR *d = opendir("/"); int fd = open("f", O_RDONLY); parked(); closedir(d); dprintf(2, "%d", open("f", O_RDONLY)); close(3); close(fd);
    FILE *p = popen("true", "r"); fd = open("f", O_RDONLY); parked(); pclose(p); dprintf(2, " %d", open("f", O_RDONLY)); close(3); close(fd);
    at = open("/dev/null", O_RDONLY); fd = open("f", O_RDONLY); parked(); syscall(SYS_close, at); dprintf(2, " %d", open("f", O_RDONLY)); close(3); close(fd);
    f = fopen("/dev/null", "r"); FILE *ours = fopen("f", "r"); parked(); fclose(f); dprintf(2, " %d", open("f", O_RDONLY)); fclose(ours); dprintf(2, " %d\n", open("f", O_RDONLY));
    /* An order that is none. */
    mkdir("many", 0755); for (int i = 0; i < 200; i++) { sprintf(name, "many/%d", i * 7919 % 1000); close(open(name, O_CREAT | O_RDWR, 0644)); }
    SAY(scandir("many", &list, NULL, unequal)); for (int i = 0; i < 20; i++) SAY(scandir("many", &list, NULL, any)); SAY(scandir("many", &list, NULL, alphasort)); dprintf(2, "%s %s\n", list[2]->d_name, list[201]->d_name);
    /* Wrong arguments. */
    fd = open("f", O_RDWR); write(fd, "text", 4); SAY(lseek(fd, INT64_MAX, SEEK_CUR)); SAY(lseek(fd, INT64_MAX, SEEK_END)); SAY(lseek(fd, INT64_MIN, SEEK_CUR)); SAY(lseek(fd, 0, SEEK_CUR));
    SAY(read(fd, line, SIZE_MAX)); SAY(pread(fd, line, (size_t)SSIZE_MAX + 1, 0)); SAY(write(fd, line, SIZE_MAX)); SAY(pwrite(fd, line, (size_t)SSIZE_MAX + 1, 0)); SAY(lseek(fd, 0, SEEK_END)); return 0;
}
"#;

/// Paths that are none: glibc does not ask the kernel.
const NONE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#define SAY(call) do { errno = 0; int none = (call) == NULL; printf("%d %d\n", none, errno == EINVAL); } while (0)
int main(int n, char **a) { char to[PATH_MAX]; SAY(realpath(NULL, NULL)); SAY(realpath(NULL, to)); SAY(canonicalize_file_name(NULL)); return 0; }
"#;

/// Handlers that flush a stream on top of a write to it are refused, and the program ends. libc's own locks of streams, for which a handler waits where it comes between two instructions
/// of theirs, are not used.
const ENDS: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
static char piece[1 << 16], buffer[1 << 20];
static void ends(int s) { printf("ends\n"); fflush(stdout); exit(3); }
int main(int n, char **a) {
    struct itimerval soon = { { 0, 0 }, { 0, 10000 + atoi(a[1]) * 700 } }; setvbuf(stdout, buffer, _IOFBF, sizeof buffer); __fsetlocking(stdout, FSETLOCKING_BYCALLER); memset(piece, 'x', sizeof piece);
    signal(SIGALRM, ends); setitimer(ITIMER_REAL, &soon, NULL);
    for (;;) { fwrite(piece, 1, sizeof piece, stdout); if (ftell(stdout) > 8 << 20) rewind(stdout); }
}
"#;

#[test]
fn what_libc_does_by_itself() {
    let rig = Rig::new();
    if compiles(&rig, "a", LIBCS, &[]) && compiles(&rig, "b", NONE, &[]) {
        rig.same("printf 'one\\ntwo\\n' > $T/in; timeout 20 ./a $T 2>&1 < $T/in; echo $?");
        let none = rig.bash("./b", rig.work.path());
        assert_eq!(String::from_utf8_lossy(&none.stdout), "1 1\n1 1\n1 1\n");
    }
}

#[test]
fn handlers_that_end_the_program() {
    let rig = Rig::new();
    if compiles(&rig, "a", ENDS, &[]) {
        rig.same("for i in $(seq 20); do timeout 5 ./a $i > $T/out; echo $?; done");
    }
}

/// The limit of how long files may be, for requests of libaio.
const LIMITED: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>
static volatile int come;
static void comes(int s) { come++; }
int main(int n, char **a) {
    struct rlimit most = { 300000, RLIM_INFINITY }; io_context_t context = 0; struct iocb cb, *list = &cb; struct io_event event; static char page[5000]; chdir(a[1]);
    int fd = open("f", O_CREAT | O_RDWR | O_TRUNC, 0644), end = open("f", O_WRONLY | O_APPEND); struct iovec v[2] = { { page, 40 }, { page, 50 } }; setrlimit(RLIMIT_FSIZE, &most); signal(SIGXFSZ, comes); io_setup(9, &context);
    for (int i = 0; i < 6; i++) {
        switch (i) {
            case 0: io_prep_pwrite(&cb, fd, page, 5000, 290000); break; case 1: io_prep_pwrite(&cb, fd, page, 5000, 299000); break; case 2: io_prep_pwrite(&cb, fd, page, 5000, 300000); break;
            case 3: io_prep_pwritev(&cb, fd, v, 2, 299940); break; case 4: io_prep_pwrite(&cb, end, page, 9, 0); break; case 5: io_prep_pread(&cb, fd, page, 5000, 299000); break;
        }
        int r = io_submit(context, 1, &list); r += 10 * io_getevents(context, 1, 1, &event, NULL); printf("%d: %d %ld %d %ld\n", i, r, (long)event.res, come, (long)lseek(fd, 0, SEEK_END));
    }
    return 0;
}
"#;

#[test]
fn limits_of_asynchronous_requests() {
    let rig = Rig::new();
    if compiles(&rig, "a", LIMITED, &["-laio"]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}

/// Locks of whole files that end with the only descriptor: more than anybody remembers.
const LOCKED: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>
int main(int n, char **a) {
    char path[300]; int failed = 0, last = 0;
    for (int i = 0; i < 40000; i++) {
        sprintf(path, "%s/f%d", a[1], i % 3); int fd = open(path, O_CREAT | O_RDWR, 0644);
        if (flock(fd, i % 2 ? LOCK_EX | LOCK_NB : LOCK_SH | LOCK_NB)) { failed++; last = errno; }
        if (i % 5 == 0) flock(fd, LOCK_UN);
        if (i % 7 == 0) fcntl(fd, F_SETFL, O_APPEND);
        close(fd);
    }
    printf("%d %d\n", failed, last); return 0;
}
"#;

#[test]
fn locks_are_taken_again_and_again() {
    let rig = Rig::new();
    if compiles(&rig, "a", LOCKED, &["-w"]) {
        rig.same("timeout 60 ./a $T; echo $?");
    }
}
