//! Small programs in C, as in `c_programs`: what processes that share an open file, or are sent one, may do to each other.

use crate::c_programs::compiles;
use crate::rig::{MOUNT, Rig};
use std::path::Path;

/// Runs it in the volume; what it prints.
fn said(rig: &Rig, script: &str) -> String {
    let out = rig.bash(script, Path::new(MOUNT));
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// Who has the offset stays there as long as the test likes: it writes memory that comes when the handler of SIGSEGV has it come. The others are in namespaces of their
/// own (`inner`), where the numbers of processes are others.
const HOLDS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static char *late; static int held[2], for_ever; static char letter;
static void comes(int s) {
    write(held[1], "x", 1); if (for_ever) for (;;) pause();
    usleep(300000); mprotect(late, 4096, PROT_READ | PROT_WRITE); memset(late, letter, 4096);
}
static void *holds(void *fd) { late = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); return (void *)(long)write((long)fd, late, 4); }
/* In a child, which is the first process of a namespace if it may be. */
static int child(int inner, void (*does)(long), long fd, int is_killed) {
    pid_t middle = fork(); int status; char c;
    if (middle) return middle;
    if (inner && unshare(CLONE_NEWPID)) _exit(7);
    pid_t last = fork();
    if (last == 0) { does(fd); _exit(0); }
    if (is_killed) { read(held[0], &c, 1); kill(last, SIGKILL); if (is_killed == 2) { siginfo_t info; waitid(P_PID, last, &info, WEXITED | WNOWAIT); _exit(write(fd, "WWWW", 4) == 4 ? 0 : 8); } }
    waitpid(last, &status, 0); _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 0);
}
static void waits(long fd) { char c; read(held[0], &c, 1); if (write(fd, "BBBB", 4) != 4) _exit(9); }
static void is_stuck(long fd) { for_ever = 1; holds((void *)fd); }
static void say(const char *what, long fd, pid_t of) { int status = 0; if (of) waitpid(of, &status, 0); char text[99] = ""; pread(fd, text, 98, 0); printf("%s: %d %s %ld\n", what, WEXITSTATUS(status), text, (long)lseek(fd, 0, SEEK_CUR)); ftruncate(fd, 0); lseek(fd, 0, SEEK_SET); }
int main(int n, char **a) {
    char path[300], number[20]; long fd; setlinebuf(stdout); signal(SIGSEGV, comes); pipe(held); letter = 'A';
    if (n > 2) { fd = atoi(a[2]); write(fd, "EEEE", 4); say("another program", fd, 0); return 0; }
    sprintf(path, "%s/f", a[1]); fd = open(path, O_CREAT | O_RDWR, 0644);
    pid_t of = child(1, waits, fd, 0); holds((void *)fd); say("waits for one outside", fd, of);
    of = child(1, is_stuck, fd, 1); waitpid(of, NULL, WNOHANG); usleep(100000); write(fd, "CCCC", 4); say("one inside was killed", fd, of);
    of = child(0, is_stuck, fd, 2); say("one was killed that nobody waits for", fd, of);
    pthread_t t; char c; for_ever = 1; pthread_create(&t, NULL, holds, (void *)fd); read(held[0], &c, 1); sprintf(number, "%ld", fd); execl(a[0], a[0], a[1], number, NULL); return 9;
}
"#;

#[test]
fn offsets_are_held_in_whichever_namespace() {
    let rig = Rig::new();
    if !compiles(&rig, "a", HOLDS, &["-w", "-pthread"]) {
        return;
    }
    if !said(&rig, "unshare -p true").is_empty() {
        eprintln!("skipped: no namespaces can be made");
        return;
    }
    assert_eq!(
        said(&rig, "timeout 20 ./a $T; echo $?"),
        "waits for one outside: 0 AAAABBBB 8\none inside was killed: 0 CCCC 4\none was killed that nobody waits for: 0 WWWW 4\n\
         another program: 0 EEEE 4\n0\n"
    );
}

/// Sends memory that looks like an open file of the volume, to itself and as another user to who may open that file. What is in front of a number says what it is of.
const FORGED: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static char all[512 * 512]; static long at;
static int forged(int seals) {
    int m = memfd_create("freehold-open-files", MFD_ALLOW_SEALING); write(m, all, sizeof all); fcntl(m, F_ADD_SEALS, seals); lseek(m, at, SEEK_SET); return m;
}
static void try(const char *what, int uid, int seals) {
    int p[2]; char c = 'x', text[9] = "", room[CMSG_SPACE(sizeof(int))]; struct iovec v = { &c, 1 };
    struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room }; struct cmsghdr *of = CMSG_FIRSTHDR(&m);
    socketpair(AF_UNIX, SOCK_STREAM, 0, p);
    if (fork() == 0) {
        if (uid) { setuid(uid); }
        of->cmsg_level = SOL_SOCKET; of->cmsg_type = SCM_RIGHTS; of->cmsg_len = CMSG_LEN(sizeof(int)); *(int *)CMSG_DATA(of) = forged(seals); _exit(sendmsg(p[0], &m, 0) != 1);
    }
    wait(NULL); recvmsg(p[1], &m, 0); int got = *(int *)CMSG_DATA(of); pread(got, text, 6, 0); printf("%s: %d\n", what, strcmp(text, "secret") == 0); fflush(stdout);
}
int main(int n, char **a) {
    char path[300], own[99]; int both = F_SEAL_GROW | F_SEAL_SHRINK; sprintf(path, "%s/f", a[1]); int fd = open(path, O_CREAT | O_RDWR, 0600); write(fd, "secret", 6);
    /* What stands for the file, as the kernel has it. */
    at = syscall(SYS_lseek, fd, 0L, SEEK_CUR); sprintf(own, "/proc/self/fd/%d", fd); int m = syscall(SYS_openat, AT_FDCWD, own, O_RDONLY, 0); syscall(SYS_pread64, m, all, sizeof all, 0L);
    try("own", 0, both); try("that grows", 0, F_SEAL_SHRINK); try("that shrinks", 0, F_SEAL_GROW); try("unsealed", 0, 0); if (getuid() == 0) try("another user's", 65534, both); return 0;
}
"#;

#[test]
fn forged_files_are_not_taken_for_open_ones() {
    let rig = Rig::new();
    if compiles(&rig, "a", FORGED, &["-w"]) {
        let said = said(&rig, "timeout 20 ./a $T");
        let forged = said.strip_prefix("own: 1\n").expect("what is forged so looks like an open file");
        assert!(forged.lines().count() >= 3 && !forged.contains('1'), "{said}");
    }
}
