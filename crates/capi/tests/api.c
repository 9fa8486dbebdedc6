/* Uses everything of freehold.h against a served volume; run by c.rs with the path of the socket. */
#define _GNU_SOURCE
#include "freehold.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CHECK(what)                                                                     \
    do {                                                                                \
        if (!(what)) {                                                                  \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, fh_last_message()); \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

enum { BIG = 1000000 };

static unsigned char *pattern(size_t len, unsigned seed) {
    unsigned char *bytes = malloc(len);
    size_t i;
    CHECK(bytes != NULL);
    for (i = 0; i < len; i++)
        bytes[i] = (unsigned char)((i * 2654435761u >> 13) + seed);
    return bytes;
}

/* On what is of no volume they are syncs. */
static void descriptors(void) {
    char name[] = "/tmp/freehold-capi-XXXXXX";
    int fd = mkstemp(name), ends[2];
    CHECK(fd >= 0 && unlink(name) == 0 && write(fd, "x", 1) == 1);
    CHECK(fh_barrier_fd(fd) == 0 && fh_databarrier_fd(fd) == 0);
    CHECK(close(fd) == 0 && fh_barrier_fd(fd) == -EBADF && fh_databarrier_fd(-1) == -EBADF);
    CHECK(strlen(fh_last_message()) > 0);
    CHECK(pipe(ends) == 0 && fh_barrier_fd(ends[0]) == -EINVAL && fh_databarrier_fd(ends[1]) == -EINVAL);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    CHECK(FH_IOC_BARRIER == _IO('F', 0xb0) && FH_IOC_DATABARRIER == _IO('F', 0xb1));
    CHECK((fd = open("/tmp", O_RDONLY)) >= 0 && ioctl(fd, FH_IOC_BARRIER) == -1 && errno == ENOTTY);
    CHECK(close(fd) == 0);
}

/* errno is the caller's, whatever fails in here. */
static void leaves_errno(fh_session *s) {
    fh_session *other;
    fh_file *f;
    struct fh_attr a;
    errno = 4711;
    CHECK(fh_connect("/nowhere/at/all", &other) == -ENOENT && errno == 4711);
    CHECK(fh_barrier_fd(-1) == -EBADF && errno == 4711);
    CHECK(fh_open(s, "/none", O_RDONLY, 0, &f) == -ENOENT && errno == 4711);
    CHECK(fh_stat(s, "/", &a) == 0 && errno == 4711);
    errno = 0;
}

/* What listens there does not speak as a manager does. */
static void other_sockets(const char *socket_path) {
    struct sockaddr_un at = {AF_UNIX, ""};
    fh_session *other;
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(listener >= 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s-2", socket_path);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    CHECK(fh_connect(at.sun_path, &other) == -EPROTO);
    CHECK(close(listener) == 0 && fh_connect(at.sun_path, &other) == -ECONNREFUSED);
    CHECK(unlink(at.sun_path) == 0);
}

static void files(fh_session *s) {
    fh_file *f;
    struct fh_attr a;
    unsigned char *out = pattern(BIG, 1), *in = calloc(1, BIG + 10);
    CHECK(fh_open(s, "/f", O_RDWR, 0, &f) == -ENOENT);
    CHECK(fh_open(s, "/f", O_RDWR | O_CREAT | O_EXCL, 0666, &f) == 0);
    CHECK(fh_pwrite(f, out, BIG, 5) == BIG);
    CHECK(fh_pread(f, in, BIG + 10, 5) == BIG && memcmp(in, out, BIG) == 0);
    CHECK(fh_pread(f, in, 5, 0) == 5 && memcmp(in, "\0\0\0\0\0", 5) == 0);
    CHECK(fh_pread(f, in, 5, BIG + 5) == 0);
    CHECK(fh_pread(f, NULL, 0, 0) == 0 && fh_pwrite(f, NULL, 0, 0) == 0);
    CHECK(fh_fsync(f) == 0 && fh_fdatasync(f) == 0 && fh_fbarrier(f) == 0 && fh_fdatabarrier(f) == 0);
    CHECK(fh_fstat(f, &a) == 0 && a.size == BIG + 5 && S_ISREG(a.mode) && (a.mode & 07777) == 0644);
    CHECK(a.nlink == 1 && a.blocks > 0 && a.mtime.sec > 0 && a.mtime.nsec < 1000000000u);
    CHECK(fh_ftruncate(f, 7) == 0 && fh_fstat(f, &a) == 0 && a.size == 7);
    CHECK(fh_close(f) == 0);
    CHECK(fh_truncate(s, "/f", 3) == 0 && fh_stat(s, "/f", &a) == 0 && a.size == 3);
    CHECK(fh_open(s, "/f", O_WRONLY | O_APPEND | O_CLOEXEC, 0, &f) == 0);
    CHECK(fh_pwrite(f, "end", 3, 0) == 3 && fh_fstat(f, &a) == 0 && a.size == 6);
    CHECK(fh_pread(f, in, 1, 0) == -EBADF);
    CHECK(fh_close(f) == 0);
    CHECK(fh_open(s, "/f", O_WRONLY, 0, &f) == 0);
    CHECK(fh_pwrite(f, "be", 2, 0) == 2 && fh_fstat(f, &a) == 0 && a.size == 6);
    CHECK(fh_pread(f, in, 1, 0) == -EBADF && fh_close(f) == 0);
    CHECK(fh_open(s, "/f", O_RDONLY | O_APPEND, 0, &f) == 0);
    CHECK(fh_pread(f, in, 2, 0) == 2 && memcmp(in, "be", 2) == 0 && fh_pwrite(f, "x", 1, 0) == -EBADF);
    CHECK(fh_close(f) == 0);
    CHECK(fh_open(s, "/f", O_RDWR | O_CREAT | O_EXCL, 0666, &f) == -EEXIST);
    CHECK(fh_open(s, "/f", O_RDONLY | O_TRUNC, 0, &f) == -EINVAL);
    CHECK(fh_open(s, "/f", O_ACCMODE, 0, &f) == -EINVAL);
    CHECK(fh_open(s, "/f", O_RDONLY | O_ASYNC, 0, &f) == -EINVAL);
    CHECK(fh_open(s, "/f", O_RDONLY | O_DIRECTORY, 0, &f) == -ENOTDIR);
    CHECK(fh_open(s, "/", O_RDWR | O_TMPFILE, 0600, &f) == 0 && fh_close(f) == 0);
    free(out);
    free(in);
}

static void names(fh_session *s) {
    struct fh_attr a, b;
    struct fh_statfs v;
    char text[64];
    char long_name[300];
    CHECK(fh_mkdir(s, "/d", 0777) == 0 && fh_mkdir(s, "/d", 0777) == -EEXIST);
    CHECK(fh_stat(s, "/d", &a) == 0 && S_ISDIR(a.mode) && (a.mode & 07777) == 0755);
    CHECK(fh_chmod(s, "/d", 0700) == 0 && fh_stat(s, "/d", &a) == 0 && (a.mode & 07777) == 0700);
    CHECK(fh_link(s, "/f", "/d/g") == 0);
    CHECK(fh_stat(s, "/f", &a) == 0 && fh_stat(s, "/d/g", &b) == 0 && a.ino == b.ino && b.nlink == 2);
    CHECK(fh_symlink(s, "d/g", "/s") == 0);
    CHECK(fh_lstat(s, "/s", &b) == 0 && S_ISLNK(b.mode) && fh_stat(s, "/s", &b) == 0 && a.ino == b.ino);
    CHECK(fh_readlink(s, "/s", text, sizeof text) == 3 && strcmp(text, "d/g") == 0);
    CHECK(fh_readlink(s, "/s", text, 3) == -ERANGE && fh_readlink(s, "/s", NULL, 3) == -EFAULT);
    CHECK(fh_readlink(s, "/d", text, sizeof text) == -EINVAL);
    CHECK(fh_rename(s, "/d/g", "/f2", 0) == 0 && fh_stat(s, "/d/g", &b) == -ENOENT);
    CHECK(fh_rename(s, "/d", "/f2", FH_RENAME_NOREPLACE) == -EEXIST);
    CHECK(fh_rename(s, "/d", "/f2", FH_RENAME_EXCHANGE) == 0 && fh_stat(s, "/d", &b) == 0 && S_ISREG(b.mode));
    CHECK(fh_rename(s, "/d", "/f2", 77) == -EINVAL);
    CHECK(fh_rmdir(s, "/d") == -ENOTDIR && fh_unlink(s, "/f2") < 0 && fh_rmdir(s, "/f2") == 0);
    CHECK(fh_unlink(s, "/d") == 0 && fh_unlink(s, "/s") == 0);
    CHECK(fh_statfs(s, &v) == 0 && v.block_size == 4096 && v.blocks > v.blocks_free && v.name_max == 255);
    memset(long_name, 'x', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    CHECK(fh_mkdir(s, long_name, 0755) == -ENAMETOOLONG);
    CHECK(fh_sync(s) == 0);
}

static void directories(fh_session *s) {
    fh_dir *d;
    struct fh_dirent e;
    char name[32];
    char seen[600] = {0};
    int i, n = 0, got;
    uint64_t middle = 0;
    CHECK(fh_mkdir(s, "/many", 0755) == 0);
    for (i = 0; i < 600; i++) {
        sprintf(name, "/many/%d", i);
        CHECK(fh_mkdir(s, name, 0755) == 0);
    }
    CHECK(fh_opendir(s, "/many", &d) == 0);
    while ((got = fh_readdir(d, &e)) == 1) {
        CHECK(S_ISDIR(e.mode) && strlen(e.name) == e.name_len && !seen[atoi(e.name)]);
        seen[atoi(e.name)] = 1;
        if (++n == 400)
            middle = e.next_offset;
    }
    CHECK(got == 0 && n == 600 && fh_readdir(d, &e) == 0);
    CHECK(fh_seekdir(d, middle) == 0);
    for (n = 0; fh_readdir(d, &e) == 1; n++)
        ;
    CHECK(n == 200 && fh_closedir(d) == 0);
    CHECK(fh_opendir(s, "/f", &d) == -ENOTDIR);
}

static void attributes(fh_session *s) {
    char value[64];
    CHECK(fh_setxattr(s, "/f", "user.colour", "blue", 4, FH_XATTR_REPLACE) == -ENODATA);
    CHECK(fh_setxattr(s, "/f", "user.colour", "blue", 4, 0) == 0);
    CHECK(fh_setxattr(s, "/f", "user.colour", "red", 3, FH_XATTR_CREATE) == -EEXIST);
    CHECK(fh_setxattr(s, "/f", "user.colour", "red", 3, 99) == -EINVAL);
    CHECK(fh_getxattr(s, "/f", "user.colour", NULL, 0) == 4);
    CHECK(fh_getxattr(s, "/f", "user.colour", value, 3) == -ERANGE);
    CHECK(fh_getxattr(s, "/f", "user.colour", value, sizeof value) == 4 && memcmp(value, "blue", 4) == 0);
    CHECK(fh_listxattr(s, "/f", value, sizeof value) == 12 && strcmp(value, "user.colour") == 0);
    CHECK(fh_removexattr(s, "/f", "user.colour") == 0);
    CHECK(fh_getxattr(s, "/f", "user.colour", value, sizeof value) == -ENODATA);
}

static void mistakes(fh_session *s) {
    fh_session *none = NULL;
    fh_file *f = NULL;
    struct fh_attr a;
    struct fh_completion c;
    fh_queue *q;
    char text[100];
    CHECK(fh_connect(NULL, &none) == -EFAULT && fh_connect("/nowhere", NULL) == -EFAULT);
    CHECK(fh_connect("/nowhere/at/all", &none) == -ENOENT && none == NULL);
    CHECK(strstr(fh_last_message(), "/nowhere/at/all") != NULL);
    CHECK(fh_disconnect(NULL) == -EINVAL && fh_close(NULL) == -EINVAL && fh_closedir(NULL) == -EINVAL);
    CHECK(fh_stat(NULL, "/", &a) == -EINVAL && fh_stat(s, NULL, &a) == -EFAULT && fh_stat(s, "/", NULL) == -EFAULT);
    CHECK(fh_open(s, "/f", O_RDONLY, 0, NULL) == -EFAULT && fh_open(s, "", O_RDONLY, 0, &f) == -ENOENT);
    CHECK(fh_open(s, "/f", O_RDONLY, 0, &f) == 0);
    CHECK(fh_pread(f, NULL, 1, 0) == -EFAULT && fh_pread(f, text, SIZE_MAX, 0) == -EINVAL);
    CHECK(fh_pread(f, text, 10, UINT64_MAX) <= 0);
    CHECK(fh_pread(NULL, text, 1, 0) == -EINVAL && fh_fstat(f, NULL) == -EFAULT && fh_fsync(NULL) == -EINVAL);
    CHECK(fh_close(f) == 0);
    CHECK(fh_readdir(NULL, NULL) == -EINVAL && fh_statfs(s, NULL) == -EFAULT);
    CHECK(fh_queue_new(s, 0, &q) == -EINVAL && fh_queue_new(s, 5000, &q) == -EINVAL);
    CHECK(fh_queue_new(s, 1, NULL) == -EFAULT && fh_queue_free(NULL) == -EINVAL);
    CHECK(fh_poll(NULL, &c, 1, 0) == -EINVAL);
    CHECK(fh_queue_new(s, 1, &q) == 0);
    CHECK(fh_poll(q, NULL, 1, 0) == -EFAULT && fh_poll(q, &c, 0, 0) == -EINVAL && fh_poll(q, &c, 1, -1) == 0);
    CHECK(fh_submit_pread(q, NULL, text, 1, 0, 0) == -EINVAL && fh_submit_open(q, NULL, 0, 0, 0) == -EFAULT);
    CHECK(fh_submit_stat(q, "/", NULL, 0) == -EFAULT);
    CHECK(fh_queue_free(q) == 0);
    CHECK(fh_strerror(-ENOENT, text, sizeof text) == 0 && strcmp(text, "No such file or directory") == 0);
    CHECK(fh_strerror(-ENOENT, text, 8) == 0 && strcmp(text, "No such") == 0);
    CHECK(fh_strerror(-ENOENT, text, 0) == -EINVAL && fh_strerror(-ENOENT, NULL, 5) == -EFAULT);
}

enum { DEPTH = 100, BLOCK = 8192 };

static void asynchronous(fh_session *s) {
    fh_queue *q, *other;
    fh_file *f, *g;
    struct fh_completion c[DEPTH];
    struct fh_attr a;
    unsigned char *out = pattern(DEPTH * BLOCK, 7), *in = calloc(DEPTH, BLOCK);
    char seen[DEPTH] = {0};
    int i, n, done;
    CHECK(fh_queue_new(s, DEPTH, &q) == 0);
    CHECK(fh_submit_open(q, "/async", O_RDWR | O_CREAT, 0644, 42) == 0);
    CHECK(fh_poll(q, c, DEPTH, -1) == 1 && c[0].user_data == 42 && c[0].result == 0 && c[0].file != NULL);
    f = c[0].file;
    for (i = 0; i < DEPTH; i++)
        CHECK(fh_submit_pwrite(q, f, out + i * BLOCK, BLOCK, (uint64_t)i * BLOCK, (uint64_t)i) == 0);
    CHECK(fh_submit_fsync(q, f, 0) == -EAGAIN);
    CHECK(fh_close(f) == -EBUSY);
    /* Blocking calls go on although all places of asynchronous requests are taken. */
    CHECK(fh_stat(s, "/async", &a) == 0);
    for (done = 0; done < DEPTH; done += n) {
        n = fh_poll(q, c, 7, 10000);
        CHECK(n > 0 && n <= 7);
        for (i = 0; i < n; i++) {
            CHECK(c[i].result == BLOCK && !seen[c[i].user_data] && c[i].file == NULL);
            seen[c[i].user_data] = 1;
        }
    }
    CHECK(fh_poll(q, c, DEPTH, -1) == 0);
    CHECK(fh_submit_fsync(q, f, 1) == 0 && fh_submit_fdatasync(q, f, 2) == 0);
    CHECK(fh_submit_stat(q, "/async", &a, 3) == 0 && fh_submit_stat(q, "/none", &a, 4) == 0);
    CHECK(fh_submit_open(q, "/none", O_RDONLY, 0, 5) == 0);
    for (done = 0; done < 5; done += n) {
        n = fh_poll(q, c, DEPTH, 10000);
        CHECK(n > 0);
        for (i = 0; i < n; i++)
            CHECK(c[i].result == (c[i].user_data < 4 ? 0 : -ENOENT) && c[i].file == NULL);
    }
    CHECK(a.size == (uint64_t)DEPTH * BLOCK);
    for (i = 0; i < DEPTH; i++)
        CHECK(fh_submit_pread(q, f, in + i * BLOCK, BLOCK, (uint64_t)i * BLOCK, (uint64_t)i) == 0);
    for (done = 0; done < DEPTH; done += n)
        CHECK((n = fh_poll(q, c, DEPTH, -1)) > 0);
    CHECK(memcmp(in, out, DEPTH * BLOCK) == 0);
    CHECK(fh_close(f) == 0);
    /* Given up with requests under way, and with a file that nobody took. */
    CHECK(fh_open(s, "/async", O_RDWR, 0, &g) == 0);
    CHECK(fh_queue_new(s, DEPTH, &other) == 0);
    for (i = 0; i < DEPTH / 2; i++)
        CHECK(fh_submit_pread(other, g, in, BLOCK, 0, 0) == 0);
    CHECK(fh_submit_open(other, "/async", O_RDONLY, 0, 0) == 0);
    CHECK(fh_queue_free(other) == 0);
    CHECK(fh_close(g) == 0);
    CHECK(fh_submit_stat(q, "/async", &a, 9) == 0 && fh_poll(q, c, 1, -1) == 1 && c[0].result == 0);
    CHECK(fh_queue_free(q) == 0);
    free(out);
    free(in);
}

static fh_session *shared;

static void *worker(void *number) {
    char name[32];
    char bytes[3000], back[3000];
    fh_file *f;
    int i;
    for (i = 0; i < 50; i++) {
        sprintf(name, "/t%d-%d", (int)(size_t)number, i);
        memset(bytes, i, sizeof bytes);
        CHECK(fh_open(shared, name, O_RDWR | O_CREAT, 0600, &f) == 0);
        CHECK(fh_pwrite(f, bytes, sizeof bytes, 0) == sizeof bytes);
        CHECK(fh_pread(f, back, sizeof back, 0) == sizeof back && memcmp(bytes, back, sizeof back) == 0);
        CHECK(fh_close(f) == 0 && fh_unlink(shared, name) == 0);
        CHECK(fh_unlink(shared, name) == -ENOENT && strstr(fh_last_message(), "no such file") != NULL);
    }
    return NULL;
}

static void threads(fh_session *s) {
    pthread_t all[6];
    size_t i;
    shared = s;
    for (i = 0; i < 6; i++)
        CHECK(pthread_create(&all[i], NULL, worker, (void *)i) == 0);
    for (i = 0; i < 6; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
}

int main(int argc, char **argv) {
    fh_session *s;
    fh_file *f;
    char byte;
    CHECK(argc == 2);
    CHECK(strcmp(fh_last_message(), "") == 0);
    CHECK(fh_connect(argv[1], &s) == 0);
    descriptors();
    leaves_errno(s);
    other_sockets(argv[1]);
    files(s);
    names(s);
    directories(s);
    attributes(s);
    mistakes(s);
    asynchronous(s);
    threads(s);
    /* The test stops the server when it reads this line, and says so. */
    CHECK(fh_open(s, "/f", O_RDONLY, 0, &f) == 0);
    puts("ready");
    fflush(stdout);
    CHECK(getchar() != EOF);
    CHECK(fh_pread(f, &byte, 1, 0) == -ESHUTDOWN && fh_mkdir(s, "/late", 0755) == -ESHUTDOWN);
    /* In any order. */
    CHECK(fh_disconnect(s) == 0);
    fh_close(f);
    puts("done");
    return 0;
}
