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
static void writes(long fd) { if (write(fd, "BBBB", 4) != 4) _exit(9); }
static void is_stuck(long fd) { for_ever = 1; holds((void *)fd); }
static void say(const char *what, long fd, pid_t of) { int status = 0; if (of) waitpid(of, &status, 0); char text[99] = ""; for (long i = pread(fd, text, 98, 0); i-- > 0;) if (!text[i]) text[i] = '.'; printf("%s: %d %s %ld\n", what, WEXITSTATUS(status), text, (long)lseek(fd, 0, SEEK_CUR)); ftruncate(fd, 0); lseek(fd, 0, SEEK_SET); }
int main(int n, char **a) {
    char path[300], number[20]; long fd; setlinebuf(stdout); signal(SIGSEGV, comes); pipe(held); letter = 'A';
    if (n > 2) { fd = atoi(a[2]); write(fd, "EEEE", 4); say("another program", fd, 0); return 0; }
    sprintf(path, "%s/f", a[1]); fd = open(path, O_CREAT | O_RDWR, 0644);
    pthread_t u; pid_t of; char c; pthread_create(&u, NULL, holds, (void *)fd); read(held[0], &c, 1); of = child(0, writes, fd, 0); waitpid(of, NULL, WNOHANG); pthread_join(u, NULL); say("started meanwhile", fd, of);
    of = child(1, waits, fd, 0); holds((void *)fd); say("waits for one outside", fd, of);
    of = child(1, is_stuck, fd, 1); waitpid(of, NULL, WNOHANG); usleep(100000); write(fd, "CCCC", 4); say("one inside was killed", fd, of);
    of = child(0, is_stuck, fd, 2); say("one was killed that nobody waits for", fd, of);
    pthread_t t; for_ever = 1; pthread_create(&t, NULL, holds, (void *)fd); read(held[0], &c, 1); sprintf(number, "%ld", fd); execl(a[0], a[0], a[1], number, NULL); return 9;
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
        "started meanwhile: 0 AAAABBBB 8\nwaits for one outside: 0 AAAABBBB 8\none inside was killed: 0 ....CCCC 8\none was killed that nobody waits for: 0 ....WWWW 8\n\
         another program: 0 ....EEEE 8\n0\n"
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
static char all[512];
static int forged(int seals) {
    int m = memfd_create("freehold-open-file", MFD_ALLOW_SEALING); write(m, all, sizeof all); fcntl(m, F_ADD_SEALS, seals); lseek(m, 0, SEEK_SET); return m;
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
    char path[300], own[99]; int seals[] = { F_SEAL_GROW, F_SEAL_SHRINK, F_SEAL_WRITE, F_SEAL_SEAL }, whole = 15; sprintf(path, "%s/f", a[1]); int fd = open(path, O_CREAT | O_RDWR, 0600); write(fd, "secret", 6);
    /* What stands for the file, as the kernel has it when a process was started. */
    if (fork() == 0) _exit(0); wait(NULL); sprintf(own, "/proc/self/fd/%d", fd); int m = syscall(SYS_openat, AT_FDCWD, own, O_RDONLY, 0); syscall(SYS_pread64, m, all, sizeof all, 0L);
    try("own", 0, whole); for (int i = 0; i < 4; i++) try("not sealed so", 0, whole & ~seals[i]); try("unsealed", 0, 0); if (getuid() == 0) try("another user's", 65534, whole); return 0;
}
"#;

#[test]
fn forged_files_are_not_taken_for_open_ones() {
    let rig = Rig::new();
    if compiles(&rig, "a", FORGED, &["-w"]) {
        let said = said(&rig, "timeout 20 ./a $T");
        let forged = said.strip_prefix("own: 1\n").expect("what is forged so looks like an open file");
        assert!(forged.lines().count() >= 5 && !forged.contains('1'), "{said}");
    }
}

/// A program that has a file open to log to, and another one that only its user may write, starts one that becomes another user; and after that one that goes on with the log.
const BECOMES: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static char record[512];
/* Has the descriptor mean the secret, by whatever the kernel lets it do. */
static int attacks(int fd, int secret_seen) {
    char own[99]; int done = 0; sprintf(own, "/proc/self/fd/%d", fd);
    done += syscall(SYS_pwrite64, fd, record, sizeof record, 0L) > 0; done += syscall(SYS_write, fd, record, sizeof record) > 0; done += syscall(SYS_ftruncate, fd, 0L) == 0;
    int w = syscall(SYS_openat, AT_FDCWD, own, O_RDWR, 0); if (w >= 0) {
        done += syscall(SYS_pwrite64, w, record, sizeof record, 0L) > 0; char *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, w, 0); if (m != MAP_FAILED) { memcpy(m, record, sizeof record); done++; }
    }
    return done;
}
int main(int n, char **a) {
    char path[300], own[99], number[20]; struct stat st; sprintf(path, "%s/log", a[1]);
    if (n > 2) { write(atoi(a[2]), "logged", 6); return 0; }
    int log = open(path, O_CREAT | O_RDWR, 0666); sprintf(path, "%s/secret", a[1]); int secret = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600); write(secret, "secret", 6);
    if (fork() == 0) _exit(0); wait(NULL); sprintf(own, "/proc/self/fd/%d", secret); syscall(SYS_pread64, syscall(SYS_openat, AT_FDCWD, own, O_RDONLY, 0), record, sizeof record, 0L);
    printf("the secret is known: %d\n", record[0] != 0); fflush(stdout);
    if (fork() == 0) { close(secret); setgid(65534); if (setuid(65534)) _exit(99); int done = attacks(log, secret); write(log, "theirs ", 7); _exit(done); }
    int status; wait(&status); printf("done: %d\n", WEXITSTATUS(status)); fflush(stdout); sprintf(number, "%d", log);
    if (fork() == 0) { execl(a[0], a[0], a[1], number, NULL); _exit(9); }
    wait(&status); char text[99] = ""; pread(secret, text, 98, 0); printf("%d, secret: %s", WEXITSTATUS(status), text); memset(text, 0, 99); pread(log, text, 98, 0); printf(", log: %s\n", text); return 0;
}
"#;

