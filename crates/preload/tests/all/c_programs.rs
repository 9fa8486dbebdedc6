//! Small programs in C, for what scripts cannot ask for: the same program in an ordinary directory and in a volume. Skipped without gcc.

use crate::rig::{MOUNT, Rig};
use std::process::Command;

/// Compiles `name` in the directory where programs stand, with these options of gcc. False without gcc, or without a library that is named.
pub(crate) fn compiles(rig: &Rig, name: &str, source: &str, options: &[&str]) -> bool {
    let gcc = |source: &str, name: &str, args: &[&str]| {
        std::fs::write(rig.work.path().join("a.c"), source).unwrap();
        let mut gcc = Command::new("gcc");
        // Newer compilers take neither of these anyway.
        gcc.args(["-O1", "-Werror=implicit-function-declaration", "-Werror=int-conversion"]);
        gcc.args(["-o", name, "a.c"]).args(args).current_dir(rig.work.path()).output()
    };
    let libraries: Vec<&str> = options.iter().copied().filter(|o| o.starts_with("-l")).collect();
    if !gcc("int main(void) { return 0; }", name, &libraries).is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: there is no gcc, or not all of {libraries:?}");
        return false;
    }
    let out = gcc(source, name, options).unwrap();
    assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    true
}

/// An allocator that reads its settings while it holds its lock, before our constructor runs, as jemalloc does.
const ALLOCATOR: &str = r#"
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char room[64 << 20] __attribute__((aligned(16)));
static size_t used, begun;
void *malloc(size_t n) {
    pthread_mutex_lock(&lock);
    if (!begun) {
        char settings[100];
        begun = 1 + (readlink("/etc/allocator.conf", settings, sizeof settings) > 0);
    }
    n = (n + 31) & ~(size_t)15;
    char *p = n <= sizeof room - used ? room + used : NULL;
    if (p) { used += n; *(size_t *)p = n; p += 16; }
    pthread_mutex_unlock(&lock);
    return p;
}
void free(void *p) {}
void *volatile first;
__attribute__((constructor)) static void begin(void) { first = malloc(1); }
void *calloc(size_t a, size_t b) { return malloc(a * b); }
void *realloc(void *old, size_t n) {
    void *p = malloc(n);
    if (old && p) { size_t had = *(size_t *)((char *)old - 16) - 16; memcpy(p, old, had < n ? had : n); }
    return p;
}
void *memalign(size_t a, size_t n) { char *p = malloc(n + a); return p ? p + (-(size_t)p & (a - 1)) : p; }
void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }
int posix_memalign(void **to, size_t a, size_t n) { return (*to = memalign(a, n)) ? 0 : 12; }
"#;

/// A library whose constructor, which runs before ours, uses files.
const CONSTRUCTOR: &str = r#"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) {
    int fd = open(getenv("EARLY"), O_CREAT | O_WRONLY | O_APPEND, 0644);
    if (fd >= 0) { write(fd, "early\n", 6); close(fd); }
}
"#;

#[test]
fn allocators_that_call_while_they_begin() {
    let rig = Rig::new();
    if !compiles(&rig, "alloc.so", ALLOCATOR, &["-shared", "-fPIC"]) {
        return;
    }
    let with = "export LD_PRELOAD=$LD_PRELOAD:$PWD/alloc.so; timeout 10";
    rig.same(&format!("echo file > $T/f; {with} cat $T/f; echo $?; timeout 10 wc -c < $T/f; echo $?"));
    rig.same(&format!("{with} bash -c 'mkdir $T/d && cd $T/d && echo in > g && cat g $T/f; ls $T' > $T/out 2>&1; echo $?; cat $T/out"));
    let found = Command::new("ldconfig").arg("-p").output();
    if found.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("libjemalloc.so.2")) {
        rig.same("export LD_PRELOAD=$LD_PRELOAD:libjemalloc.so.2; timeout 10 cat $T/f; echo $?; timeout 10 sh -c 'cat $T/f; echo more >> $T/f'; wc $T/f");
    }
}

#[test]
fn files_in_constructors() {
    let rig = Rig::new();
    if compiles(&rig, "early.so", CONSTRUCTOR, &["-shared", "-fPIC"]) {
        rig.same("export EARLY=$T/early; LD_PRELOAD=$LD_PRELOAD:$PWD/early.so timeout 10 cat /dev/null; cat $T/early");
    }
}

