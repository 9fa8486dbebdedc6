//! Small programs in C, as in `c_programs`: what handlers of signals may do, whatever they interrupt.

use crate::c_programs::compiles;
use crate::rig::Rig;

/// An allocator that counts, as a handler must not come to wait for it which has interrupted it. The library closes files meanwhile that the program had closed.
const COUNTS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static char room[128 << 20] __attribute__((aligned(64))); static size_t used; static volatile int watched, count;
void *malloc(size_t n) {
    count += watched; n = (n + 127) & ~(size_t)63; size_t at = __atomic_fetch_add(&used, n, __ATOMIC_SEQ_CST); if (at + n > sizeof room) return NULL;
    *(size_t *)(room + at + 48) = n - 64; return room + at + 64;
}
void free(void *p) { count += watched && p; }
void *calloc(size_t a, size_t b) { return malloc(a * b); }
void *realloc(void *old, size_t n) { void *p = malloc(n); if (old && p) { size_t had = ((size_t *)old)[-2]; memcpy(p, old, had < n ? had : n); } return p; }
void *memalign(size_t a, size_t n) { char *p = malloc(n + a); return p + (a - (size_t)p % a) % a; }
void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }
int posix_memalign(void **to, size_t a, size_t n) { return (*to = memalign(a, n)) ? 0 : 12; }
static void files(const char *path, int n) { int fds[100]; for (int i = 0; i < n; i++) fds[i] = open(path, O_RDONLY); for (int i = 0; i < n; i++) close(fds[i]); }
int main(int n, char **a) {
    char path[300], said[200], *at = said; int p[2], q[2]; sprintf(path, "%s/f", a[1]); close(open(path, O_CREAT | O_WRONLY, 0644));
    for (int i = 0; i < 6; i++) {
        pipe(p); pipe(q); files(path, i == 4 ? 90 : 8); count = 0; watched = 1;
        switch (i % 3) { case 0: write(p[1], "x", 1); break; case 1: close(p[0]); break; case 2: dup2(p[0], q[0]); }
        watched = 0; at += sprintf(at, "%d ", count);
    }
    puts(said); return 0;
}
"#;

#[test]
fn calls_of_handlers_need_no_memory() {
    let rig = Rig::new();
    if compiles(&rig, "a", COUNTS, &["-w", "-fno-builtin"]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}

/// A handler that comes while an open waits for who opens the other end of a FIFO uses files of the volume.
const WAITS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static char path[300]; static int done[2];
static void uses(int s) { char c = '-'; int fd = open(path, O_RDONLY); int n = read(fd, &c, 1); dprintf(2, "%d %c\n", n, c); close(fd); write(done[1], "x", 1); }
/* Until the process sleeps in the call, where the kernel tells. */
static void till_it_opens(int pid) {
    for (int i = 0; i < 3000; i++) {
        char name[50], t[50] = ""; usleep(5000); sprintf(name, "/proc/%d/syscall", pid); int fd = open(name, O_RDONLY), n = read(fd, t, 49); close(fd);
        if (n <= 0) { usleep(400000); return; }
        if (atoi(t) == SYS_openat) return;
    }
}
int main(int n, char **a) {
    char link[300], c; sprintf(path, "%s/f", a[1]); sprintf(link, "%s/l", a[1]); int fd = open(path, O_CREAT | O_WRONLY, 0644); write(fd, "text", 4); close(fd);
    mkfifo("fifo", 0644); char at[300], to[400]; getcwd(at, sizeof at); sprintf(to, "%s/fifo", at); symlink(to, link); pipe(done);
    struct sigaction how = { .sa_handler = uses, .sa_flags = SA_RESTART }; sigaction(SIGALRM, &how, NULL);
    for (int i = 0; i < 2; i++) {
        if (fork() == 0) { till_it_opens(getppid()); kill(getppid(), SIGALRM); read(done[0], &c, 1); fd = open("fifo", O_WRONLY); write(fd, "in", 2); _exit(0); }
        FILE *f = i ? fopen(link, "r") : NULL; fd = f ? fileno(f) : open(link, O_RDONLY); char t[9] = ""; read(fd, t, 8); printf("%s\n", t); wait(NULL); close(fd);
    }
    unlink("fifo"); return 0;
}
"#;

#[test]
fn handlers_come_while_a_fifo_is_opened() {
    let rig = Rig::new();
    if compiles(&rig, "a", WAITS, &["-w"]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}