#[test]
fn who_becomes_another_user_changes_no_open_files() {
    let rig = Rig::new();
    // SAFETY: asks for a number.
    if unsafe { libc::getuid() } == 0 && compiles(&rig, "a", BECOMES, &["-w"]) {
        assert_eq!(
            said(&rig, "timeout 20 ./a $T"),
            "the secret is known: 1\ndone: 0\n0, secret: secret, log: theirs logged\n"
        );
    }
}

/// Whether a file that is opened behind another one's close gets what that had with the kernel: as ever, while a process may have it, and behind that again.
const AGAIN: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static char path[300];
static long one(void) { struct stat st; int fd = open(path, O_RDONLY); syscall(SYS_fstat, fd, &st); close(fd); return st.st_ino; }
static int again(void) { long a = one(), b = one(); return a == b; }
int main(int n, char **a) {
    sprintf(path, "%s/f", a[1]); close(open(path, O_CREAT | O_RDWR, 0644)); printf("%d", again());
    pid_t of = vfork(); if (of == 0) { int inside = again(); _exit(inside); }
    int status; waitpid(of, &status, 0); printf(" %d %d", WEXITSTATUS(status), again());
    of = fork(); if (of == 0) _exit(0); waitpid(of, &status, 0); printf(" %d", again());
    /* As far up as an offset can be. */
    char c; int fd = open(path, O_RDONLY); lseek(fd, 0x7fffffffffffffff, SEEK_SET); printf(" %d", read(fd, &c, 1) + read(fd, &c, 1)); printf(" %d\n", lseek(fd, 0, SEEK_CUR) == 0x7fffffffffffffff && lseek(fd, 0, SEEK_SET) == 0); return 0;
}
"#;

#[test]
fn descriptions_are_used_again_when_a_start_is_over() {
    let rig = Rig::new();
    if compiles(&rig, "a", AGAIN, &["-w"]) {
        assert_eq!(said(&rig, "timeout 20 ./a $T"), "1 0 1 1 0 1\n");
    }
}

/// Processes write through one open file, and read through another, all at the same time: each record is there once, and is read once.
const RECORDS: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PROCESSES = 4, EACH = 5000, ALL = PROCESSES * EACH };
int main(int n, char **a) {
    char path[300]; sprintf(path, "%s/f", a[1]); int *seen = mmap(NULL, ALL * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), once = 0;
    int fd = open(path, O_CREAT | O_RDWR, 0644); long record;
    for (long p = 0; p < PROCESSES; p++) if (fork() == 0) { for (long i = 0; i < EACH; i++) { record = p * EACH + i; if (write(fd, &record, 8) != 8) _exit(1); } _exit(0); }
    while (wait(NULL) > 0) {}
    printf("%ld", (long)lseek(fd, 0, SEEK_CUR)); fflush(stdout); lseek(fd, 0, SEEK_SET);
    for (long p = 0; p < PROCESSES; p++) if (fork() == 0) { while (read(fd, &record, 8) == 8) __atomic_add_fetch(&seen[record], 1, __ATOMIC_SEQ_CST); _exit(0); }
    while (wait(NULL) > 0) {}
    for (int i = 0; i < ALL; i++) once += seen[i] == 1;
    printf(" %d of %d\n", once, ALL); return 0;
}
"#;

#[test]
fn records_of_several_processes() {
    let rig = Rig::new();
    if compiles(&rig, "a", RECORDS, &["-w"]) {
        rig.same("timeout 60 ./a $T; echo $?");
    }
}

/// One of those who share an open file has it append, and no more.
const APPENDS: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static void set(int fd, int flags) { if (fork() == 0) _exit(fcntl(fd, F_SETFL, flags)); wait(NULL); }
int main(int n, char **a) {
    char path[300], text[99] = ""; sprintf(path, "%s/f", a[1]); int fd = open(path, O_CREAT | O_RDWR, 0644), other = open(path, O_RDWR | O_APPEND); write(fd, "one ", 4);
    set(fd, O_APPEND); write(other, "two ", 4); write(fd, "three ", 6); printf("%d %ld\n", fcntl(fd, F_GETFL) & O_APPEND, (long)lseek(fd, 0, SEEK_CUR));
    set(fd, 0); lseek(fd, 0, SEEK_SET); write(fd, "ONE", 3); pread(fd, text, 98, 0); printf("%d %s\n", fcntl(fd, F_GETFL) & O_APPEND, text); return 0;
}
"#;

#[test]
fn flags_that_another_process_changes() {
    let rig = Rig::new();
    if compiles(&rig, "a", APPENDS, &["-w"]) {
        rig.same("timeout 60 ./a $T; echo $?");
    }
}