const MESSAGES: &str = r#"
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <error.h>
#include <execinfo.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>
static int list(int fd, const char *format, ...) {
    va_list l; va_start(l, format);
    int n = vdprintf(fd, format, l);
    va_end(l);
    return n;
}
int main(int n, char **a) {
    int fd = open(a[1], O_CREAT | O_RDWR | O_TRUNC, 0644), ro = open(a[1], O_RDONLY);
    printf("%d\n", dprintf(fd, "%d %s %c %.3f %ld %d %d %d %Lf %f %f %f %f %f %f %f %f %d\n",
        1, "two", '3', 4.5, 5L, 6, 7, 8, 9.5L, 1., 2., 3., 4., 5., 6., 7., 8., 10));
    printf("%d\n", list(fd, "%s %f %d\n", "list", 2.5, 3));
    printf("%d\n", dprintf(fd, "%*d\n", 100000, 5));
    printf("%d\n", dprintf(fd, "plain\n"));
    int failed = dprintf(ro, "x"); printf("%d %d\n", failed, errno);
    failed = dprintf(-1, "x"); printf("%d %d\n", failed, errno);
    dprintf(1, "%s\n", "to the pipe");
    int out = dup(2); dup2(fd, 2);
    errno = ENOENT; perror("perror"); errno = ENOENT; warn("warn"); error(0, 5, "error"); psignal(SIGSEGV, "psignal");
    h_errno = HOST_NOT_FOUND; herror("herror"); herror(0);
    void *frames[] = { (void *)main };
    backtrace_symbols_fd(frames, 1, fd);
    dup2(out, 2); fflush(stdout);
    return 0;
}
"#;

#[test]
fn messages_to_descriptors() {
    let rig = Rig::new();
    for options in [&["-D_FORTIFY_SOURCE=0"][..], &["-O2", "-D_FORTIFY_SOURCE=2"]] {
        if !compiles(&rig, "a", MESSAGES, options) {
            return;
        }
        rig.same("./a $T/f; tr -d ' ' < $T/f | sed 's/\\[.*//'");
    }
    let out = rig.bash("tail -n 1 $T/f | wc -l", MOUNT.as_ref());
    assert_eq!(String::from_utf8_lossy(&out.stdout), "1\n", "{out:?}");
}

const ANSWERS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#define SAY(call) do { errno = 0; long r = (call); printf("%ld %d\n", r, errno); } while (0)
int main(int n, char **a) {
    chdir(a[1]);
    int fd = open("f", O_CREAT | O_RDWR | O_TRUNC, 0644);
    write(fd, "hello", 5);
    SAY(posix_fadvise(fd, 0, 0, 99)); SAY(posix_fadvise(fd, 0, -1, 0)); SAY(posix_fadvise(fd, 0, 9, POSIX_FADV_DONTNEED));
    SAY(utimensat(fd, NULL, NULL, 0)); SAY(futimens(fd, NULL));
    int device = open("/dev/null", O_RDWR), pipes[2], dir = open("/", O_RDONLY); pipe(pipes); lseek(fd, 0, 0);
    SAY(copy_file_range(fd, NULL, device, NULL, 5, 0)); SAY(copy_file_range(fd, NULL, pipes[1], NULL, 5, 0));
    SAY(copy_file_range(pipes[0], NULL, fd, NULL, 5, 0)); SAY(copy_file_range(fd, NULL, 99, NULL, 5, 0));
    SAY(copy_file_range(dir, NULL, fd, NULL, 5, 0));
    mkdir("d", 0755); SAY(link("d", "f")); SAY(link("d", "d")); SAY(link("d", "new")); SAY(link("f", "d"));
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) { dup2(fd, 1); lseek(1, 0, SEEK_END); execlp("echo", "echo", "behind", NULL); _exit(9); }
    int status; waitpid(child, &status, 0); printf("%d\n", status);
    char text[99]; long got = pread(fd, text, 99, 0); printf("%.*s", (int)got, text);
    return 0;
}
"#;

#[test]
fn answers_as_of_the_kernel() {
    let rig = Rig::new();
    if compiles(&rig, "a", ANSWERS, &[]) {
        rig.same("./a $T");
    }
}

