/*
 * A program that wants order on file descriptors and knows nothing of Freehold but the two functions and the ioctl: order.rs compiles it,
 * and runs it on mounts, under the preloaded library and on other file systems.
 *
 *     order ask DIR        asks for barriers on descriptors of all kinds and prints how they were had
 *     order fsync FILE     writes the file anew, 256 KiB, and calls fsync and fdatasync
 *     order sync WAY [FILE]  writes the file anew, if there is one, and syncs everything, or what WAY is about
 *     order steps DIR N    N times (0: for ever): writes to files a-*, barrier, writes to files b-*
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

static const char *way;

static int barrier(int fd, int datasync)
{
    int (*function)(int);
    *(void **)&function = dlsym(RTLD_DEFAULT, datasync ? "fdatabarrier" : "fbarrier");
    if (function) {
        way = "library";
        return function(fd);
    }
    way = "ioctl";
    if (ioctl(fd, _IO('F', datasync ? 0xb1 : 0xb0)) == 0)
        return 0;
    if (errno != ENOTTY)
        return -1;
    way = "sync";
    return datasync ? fdatasync(fd) : fsync(fd);
}

static void ask(const char *dir)
{
    static char data[256 << 10];
    int fd, status, terminal;
    CHECK(chdir(dir) == 0);
    memset(data, 7, sizeof data);
    CHECK((fd = open("f", O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
    CHECK(write(fd, data, sizeof data) == sizeof data);
    CHECK(barrier(fd, 0) == 0);
    CHECK(barrier(fd, 1) == 0);
    printf("%s\n", way);
    /* In a child, which has the descriptor from its parent. */
    if (fork() == 0)
        _exit(pwrite(fd, "child", 5, 0) == 5 && barrier(fd, 1) == 0 ? 0 : 1);
    CHECK(wait(&status) > 0 && status == 0);
    /* Other requests are nobody's, before and after. */
    CHECK(ioctl(fd, _IO('F', 0xb2)) == -1 && errno == ENOTTY);
    CHECK(ioctl(fd, 0x5413 /* TIOCGWINSZ */, data) == -1 && errno == ENOTTY);
    CHECK(barrier(fd, 1) == 0);
    CHECK(close(fd) == 0);
    CHECK(barrier(fd, 1) == -1 && errno == EBADF);
    CHECK(barrier(-1, 0) == -1 && errno == EBADF);
    CHECK((fd = open("f", O_RDONLY)) >= 0 && barrier(fd, 0) == 0 && close(fd) == 0);
    CHECK((fd = open(".", O_RDONLY | O_DIRECTORY)) >= 0 && barrier(fd, 0) == 0 && close(fd) == 0);
    /* Not of a volume. */
    char name[] = "/tmp/freehold-order-XXXXXX";
    CHECK((fd = mkstemp(name)) >= 0 && unlink(name) == 0 && write(fd, data, 100) == 100);
    CHECK(barrier(fd, 0) == 0 && barrier(fd, 1) == 0 && close(fd) == 0);
    CHECK((terminal = open("/dev/null", O_RDWR)) >= 0 && barrier(terminal, 0) == -1 && errno == EINVAL);
}

static void synced(const char *file)
{
    static char data[256 << 10];
    int fd;
    CHECK((fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
    CHECK(write(fd, data, sizeof data) == sizeof data);
    CHECK(fsync(fd) == 0);
    CHECK(pwrite(fd, data, sizeof data, sizeof data) == sizeof data);
    CHECK(fdatasync(fd) == 0);
}

static void synced_by(const char *how, const char *file)
{
    static char data[256 << 10];
    int fd = -1;
    if (file) {
        CHECK((fd = open(file, O_RDWR | O_CREAT | O_TRUNC, 0644)) >= 0);
        CHECK(write(fd, data, sizeof data) == sizeof data);
    }
    if (!strcmp(how, "sync"))
        sync();
    else if (!strcmp(how, "syncfs"))
        CHECK(syncfs(fd) == 0);
    else
        CHECK(syscall(strtol(how, NULL, 10), fd, 0, 0, 0) == 0);
}

static int opened(char who, const char *what)
{
    char name[32];
    int fd;
    snprintf(name, sizeof name, "%c-%s", who, what);
    CHECK((fd = open(name, O_RDWR)) >= 0);
    return fd;
}

/* As steps.rs has it. */
static void step(char who, int new, int over, uint64_t i)
{
    enum { WORDS = 15 * 512 };
    static uint64_t pages[WORDS];
    const ssize_t page = 4096;
    char from[32], to[32];
    int large = i % 4 == 1 || i % 4 == 2;
    uint64_t begin = 0;
    for (uint64_t before = 1; before < i; before++)
        begin += before % 4 == 1 || before % 4 == 2 ? 15 : 1;
    for (int at = 0; at < WORDS; at++)
        pages[at] = i;
    CHECK(pwrite(new, pages, (large ? 15 : 1) * page, begin * page) == (large ? 15 : 1) * page);
    CHECK(pwrite(over, pages, (large ? 8 : 1) * page, 0) == (large ? 8 : 1) * page);
    snprintf(from, sizeof from, "%c-at-%llu", who, (unsigned long long)i - 1);
    snprintf(to, sizeof to, "%c-at-%llu", who, (unsigned long long)i);
    CHECK(rename(from, to) == 0);
}

/* As `pause` there. */
static void pause_at(uint64_t i, uint64_t place)
{
    if (i % 3 == place)
        usleep(15000);
}

static void steps(const char *dir, uint64_t n)
{
    CHECK(chdir(dir) == 0);
    int a_new = opened('a', "new"), a_over = opened('a', "over");
    int b_new = opened('b', "new"), b_over = opened('b', "over");
    for (uint64_t i = 1; n == 0 || i <= n; i++) {
        step('a', a_new, a_over, i);
        if (n)
            pause_at(i, 0);
        CHECK(barrier(a_over, 1) == 0);
        if (n)
            pause_at(i, 1);
        step('b', b_new, b_over, i);
        if (n)
            pause_at(i, 2);
        if (i == 1) {
            printf("%s\n", way);
            fflush(stdout);
        }
    }
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3);
    if (!strcmp(argv[1], "ask"))
        ask(argv[2]);
    else if (!strcmp(argv[1], "fsync"))
        synced(argv[2]);
    else if (!strcmp(argv[1], "sync"))
        synced_by(argv[2], argv[3]);
    else
        steps(argv[2], strtoull(argv[3], NULL, 10));
    return 0;
}
