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