/// Threads that open and close files at the same time, while others start processes and change the directory.
const THREADS: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
enum { THREADS = 4, TURNS = 20000, HELD = 3 };
static const char *place; static _Atomic int wrong, stop; static _Atomic char used[1000];
static void is(int right, const char *what) { if (!right && wrong++ < 5) { printf("wrong: %s\n", what); } }
static int names(char *to, int i) { return sprintf(to, "%s/%c", place, "abc"[i]); }
static int take(int fd) { is(fd >= 3 && fd < 1000 && !atomic_exchange(&used[fd], 1), "number"); return fd; }
static void give(int fd) { used[fd] = 0; is(close(fd) == 0, "close"); }
static void *work(void *arg) {
    unsigned dice = (long)arg + 1; int held[HELD], of[HELD] = { 0 }; char path[300], c;
    memset(held, -1, sizeof held);
    for (int i = 0; i < TURNS; i++) {
        dice = dice * 1103515245 + 12345; int h = (dice >> 16) % HELD, n = (dice >> 20) % 3;
        if (held[h] >= 0) { is(pread(held[h], &c, 1, 0) == 1 && c == "abc"[of[h]], "contents"); give(held[h]); }
        names(path, n); of[h] = n; held[h] = take(open(path, O_RDONLY | (dice >> 24 & 1 ? O_CLOEXEC : 0)));
        is(pread(held[h], &c, 1, 0) == 1 && c == "abc"[n], "contents");
        if (dice >> 25 == 0) { int p[2]; is(pipe(p) == 0, "pipe"); take(p[0]); take(p[1]); write(p[1], "x", 1); is(read(p[0], &c, 1) == 1 && c == 'x', "pipe"); give(p[0]); give(p[1]); }
        struct stat st; if ((dice >> 23 & 7) == 0) { is(stat("in", &st) == 0, "relative"); }
    }
    for (int h = 0; h < HELD; h++) { if (held[h] >= 0) { give(held[h]); } }
    return 0;
}
static void *starts(void *arg) {
    extern char **environ; char *run[] = { "true", 0 }; pid_t pid; int status, turn = 0;
    while (!stop) {
        char path[300], c; names(path, 1);
        if (turn++ % 2) { pid = fork(); if (pid == 0) { int fd = open(path, O_RDONLY); struct stat st; int right = pread(fd, &c, 1, 0) == 1 && c == 'b' && close(fd) == 0 && open(path, O_RDONLY) == fd && stat("in", &st) == 0; chdir(place); right = right && stat("a", &st) == 0; _exit(!right); } }
        else { is(posix_spawnp(&pid, "true", 0, 0, run, environ) == 0, "spawn"); }
        is(waitpid(pid, &status, 0) == pid && status == 0, "child");
    }
    return 0;
}
static void *moves(void *arg) {
    char path[2][300]; sprintf(path[0], "%s/x", place); sprintf(path[1], "%s/y", place);
    for (int i = 0; !stop; i++) { is(chdir(path[i % 2]) == 0, "chdir"); if (i % 50 == 0) usleep(100); }
    return 0;
}
int main(int n, char **a) {
    place = a[1]; char path[300]; setlinebuf(stdout);
    for (int i = 0; i < 3; i++) { names(path, i); int fd = open(path, O_CREAT | O_WRONLY, 0644); write(fd, "abc" + i, 1); close(fd); }
    for (int i = 0; i < 2; i++) { sprintf(path, "%s/%c", place, "xy"[i]); mkdir(path, 0755); strcat(path, "/in"); close(open(path, O_CREAT | O_WRONLY, 0644)); }
    path[strlen(path) - 3] = 0; chdir(path);
    pthread_t workers[THREADS], others[2];
    for (int round = 0; round < 2; round++) {
        stop = 0; for (long i = 0; i < THREADS; i++) { pthread_create(&workers[i], 0, work, (void *)(i + 10 * round)); }
        if (round) { pthread_create(&others[0], 0, starts, 0); pthread_create(&others[1], 0, moves, 0); }
        for (int i = 0; i < THREADS; i++) { pthread_join(workers[i], 0); }
        stop = 1; if (round) { pthread_join(others[0], 0); pthread_join(others[1], 0); }
        // All numbers are free again, for files of all kinds.
        int fds[12]; names(path, 0);
        for (int turn = 0; turn < 4; turn++) {
            for (int i = 0; i < 12; i++) { fds[i] = turn + i & 2 ? open("/dev/null", O_RDONLY) : open(path, O_RDONLY); printf("%d ", fds[i]); }
            for (int i = 0; i < 12; i++) { close(fds[i * 5 % 12]); }
        }
        printf("\n"); DIR *dir = opendir("/proc/self/fd"); int there = 0; for (struct dirent *e; (e = readdir(dir));) { there += e->d_name[0] != '.' && atoi(e->d_name) < 64; } closedir(dir);
        printf("%d there, %d wrong\n", there, wrong);
    }
    return 0;
}
"#;

#[test]
fn threads_that_open_and_close() {
    let rig = Rig::new();
    if compiles(&rig, "a", THREADS, &["-pthread"]) {
        rig.same("timeout 50 ./a $T; echo $?");
    }
}

