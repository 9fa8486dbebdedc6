//! More small programs in C, as in `c_programs`: what children, threads and signals do in the middle of a call.

use crate::c_programs::compiles;
use crate::rig::Rig;

/// What a child of vfork opens, copies and closes is its own and that of the program that it becomes.
const CHILDREN: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static void say(const char *name) { char text[99] = ""; int fd = open(name, O_RDONLY), n = read(fd, text, 98); printf("%d %d %s\n", fd, n, text); close(fd); fflush(stdout); }
static void pipes(void) {
    int p[2]; struct stat st; char got[9] = ""; pipe(p); fstat(p[1], &st);
    printf("%d %d %d %d", p[0], p[1], S_ISFIFO(st.st_mode), (int)write(p[1], "piped", 5)); printf(" %d %s\n", (int)read(p[0], got, 9), got); close(p[0]); close(p[1]); fflush(stdout);
}
int main(int n, char **a) {
    chdir(a[1]); int fd = open("in", O_CREAT | O_RDWR, 0644), status; write(fd, "content", 7); close(fd);
    for (int i = 0; i < 4; i++) {
        pid_t child = vfork();
        if (child == 0) {
            int from = open("in", O_RDONLY), to = open("out", O_CREAT | O_WRONLY | O_TRUNC, 0600), copy = dup(to);
            if (write(copy, "child ", 6) != 6 || lseek(to, 0, SEEK_CUR) != 6) _exit(7);
            if (i & 1) { close(from); if (fcntl(from, F_GETFD) != -1 || read(from, 0, 0) != -1) _exit(8); from = open("in", O_RDONLY); }
            if (i & 2) { close_range(copy, ~0, 0); if (write(copy, "no", 2) != -1 || errno != EBADF) _exit(9); }
            dup2(from, 0); dup2(to, 1); execlp("cat", "cat", NULL); _exit(10);
        }
        waitpid(child, &status, 0); printf("ended %d\n", status); fflush(stdout);
        pipes(); say("in"); say("out");
        int kernel = open("/dev/null", O_RDWR); printf("%d %d\n", kernel, (int)write(kernel, "null", 4)); close(kernel); say("out"); fflush(stdout);
    }
    return 0;
}
"#;

#[test]
fn children_of_vfork() {
    let rig = Rig::new();
    if compiles(&rig, "a", CHILDREN, &[]) {
        rig.same("timeout 30 ./a $T; echo $?");
    }
}

/// A program that begins, or goes on, where another one was killed or replaced in the middle of a write. The argument behind the directory counts the turns.
const HOLDERS: &str = r#"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static char text[300000];
static void *writes(void *fd) { for (;;) { lseek((long)fd, 0, SEEK_SET); write((long)fd, text, sizeof text); } }
int main(int n, char **a) {
    pthread_t threads[2]; char path[300], turn[20], number[20]; int turns = atoi(a[2]); long fd; setlinebuf(stdout);
    if (turns == 0) { sprintf(path, "%s/f", a[1]); fd = open(path, O_CREAT | O_RDWR, 0644); } else fd = atoi(a[3]);
    printf("%d %d\n", turns, write(fd, "text", 4) == 4);
    pid_t child = fork(); if (child == 0) writes((void *)fd);
    usleep(20000); kill(child, SIGKILL); siginfo_t info; waitid(P_PID, child, &info, WEXITED | WNOWAIT);
    printf("%d\n", write(fd, "text", 4) == 4); waitpid(child, NULL, 0);
    if (turns == 6) return 0;
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, writes, (void *)fd);
    usleep(20000); sprintf(turn, "%d", turns + 1); sprintf(number, "%ld", fd); execl(a[0], a[0], a[1], turn, number, NULL); return 9;
}
"#;

#[test]
fn offsets_outlive_who_moves_them() {
    let rig = Rig::new();
    if compiles(&rig, "a", HOLDERS, &["-pthread"]) {
        rig.same("timeout 20 ./a $T 0; echo $?");
    }
}

/// Where processes may have few descriptors, those of the library are out of the way all the same.
#[test]
fn few_descriptors() {
    let rig = Rig::new();
    for most in [700, 512, 200, 64, 40] {
        let closes: String = (3..12).map(|fd| format!("exec {fd}>&-; ")).collect();
        rig.same(&format!(
            "ulimit -n {most}; echo text > $T/f; read a < $T/f; exec 5>$T/g 6>out; echo five >&5; echo six >&6; {closes} read b < $T/g; read c < out; echo $a $b $c; \
             cd $T; (cat f g; echo more >> f; cat f); exec 4<f 5<g; read a <&4; read b <&5; echo $a $b"
        ));
    }
}

