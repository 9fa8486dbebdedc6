//! Small programs in C, as in `c_programs`: what processes that share an open file, or are sent one, may do to each other.

use crate::c_programs::compiles;
use crate::rig::{MOUNT, Rig};
use std::path::Path;

/// Runs it in the volume; what it prints.
fn said(rig: &Rig, script: &str) -> String {
    let out = rig.bash(script, Path::new(MOUNT));
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
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
