//! Small programs in C, for what scripts cannot ask for: the same program in an ordinary directory and in a volume. Skipped without gcc.

mod rig;
use rig::{MOUNT, Rig};
use std::process::{Command, Stdio};

/// Compiles `name` in the directory where programs stand, with these options of gcc.
fn compiles(rig: &Rig, name: &str, source: &str, options: &[&str]) -> bool {
    std::fs::write(rig.work.path().join("a.c"), source).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-o", name, "a.c"]).args(options).current_dir(rig.work.path()).stderr(Stdio::null());
    let there = gcc.status().is_ok_and(|s| s.success());
    if !there {
        eprintln!("skipped: there is no gcc that compiles {name}");
    }
    there
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
        if compiles(&rig, "a", MESSAGES, options) {
            rig.same("./a $T/f; tr -d ' ' < $T/f | sed 's/\\[.*//'");
        }
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
    if compiles(&rig, "a", ANSWERS, &["-w"]) {
        rig.same("./a $T");
    }
}