/// An allocator that asks for memory with its lock held.
const MAPPER: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *made(size_t a, size_t n) {
    pthread_mutex_lock(&lock);
    size_t whole = n + a + 64; char *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_mutex_unlock(&lock);
    if (p == MAP_FAILED) return NULL;
    char *at = (char *)(((size_t)p + 64 + a - 1) & ~(a - 1)); size_t *head = (size_t *)at - 4; head[0] = (size_t)p; head[1] = whole; head[2] = n;
    return at;
}
void *malloc(size_t n) { return made(16, n); }
void free(void *at) { if (!at) return; size_t *head = (size_t *)at - 4; pthread_mutex_lock(&lock); munmap((void *)head[0], head[1]); pthread_mutex_unlock(&lock); }
void *calloc(size_t a, size_t b) { return malloc(a * b); }
void *realloc(void *old, size_t n) {
    char *p = malloc(n);
    if (old && p) { size_t had = ((size_t *)old)[-2]; memcpy(p, old, had < n ? had : n); free(old); }
    return p;
}
void *memalign(size_t a, size_t n) { return made(a < 16 ? 16 : a, n); }
void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }
int posix_memalign(void **to, size_t a, size_t n) { return (*to = memalign(a, n)) ? 0 : 12; }
"#;

/// Closes files, which stay behind for the next ones, and then has memory made, and calls that go to libc; with an argument more a signal handler uses files all the time.
const PARKS: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
static const char *path; static volatile int come;
static void uses(int s) { for (int i = 0; i < 3; i++) { int fd = open(path, O_RDONLY); if (fd >= 0) close(fd); } fcntl(0, F_GETFD); come++; }
int main(int n, char **a) {
    char text[99], f[300]; int fds[8], wrong = 0; sprintf(f, "%s/f", a[1]); path = f; close(open(f, O_CREAT | O_RDWR, 0644));
    if (n > 2) { struct itimerval often = { { 0, 70 }, { 0, 70 } }; signal(SIGALRM, uses); setitimer(ITIMER_REAL, &often, NULL); }
    for (int i = 0; i < (n > 2 ? 20000 : 300); i++) {
        for (int k = 0; k < 8; k++) wrong += (fds[k] = open(f, O_RDONLY)) < 0;
        for (int k = 0; k < 8; k++) wrong += close(fds[k]) != 0;
        if (n > 2) { fcntl(0, F_GETFD); continue; }
        void *p = malloc(1000 + i * 1000); memset(p, 1, 999); free(p);
    }
    struct itimerval none = { 0 }; setitimer(ITIMER_REAL, &none, NULL);
    printf("%d %d\n", wrong, come > 99); return 0;
}
"#;

#[test]
fn parked_descriptors_are_in_nobodys_way() {
    let rig = Rig::new();
    if compiles(&rig, "maps.so", MAPPER, &["-shared", "-fPIC"]) && compiles(&rig, "a", PARKS, &[]) {
        rig.same("LD_PRELOAD=$LD_PRELOAD:$PWD/maps.so timeout 20 ./a $T; echo $?");
        rig.same("timeout 20 ./a $T signals; echo $?");
    }
}

/// Handlers of SIGXFSZ that never return: what the call held is free.
const JUMPS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>
static sigjmp_buf back; static volatile int come;
static void jumps(int s) { come++; siglongjmp(back, 1); }
int main(int n, char **a) {
    struct rlimit most = { 300000, RLIM_INFINITY }; chdir(a[1]); setlinebuf(stdout);
    int fd = open("f", O_CREAT | O_RDWR, 0644); setrlimit(RLIMIT_FSIZE, &most); signal(SIGXFSZ, jumps);
    for (int i = 0; i < 6; i++) {
        struct iovec v = { "text", 4 }; lseek(fd, 300000, SEEK_SET); come = 0;
        if (sigsetjmp(back, 1) == 0) {
            switch (i) { case 0: write(fd, "text", 4); break; case 1: pwrite(fd, "text", 4, 400000); break; case 2: ftruncate(fd, 400000); break; case 3: writev(fd, &v, 1); break; case 4: truncate("f", 400000); break; case 5: fallocate(fd, 0, 299999, 99); }
            printf("went on\n");
        }
        lseek(fd, 299998, SEEK_SET); printf("%d: %d %d", i, come, (int)write(fd, "text", 4)); int other = open("f", O_RDONLY); printf(" %d %ld\n", other, (long)lseek(fd, 0, SEEK_CUR)); close(other); ftruncate(fd, 5);
    }
    signal(SIGXFSZ, SIG_IGN); lseek(fd, 300000, SEEK_SET); errno = 0; int r = write(fd, "text", 4); printf("%d %d\n", r, errno); return 0;
}
"#;

