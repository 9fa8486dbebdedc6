/* Files that become longer while they are mapped, in each way that makes them so. Says how each child ended, and leaves what they stored. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1 << 20)

static char path[4000], page[4096];
static int fd;
static char *p;

/* Makes the file with this size, and maps more of it. */
static void begin(long size) {
    fd = open(path, O_CREAT | O_RDWR, 0644);
    if (fd < 0 || ftruncate(fd, size) || (p = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED) {
        perror(path);
        _exit(9);
    }
}

static void store(long at) {
    p[at] = 'x';
    if (msync(p, SIZE, MS_SYNC)) _exit(8);
}

static void child(int way) {
    char moved[4100];
    int other;
    switch (way) {
    case 0: begin(4096); ftruncate(fd, SIZE); store(SIZE - 1); break;
    case 1: begin(4096); pwrite(fd, page, 4096, 8192); store(8192 + 5); break;
    case 2: begin(0); write(fd, "hello", 5); store(1); break;
    case 3: begin(4096); posix_fallocate(fd, 0, SIZE); store(SIZE - 1); break;
    case 4: begin(4096); unlink(path); ftruncate(fd, SIZE); store(SIZE - 1); break;
    case 5: begin(4096); other = open(path, O_WRONLY | O_APPEND); close(fd);
        for (int i = 0; i < 4; i++) write(other, page, 4096);
        store(3 * 4096); break;
    case 6: begin(4096); truncate(path, SIZE); store(SIZE - 1); break;
    case 7: begin(4096); sprintf(moved, "%s.moved", path); rename(path, moved); ftruncate(fd, SIZE); store(SIZE - 1); break;
    case 8: begin(4096); munmap(p, SIZE); begin(4096); p = mremap(p, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
        ftruncate(fd, 2 * SIZE); store(2 * SIZE - 1); break;
    case 9: begin(SIZE); other = open(path, O_WRONLY | O_TRUNC); write(other, page, 4096); write(other, page, 4096); store(5000); break;
    case 10: begin(4096); if (fork()) { int status; wait(&status); _exit(status ? 7 : 0); }
        ftruncate(fd, SIZE); store(SIZE - 1); break;
    /* More mappings than are kept, one after the other: the descriptors of those that are gone are closed. */
    case 11: for (int i = 0; i < 300; i++) { begin(4096); ftruncate(fd, SIZE); store(SIZE - 1); munmap(p, SIZE); close(fd); unlink(path); }
        break;
    }
    _exit(0);
}

int main(int n, char **a) {
    memset(page, 'p', sizeof page);
    for (int way = 0; way <= 11; way++) {
        int status;
        sprintf(path, "%s/grown.%d", a[1], way);
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) child(way);
        waitpid(pid, &status, 0);
        printf("%d: signal %d status %d\n", way, WTERMSIG(status), WEXITSTATUS(status));
    }
    return 0;
}
