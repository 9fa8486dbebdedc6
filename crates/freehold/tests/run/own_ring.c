/* A ring that is made by syscall(2), and files that were open before: one by two numbers, which threads use meanwhile, one that is locked, one that a child has. */
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static struct io_uring_params params;
static char *rings;
static struct io_uring_sqe *entries;
static int ring;
static int request(int op, int fd, void *bytes, unsigned len, long long at) {
    memset(entries, 0, sizeof *entries);
    entries->opcode = op;
    entries->fd = fd;
    entries->addr = (unsigned long)bytes;
    entries->len = len;
    entries->off = at;
    unsigned *tail = (unsigned *)(rings + params.sq_off.tail);
    unsigned mask = *(unsigned *)(rings + params.sq_off.ring_mask);
    ((unsigned *)(rings + params.sq_off.array))[*tail & mask] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) != 1) return -1;
    unsigned *head = (unsigned *)(rings + params.cq_off.head);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(rings + params.cq_off.cqes);
    int result = done[*head & *(unsigned *)(rings + params.cq_off.ring_mask)].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}
static const char *path;
static volatile int over;
static char wrong;
static void *opens(void *with) {
    char name[4096], is[8], was[8];
    for (long i = 0; !over; i++) {
        snprintf(name, sizeof name, "%s.%ld.%ld", path, (long)with, i % 7);
        snprintf(was, sizeof was, "%ld", i % 1000);
        int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644), copy = dup(fd);
        if (write(fd, was, sizeof was) != sizeof was || lseek(copy, 0, SEEK_CUR) != sizeof was || pread(copy, is, sizeof is, 0) != sizeof is || memcmp(is, was, sizeof is)) wrong = 1;
        if (dup2(fd, copy) != copy || close(fd) || pread(copy, is, sizeof is, 0) != sizeof is || memcmp(is, was, sizeof is) || close(copy)) wrong = 1;
    }
    return 0;
}
int main(int argc, char **argv) {
    char in[64] = {0};
    path = argv[1];
    int with_child = open(path, O_RDWR | O_CREAT, 0644), ends[2];
    if (pipe(ends)) return 1;
    pid_t child = fork();
    if (!child) _exit(read(ends[0], in, 1) != 1);
    int early = open(path, O_RDWR | O_CREAT | O_APPEND, 0644), again = dup(early), none = open(path, O_RDONLY | O_CLOEXEC), locked = open(path, O_RDWR);
    struct flock whole = {.l_type = F_WRLCK};
    printf("locks %d\n", fcntl(locked, F_SETLK, &whole));
    printf("writes %zd\n", write(early, "before the ring", 15));
    printf("skips %zd\n", read(none, in, 7));
    pthread_t threads[3];
    for (long i = 0; i < 3; i++) pthread_create(&threads[i], 0, opens, (void *)i);
    usleep(20000);
    ring = syscall(SYS_io_uring_setup, 8, &params);
    if (ring < 0) return 77;
    size_t size = params.sq_off.array + params.sq_entries * 4, other = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    rings = mmap(0, size > other ? size : other, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    entries = mmap(0, params.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    if (rings == MAP_FAILED || entries == MAP_FAILED) return 77;
    printf("reads on %d %.8s\n", request(IORING_OP_READ, none, in, 8, -1), in);
    printf("closed by exec %d, not %d\n", fcntl(none, F_GETFD), fcntl(early, F_GETFD));
    printf("writes %d\n", request(IORING_OP_WRITE, again, "by it", 5, 0));
    printf("appends %d\n", fcntl(early, F_GETFL) & O_APPEND);
    printf("together %ld %ld\n", (long)lseek(early, 0, SEEK_CUR), (long)lseek(again, 0, SEEK_CUR));
    int late = open(path, O_RDONLY);
    printf("late %d %.20s\n", request(IORING_OP_READ, late, in, 20, 0), in);
    over = 1;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], 0);
    printf("others %s\n", wrong ? "wrong" : "right");
    printf("child's %zd %.20s\n", pread(with_child, in, 20, 0), in);
    printf("locked %zd %.20s\n", pread(locked, in, 20, 0), in);
    if (write(ends[1], "", 1) != 1 || waitpid(child, 0, 0) != child) return 1;
    return 0;
}