#[test]
fn handlers_that_jump() {
    let rig = Rig::new();
    if compiles(&rig, "a", JUMPS, &[]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}

/// Processes that leave their standard streams and their directory, which are in the volume.
const DAEMONS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>
static const char *type(int fd) { struct stat st; return fstat(fd, &st) ? "none" : S_ISCHR(st.st_mode) ? isatty(fd) ? "terminal" : "null" : S_ISREG(st.st_mode) ? "file" : "other"; }
int main(int n, char **a) {
    char at[4096], path[4200], text[99] = ""; int how = atoi(a[2]), status, master; chdir(a[1]);
    sprintf(path, "%s/log%d", a[1], how); int log = open(path, O_CREAT | O_WRONLY | O_APPEND, 0644), out = open("out", O_CREAT | O_WRONLY | O_TRUNC, 0644);
    for (int i = 0; i < 3; i++) dup2(out, i);
    close(out);
    if (how < 4) { int r = daemon(how & 1, how & 2); dprintf(log, "%d ", r); }
    else {
        pid_t child = forkpty(&master, NULL, NULL, NULL);
        if (child) { waitpid(child, &status, 0); int got = read(master, text, 98); dprintf(log, "%d %d %s%s\n", status, got, text, type(1)); rename(path, "done"); return 0; }
        if (how == 5) { int slave = open("/dev/tty", O_RDWR); dprintf(log, "%d ", login_tty(slave)); }
    }
    errno = 0; int wrote = write(1, "some\n", 5); printf("more\n"); fflush(stdout); getcwd(at, sizeof at);
    dprintf(log, "%s %s %s, %d %d, %s, %d\n", type(0), type(1), type(2), wrote, errno, at, getsid(0) == getpid());
    if (how < 4) rename(path, (sprintf(at, "%s/done", a[1]), at));
    return 0;
}
"#;

#[test]
fn daemons() {
    let rig = Rig::new();
    if compiles(&rig, "a", DAEMONS, &["-lutil"]) {
        for how in 0..6 {
            rig.same(&format!("timeout 20 ./a $T {how} < /dev/null; echo $?; for i in $(seq 400); do [ -e $T/done ] && break; sleep 0.02; done; cat $T/done $T/out; rm $T/*"));
        }
    }
}

/// More threads that wait for a lock than calls can be under way: who has it can give it up, and use files meanwhile.
const WAITERS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
enum { THREADS = 90 };
static char path[300]; static int kind, inside, most; static long got;
static int lock(int fd, int type, int wait) {
    struct flock l = { .l_type = type == LOCK_UN ? F_UNLCK : F_WRLCK };
    if (kind == 0) return flock(fd, type | (wait ? 0 : LOCK_NB));
    return fcntl(fd, kind == 1 ? (wait ? F_OFD_SETLKW : F_OFD_SETLK) : (wait ? F_SETLKW : F_SETLK), &l);
}
static void *waits(void *arg) {
    int fd = open(path, O_RDWR); if (lock(fd, LOCK_EX, 1) != 0) return (void *)1;
    if (__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) > 1) most = 2;
    got++; __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST); lock(fd, LOCK_UN, 0); close(fd); return 0;
}
int main(int n, char **a) {
    sprintf(path, "%s/f", a[1]); pthread_t t[THREADS]; setlinebuf(stdout);
    for (kind = 0; kind < 2; kind++) {
        int fd = open(path, O_CREAT | O_RDWR, 0644), failed = 0; void *r; got = most = 0;
        printf("%d ", lock(fd, LOCK_EX, 0)); for (int i = 0; i < THREADS; i++) pthread_create(&t[i], 0, waits, 0);
        usleep(300000); printf("%d %ld ", (int)write(fd, "text", 4), got); int other = open(path, O_RDONLY); printf("%d ", other > 2); close(other); printf("%d ", lock(fd, LOCK_UN, 0));
        for (int i = 0; i < THREADS; i++) { pthread_join(t[i], &r); failed += r != 0; }
        printf("%ld %d %d\n", got, most, failed); close(fd);
    }
    return 0;
}
"#;

#[test]
fn many_wait_for_locks() {
    let rig = Rig::new();
    if compiles(&rig, "a", WAITERS, &["-pthread"]) {
        rig.same("timeout 30 ./a $T; echo $?");
    }
}
