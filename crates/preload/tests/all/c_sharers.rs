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

/// Record locks that the open file itself owns: whoever has it after fork or exec has them, and they go with the last of its descriptors, wherever that is.
const OWNED: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>
static int lock(int fd, int command, int type, int at, int len) { struct flock l = { .l_type = type, .l_start = at, .l_len = len }; errno = 0; return fcntl(fd, command, &l) ? errno : command == F_OFD_GETLK || command == F_GETLK ? l.l_type * 100 + l.l_start * 10 + (l.l_pid == -1) : 0; }
static void say(int what) { printf("%d ", what); fflush(stdout); }
static int child(void) { int pid = fork(); if (!pid) return 1; waitpid(pid, NULL, 0); return 0; }
#define SET(fd, type, at, len) say(lock(fd, F_OFD_SETLK, type, at, len))
#define GET(fd, type, at, len) say(lock(fd, F_OFD_GETLK, type, at, len))
int main(int n, char **a) {
    char number[20]; int one, two, pid, go[2]; chdir(a[1]);
    if (n > 2) {
        one = atoi(a[2]); two = open("f", O_RDWR); SET(two, F_WRLCK, 3, 1); SET(one, F_WRLCK, 3, 1); GET(two, F_WRLCK, 0, 9); say(lock(two, F_GETLK, F_RDLCK, 0, 9));
        SET(one, F_UNLCK, 2, 1); SET(two, F_WRLCK, 2, 1); SET(one, F_RDLCK, 2, 1); close(one); SET(two, F_WRLCK, 0, 0); printf("\n"); return 0;
    }
    one = open("f", O_CREAT | O_RDWR, 0644); two = open("f", O_RDWR);
    SET(one, F_WRLCK, 0, 9); GET(one, F_WRLCK, 0, 9);
    if (child()) { SET(one, F_RDLCK, 0, 9); GET(one, F_WRLCK, 0, 9); SET(two, F_WRLCK, 0, 1); SET(one, F_UNLCK, 0, 4); SET(two, F_WRLCK, 0, 4); _exit(0); }
    SET(two, F_RDLCK, 0, 5); SET(two, F_WRLCK, 4, 1); SET(two, F_RDLCK, 4, 1); SET(one, F_RDLCK, 1, 1); SET(two, F_UNLCK, 0, 0); SET(one, F_UNLCK, 0, 0); printf("\n");
    pipe(go); SET(one, F_WRLCK, 5, 1); pid = fork(); if (!pid) { char c; close(go[1]); read(go[0], &c, 1); _exit(0); }
    close(go[0]); close(one); SET(two, F_RDLCK, 5, 1); GET(two, F_RDLCK, 0, 0); close(go[1]); waitpid(pid, NULL, 0); SET(two, F_WRLCK, 0, 0); SET(two, F_UNLCK, 0, 0); printf("\n");
    one = open("f", O_RDWR); SET(one, F_WRLCK, 0, 2); pid = fork(); if (!pid) { say(lock(two, F_OFD_SETLKW, F_WRLCK, 0, 1)); _exit(0); }
    usleep(100000); SET(one, F_UNLCK, 0, 1); waitpid(pid, NULL, 0); SET(one, F_WRLCK, 0, 1); GET(one, F_RDLCK, 0, 0); SET(two, F_UNLCK, 0, 0); SET(one, F_UNLCK, 0, 0); printf("\n");
    say(flock(one, LOCK_EX)); SET(one, F_WRLCK, 1, 1); if (child()) { say(flock(one, LOCK_UN)); say(flock(two, LOCK_EX | LOCK_NB)); SET(two, F_WRLCK, 1, 1); SET(one, F_UNLCK, 0, 0); SET(two, F_WRLCK, 1, 1); _exit(0); }
    say(flock(one, LOCK_EX | LOCK_NB) ? errno : 0); SET(one, F_WRLCK, 1, 1); close(two); say(flock(one, LOCK_EX | LOCK_NB)); SET(one, F_WRLCK, 2, 8); printf("\n");
    sprintf(number, "%d", one); execl("/proc/self/exe", "a", a[1], number, NULL); return 9;
}
"#;

#[test]
fn locks_of_open_files_follow_them() {
    let rig = Rig::new();
    if compiles(&rig, "a", OWNED, &["-w"]) {
        rig.same("timeout 20 ./a $T; echo $?");
    }
}

/// Several messages at once, of which some carry an open file. Who does not wait for all
/// of them may get fewer while they are being sent: it begins when they have been.
const SENT: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
static char control[3][CMSG_SPACE(2 * sizeof(int))], text[3]; static struct iovec parts[3]; static struct mmsghdr all[3];
static void begin(int carries) {
    memset(all, 0, sizeof all);
    for (int i = 0; i < 3; i++) {
        text[i] = 'a' + i; parts[i] = (struct iovec) { text + i, 1 }; all[i].msg_hdr.msg_iov = parts + i; all[i].msg_hdr.msg_iovlen = 1;
        if (carries & 1 << i) { all[i].msg_hdr.msg_control = control[i]; all[i].msg_hdr.msg_controllen = sizeof control[i]; }
    }
}
static void put(int i, int *fds) { struct cmsghdr *c = CMSG_FIRSTHDR(&all[i].msg_hdr); c->cmsg_level = SOL_SOCKET; c->cmsg_type = SCM_RIGHTS; c->cmsg_len = CMSG_LEN(2 * sizeof(int)); memcpy(CMSG_DATA(c), fds, 2 * sizeof(int)); }
int main(int n, char **a) {
    int ends[2], sent[2], status; char data[20]; chdir(a[1]); socketpair(AF_UNIX, SOCK_DGRAM, 0, ends); pipe(sent);
    if (fork() == 0) {
        int got[2]; close(ends[0]); close(sent[1]); read(sent[0], data, 1); begin(7); n = recvmmsg(ends[1], all, 3, MSG_WAITFORONE, NULL); printf("%d %.3s\n", n, text);
        for (int i = 0; i < 3; i += 2) { memcpy(got, CMSG_DATA(CMSG_FIRSTHDR(&all[i].msg_hdr)), sizeof got); memset(data, 0, 20); n = read(got[0], data, 4); printf("%d %s %d\n", n, data, (int)write(got[1], "more", 4)); }
        begin(0); printf("%d\n", recvmmsg(ends[1], all, 3, 0, NULL)); return 0;
    }
    close(ends[1]); int one[2], two[2]; FILE *f = fopen("f", "w"); fputs("1234567890", f); fclose(f);
    one[0] = open("f", O_RDONLY); one[1] = open("g", O_CREAT | O_WRONLY, 0644); two[0] = dup(one[0]); two[1] = open("h", O_CREAT | O_WRONLY, 0644);
    begin(5); put(0, one); put(2, two); printf("%d ", sendmmsg(ends[0], all, 3, 0)); close(sent[1]); begin(0); usleep(100000); printf("%d\n", sendmmsg(ends[0], all, 3, 0));
    wait(&status); printf("%d\n", (int)lseek(one[0], 0, SEEK_CUR)); return status;
}
"#;

#[test]
fn what_comes_in_many_messages() {
    let rig = Rig::new();
    if compiles(&rig, "a", SENT, &["-w"]) {
        rig.same("timeout 20 ./a $T; echo $?; cd $T; cat g h");
    }
}
