/* Writes files and makes each durable, or checks such files. Part of the demo: it is compiled and run inside of the volume, and
 * its work is cut off by a crash.
 *
 *   churn write DIR SEED       makes DIR/f0, f1, ... for ever. After a file and its directory are synced, its name and checksum go
 *                              to standard output: that line is the promise which the file system must keep.
 *   churn check DIR < LINES    reads the files of such lines; says how many were checked, fails at the first wrong one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX = 1 << 20 };
static unsigned char data[MAX];

static void die(const char *what, const char *name)
{
    fprintf(stderr, "churn: %s %s: %s\n", what, name, strerror(errno));
    exit(1);
}

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static uint64_t checksum(const unsigned char *bytes, size_t len)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static void write_all(int fd, const void *from, size_t len, const char *name)
{
    const char *at = from;
    while (len > 0) {
        ssize_t n = write(fd, at, len);
        if (n < 0)
            die("write", name);
        at += n;
        len -= n;
    }
}

static void write_files(const char *dir, uint64_t seed)
{
    char name[4096], line[4200];
    int top = open(dir, O_RDONLY | O_DIRECTORY);
    if (top < 0)
        die("open", dir);
    for (unsigned i = 0;; i++) {
        uint64_t state = seed * 1000003 + i + 1;
        size_t len = next(&state) % (i % 16 == 0 ? MAX : 20000);
        for (size_t at = 0; at < len; at += 8) {
            uint64_t word = next(&state);
            memcpy(data + at, &word, len - at < 8 ? len - at : 8);
        }
        snprintf(name, sizeof name, "%s/f%u", dir, i);
        int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (fd < 0)
            die("create", name);
        write_all(fd, data, len, name);
        if (fsync(fd) != 0 || fsync(top) != 0)
            die("fsync", name);
        close(fd);
        int n = snprintf(line, sizeof line, "f%u %zu %016llx\n", i, len, (unsigned long long)checksum(data, len));
        write_all(1, line, n, "standard output");
    }
}

static void check_files(const char *dir)
{
    char file[64], name[4096];
    size_t len;
    unsigned long long want;
    unsigned checked = 0;
    while (scanf("%63s %zu %llx", file, &len, &want) == 3) {
        snprintf(name, sizeof name, "%s/%s", dir, file);
        int fd = open(name, O_RDONLY);
        if (fd < 0)
            die("open", name);
        size_t have = 0;
        ssize_t n;
        while ((n = read(fd, data + have, MAX - have)) > 0)
            have += n;
        if (n < 0)
            die("read", name);
        close(fd);
        if (have != len || checksum(data, have) != want) {
            fprintf(stderr, "churn: %s is not what was synced (%zu bytes, expected %zu)\n", name, have, len);
            exit(1);
        }
        checked++;
    }
    printf("%u\n", checked);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "write") == 0)
        write_files(argv[2], strtoull(argv[3], NULL, 10));
    else if (argc == 3 && strcmp(argv[1], "check") == 0)
        check_files(argv[2]);
    else
        fprintf(stderr, "usage: churn write DIR SEED | churn check DIR\n");
    return argc == 3 ? 0 : 2;
}