/// A process fills pages with numbers that grow, and says which number it has written; another one opens the file now and then, and must find what was said before.
const NUMBERS: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
enum { PAGES = 16, PAGE = 4096, WORDS = PAGE / 8 };
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static int writes(const char *path, volatile uint64_t *said) {
    static uint64_t page[WORDS];
    int fd = open(path, O_RDWR);
    for (uint64_t n = 1;; n++) {
        for (int w = 0; w < WORDS; w++) page[w] = n;
        if (pwrite(fd, page, PAGE, n % PAGES * PAGE) != PAGE) return 1;
        __atomic_store_n(&said[n % PAGES], n, __ATOMIC_RELEASE);
    }
}
int main(int argc, char **argv) {
    static uint64_t page[WORDS], before[PAGES];
    volatile uint64_t *said = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = open(argv[1], O_CREAT | O_RDWR | O_TRUNC, 0644);
    for (int p = 0; p < PAGES; p++) if (pwrite(fd, page, PAGE, p * PAGE) != PAGE) return 1;
    close(fd);
    pid_t child = fork();
    if (child == 0) _exit(writes(argv[1], said));
    double end = now() + atof(argv[2]);
    int looks = 0, bad = 0;
    for (; now() < end && !bad; looks++) {
        usleep(looks * 37 % 1500);
        for (int p = 0; p < PAGES; p++) before[p] = __atomic_load_n(&said[p], __ATOMIC_ACQUIRE);
        fd = open(argv[1], O_RDONLY);
        for (int p = 0; p < PAGES; p++) {
            if (pread(fd, page, PAGE, p * PAGE) != PAGE) bad = 1;
            if (page[0] < before[p] || page[WORDS - 1] < before[p]) bad = 2;
        }
        close(fd);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    uint64_t all = 0;
    for (int p = 0; p < PAGES; p++) all += said[p];
    printf("%s %d\n", looks > 10 && all > 10000 ? "worked" : "did little", bad);
    return bad;
}
"#;

#[test]
fn what_was_written_is_found_by_others() {
    let rig = Rig::new();
    if compiles(&rig, "numbers", NUMBERS, &[]) {
        rig.same("timeout 60 ./numbers $T/f 3; echo $?");
    }
}

/// POSIX AIO on a file in the directory and one elsewhere.
const AIO: &str = r#"
#define _GNU_SOURCE
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char a[4][100000], b[4][100000]; static sem_t called; static sigset_t set;
static struct aiocb of(int fd, int opcode, void *at, size_t n, off_t offset) {
    struct aiocb c; memset(&c, 0, sizeof c); c.aio_fildes = fd; c.aio_lio_opcode = opcode; c.aio_buf = at; c.aio_nbytes = n; c.aio_offset = offset; c.aio_sigevent.sigev_notify = SIGEV_NONE; return c;
}
static void done(const char *what, struct aiocb *c) {
    const struct aiocb *all[] = { NULL, c };
    while (aio_error(c) == EINPROGRESS) aio_suspend(all, 2, NULL);
    int e = aio_error(c), n = aio_return(c); printf("%s: %d %s\n", what, n, strerror(e));
}
static void begun(const char *what, int r, struct aiocb *c) { if (r) printf("%s: begins with %s\n", what, strerror(errno)); else done(what, c); }
static void function(union sigval v) { printf("called with %d\n", v.sival_int); sem_post(&called); }
static void told(const char *what) { siginfo_t i; sigwaitinfo(&set, &i); printf("%s: code %d, value %d, own %d\n", what, i.si_code, i.si_value.sival_int, i.si_pid == getpid()); }
int main(int n, char **args) {
    char path[300]; setbuf(stdout, NULL); sem_init(&called, 0, 0); sigemptyset(&set); sigaddset(&set, SIGUSR1); sigaddset(&set, SIGUSR2); sigprocmask(SIG_BLOCK, &set, NULL);
    for (int i = 0; i < 4; i++) memset(a[i], 'a' + i, sizeof a[i]);
    sprintf(path, "%s/f", args[1]); int fd = open(path, O_RDWR | O_CREAT, 0600), in = open(path, O_RDONLY), out = open(path, O_WRONLY), end = open(path, O_RDWR | O_APPEND);
    FILE *t = tmpfile(); int other = fileno(t);
    struct aiocb c[4], *all[5] = { &c[0], NULL, &c[1], &c[2], &c[3] };
    for (int i = 3; i >= 0; i--) { c[i] = of(fd, 0, a[i], sizeof a[i], i * sizeof a[i]); if (aio_write(&c[i])) perror("aio_write"); }
    for (int i = 0; i < 4; i++) done("written", &c[i]);
    for (int i = 0; i < 4; i++) { c[i] = of(i % 2 ? fd : in, 0, b[i], sizeof b[i], i * sizeof b[i]); if (aio_read(&c[i])) perror("aio_read"); }
    for (int i = 0; i < 4; i++) done("read", &c[i]);
    printf("%d at %ld\n", memcmp(a, b, sizeof a), (long)lseek(fd, 0, SEEK_CUR));
    c[0] = of(fd, 0, b, 100, 399990); begun("at the end", aio_read(c), c);
    c[0] = of(fd, 0, b, 100, 500000); begun("behind it", aio_read(c), c);
    c[0] = of(fd, 0, b, 0, 0); begun("of nothing", aio_read(c), c);
    c[0] = of(fd, 0, b, 100, -1); begun("before the file", aio_read(c), c);
    c[0] = of(out, 0, b, 100, 0); begun("for writing only", aio_read(c), c);
    c[0] = of(in, 0, b, 100, 0); begun("for reading only", aio_write(c), c);
    c[0] = of(end, 0, "end", 3, 0); begun("appended", aio_write(c), c); memset(b, 0, 9); printf("%d %s\n", (int)pread(fd, b, 9, 400000), b[0]);
    c[0] = of(fd, 0, 0, 0, 0); begun("synced", aio_fsync(O_SYNC, c), c);
    c[0] = of(fd, 0, 0, 0, 0); begun("data synced", aio_fsync(O_DSYNC, c), c);
    c[0] = of(fd, 0, 0, 0, 0); begun("synced otherwise", aio_fsync(O_RDWR, c), c);
    c[0] = of(in, 0, 0, 0, 0); begun("synced through a reader", aio_fsync(O_SYNC, c), c);
    c[0] = of(fd, 0, b, 100, 0); c[0].aio_reqprio = -1; begun("of no priority", aio_read(c), c);
    c[0] = of(99, 0, b, 100, 0); begun("of no file", aio_read(c), c);
    c[0] = of(fd, 0, b, 10, 0); c[0].aio_sigevent.sigev_notify = SIGEV_SIGNAL; c[0].aio_sigevent.sigev_signo = SIGUSR1; c[0].aio_sigevent.sigev_value.sival_int = 7; aio_read(c); told("a signal"); done("after a signal", c);
    c[0] = of(fd, 0, b, 10, 0); c[0].aio_sigevent.sigev_notify = SIGEV_THREAD; c[0].aio_sigevent.sigev_notify_function = function; c[0].aio_sigevent.sigev_value.sival_int = 8; aio_read(c); sem_wait(&called); done("after a call", c);
    printf("cancelled: %d", aio_cancel(fd, c) == AIO_ALLDONE); printf(" %d\n", aio_cancel(fd, NULL) == AIO_ALLDONE);
    for (int mixed = 0; mixed < 2; mixed++) {
        c[0] = of(fd, LIO_WRITE, "list", 4, 0); c[1] = of(mixed ? other : fd, LIO_WRITE, "other", 5, 8); c[2] = of(fd, LIO_NOP, 0, 0, 0); c[3] = of(fd, LIO_READ, b, 2, 200000);
        printf("list: %d\n", lio_listio(LIO_WAIT, all, 5, NULL)); done("first", &c[0]); done("second", &c[1]); done("last", &c[3]); printf("%.2s\n", b[0]);
        c[0] = of(in, LIO_WRITE, "no", 2, 0); c[1] = of(mixed ? other : fd, LIO_READ, b, 5, 8); c[3] = of(fd, LIO_READ, b[1], 4, 0);
        struct sigevent told_by = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2, .sigev_value.sival_int = 9 };
        int r = lio_listio(LIO_WAIT, all, 5, NULL); printf("list with a failure: %d %s\n", r, strerror(errno)); done("first", &c[0]); done("second", &c[1]); printf("%.5s\n", b[0]);
        c[0] = of(fd, LIO_READ, b[1], 4, 0); r = lio_listio(LIO_NOWAIT, all, 5, &told_by); told("the list"); printf("%d %.4s\n", r, b[1]);
    }
    int r = lio_listio(5, all, 5, NULL); printf("%d %s\n", r, strerror(errno));
    return 0;
}
"#;

#[test]
fn requests_of_posix_aio() {
    let rig = Rig::new();
    if compiles(&rig, "a", AIO, &["-pthread"]) {
        rig.same("./a $T");
    }
}
