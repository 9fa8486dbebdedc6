//! More small programs in C, as in `c_programs`: what children and signals do in the middle, and what libc does by itself.

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
    if compiles(&rig, "a", CHILDREN, &["-w"]) {
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
    if compiles(&rig, "a", HOLDERS, &["-w", "-pthread"]) {
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
