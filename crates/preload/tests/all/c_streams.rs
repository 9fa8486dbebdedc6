//! Small programs in C, as in `c_programs`: streams whose descriptors change under them, or go.

use crate::c_programs::compiles;
use crate::rig::Rig;

/// What stands in a buffer when a standard descriptor begins to lead into the volume, or out of it. The argument behind the directory says how the streams are buffered.
const REDIRECTED: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char room[100000];
static void put(const char *name, const char *text) { int fd = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0644); write(fd, text, strlen(text)); close(fd); }
static void lead(int number, const char *name, int flags) { int fd = open(name, flags, 0644); dup2(fd, number); close(fd); }
static void say(const char *name) { char t[40000]; int fd = open(name, O_RDONLY), got = read(fd, t, sizeof t - 1); t[got < 0 ? 0 : got] = 0; dprintf(2, "%s: %d %.60s..%s\n", name, got, t, got > 60 ? t + got - 20 : ""); close(fd); }
static void next(void) { char t[99] = ""; dprintf(2, "%s|", fgets(t, 99, stdin) ? t : "none"); }
int main(int n, char **a) {
    int how = atoi(a[2]), was = dup(1), w = O_CREAT | O_WRONLY | O_APPEND; char path[300];
    if (how == 1) setvbuf(stdout, NULL, _IONBF, 0); else if (how == 2) setlinebuf(stdout); else if (how == 3) setvbuf(stdout, room, _IOFBF, sizeof room);
    sprintf(path, "%s/out", a[1]); put("plain", ""); put(path, "");
    printf("header\n"); if (how == 3) for (int i = 0; i < 5000; i++) printf("%d ", i);
    lead(1, path, w); printf("body\n"); say(path); lead(1, "plain", w); printf("plain\n"); say(path); say("plain");
    lead(1, path, w); printf("again\n"); dup2(was, 1); printf("at last\n"); fflush(stdout); say(path); say("plain");
    /* What was read ahead, and what was given back. */
    sprintf(path, "%s/in", a[1]); put("first", "one\ntwo\nthree\nfour\n"); put(path, "five\nsix\nseven\n"); put("last", "eight\nnine\n");
    lead(0, "first", O_RDONLY); next(); if (how & 1) { getchar(); ungetc('T', stdin); ungetc('>', stdin); } lead(0, path, O_RDONLY); next(); next(); next(); next(); next();
    lead(0, "last", O_RDONLY); next(); next(); next(); next(); dprintf(2, "\n");
    sprintf(path, "%s/left", a[1]); lead(1, path, w); printf("some\n"); if (how & 2) fflush(stdout); _exit(0);
}
"#;

#[test]
fn buffers_of_streams_that_are_redirected() {
    let rig = Rig::new();
    if compiles(&rig, "a", REDIRECTED, &["-w"]) {
        for how in 0..4 {
            rig.same(&format!("timeout 20 ./a $T {how} < /dev/null; echo $?; cat $T/left; rm $T/*"));
        }
    }
}

/// Standard streams that are closed, whose memory is somebody else's then, and printed to all the same.
const CLOSED: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int n, char **a) {
    char *taken[400], t[99] = ""; int wrong = 0; chdir(a[1]);
    dup2(open("out", O_CREAT | O_WRONLY | O_TRUNC, 0644), 1); printf("one\n"); dprintf(2, "%d\n", fclose(stdout));
    for (int i = 0; i < 400; i++) memset(taken[i] = malloc(16 + i * 4), 'A', 16 + i * 4);
    errno = 0; int r = printf("two\n"); dprintf(2, "%d %d ", r, errno); r = fflush(stdout); dprintf(2, "%d\n", r);
    for (int i = 0; i < 400; i++) for (int k = 0; k < 16 + i * 4; k++) wrong += taken[i][k] != 'A';
    dprintf(2, "%d %d\n", wrong, fcntl(1, F_GETFD)); freopen("out", "a", stdout); r = printf("three\n"); dprintf(2, "%d %d\n", r, fclose(stdout));
    freopen("/dev/null", "w", stdout); dprintf(2, "%d\n", printf("four\n")); int fd = open("out", O_RDONLY); read(fd, t, 98); dprintf(2, "%s", t);
    return 0;
}
"#;

#[test]
fn streams_that_are_closed() {
    let rig = Rig::new();
    if compiles(&rig, "a", CLOSED, &["-w"]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}

/// Directories that are read by streams, whose descriptors are closed before these, or lead elsewhere.
const CLOSED_BEFORE: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int n, char **a) {
    int r; chdir(a[1]); close(open("f", O_CREAT | O_WRONLY, 0644));
    for (int i = 0; i < 3; i++) {
        DIR *d = opendir("."); dprintf(2, "%d ", readdir(d) != 0); int fd = dirfd(d); close(fd); if (i == 1) dup2(2, fd); if (i == 2) dup2(open("f", O_RDONLY), fd);
        errno = 0; r = closedir(d); dprintf(2, "%d %d ", r, r ? errno : 0); r = fcntl(fd, F_GETFD); dprintf(2, "%d\n", r);
    }
    return 0;
}
"#;

#[test]
fn directories_that_are_closed_before_their_streams() {
    let rig = Rig::new();
    if compiles(&rig, "a", CLOSED_BEFORE, &["-w"]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}

/// A stream of libc's that is to lead to a file that cannot be opened is closed.
const NOT_OPENED: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int n, char **a) {
    chdir(a[1]); FILE *f = fopen("/dev/null", "w"); int fd = fileno(f);
    errno = 0; int r = freopen("none/x", "w", f) != 0; dprintf(2, "%d %d ", r, errno); r = fcntl(fd, F_GETFD); dprintf(2, "%d ", r); r = fputs("text", f); dprintf(2, "%d\n", r);
    printf("some\n"); errno = 0; r = freopen("none/x", "w", stdout) != 0; dprintf(2, "%d %d ", r, errno); r = fcntl(1, F_GETFD); dprintf(2, "%d ", r); r = puts("text"); dprintf(2, "%d\n", r);
    r = freopen("x", "w", stdout) != 0; printf("more\n"); fclose(stdout); char t[9] = ""; fd = open("x", O_RDONLY); read(fd, t, 8); dprintf(2, "%d %s", r, t); return 0;
}
"#;

#[test]
fn streams_that_are_led_nowhere() {
    let rig = Rig::new();
    if compiles(&rig, "a", NOT_OPENED, &["-w"]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}
