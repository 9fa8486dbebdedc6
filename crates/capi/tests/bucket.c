/* Uses freehold.h on a bucket; run by c.rs with its URL and the endpoint of its store. */
#include "freehold.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CHECK(what)                                                                     \
    do {                                                                                \
        if (!(what)) {                                                                  \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #what, fh_last_message()); \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

enum { MANY = 200 };

static fh_session *open_bucket(const char *url, const char *endpoint, const char *more) {
    char options[300];
    fh_session *s = NULL;
    snprintf(options, sizeof options, "endpoint=%s%s", endpoint, more);
    CHECK(fh_open_bucket(url, options, &s) == 0 && s != NULL);
    return s;
}

static void refusals(const char *url, const char *endpoint) {
    fh_session *s = NULL;
    char other[300];
    CHECK(fh_open_bucket(NULL, NULL, &s) == -EFAULT && fh_open_bucket(url, NULL, NULL) == -EFAULT);
    CHECK(fh_open_bucket("/srv", NULL, &s) == -EINVAL && strstr(fh_last_message(), "s3://") != NULL);
    CHECK(fh_open_bucket(url, "wibble", &s) == -EINVAL && strstr(fh_last_message(), "wibble") != NULL);
    CHECK(fh_open_bucket(url, "uid=x", &s) == -EINVAL);
    snprintf(other, sizeof other, "endpoint=%s", endpoint);
    CHECK(fh_open_bucket("s3://no-such-bucket", other, &s) == -ENOENT);
    snprintf(other, sizeof other, "endpoint=%s,anonymous", endpoint);
    CHECK(fh_open_bucket(url, other, &s) == -EACCES && s == NULL);
}

static void files(fh_session *s) {
    fh_file *f, *reader;
    fh_dir *d;
    struct fh_attr a;
    struct fh_dirent e;
    char text[16];
    CHECK(fh_mkdir(s, "/d", 0755) == 0 && fh_mkdir(s, "/d", 0755) == -EEXIST);
    CHECK(fh_open(s, "/d/note", O_RDWR | O_CREAT | O_EXCL, 0644, &f) == 0);
    CHECK(fh_pwrite(f, "hello", 5, 0) == 5 && fh_fbarrier(f) == 0);
    /* It is in the store with this close, whoever else has it open. */
    CHECK(fh_open(s, "/d/note", O_RDONLY, 0, &reader) == 0);
    CHECK(fh_pwrite(f, " again", 6, 5) == 6 && fh_close(f) == 0);
    puts("closed");
    fflush(stdout);
    CHECK(fgets(text, sizeof text, stdin) != NULL);
    CHECK(fh_pread(reader, text, sizeof text, 0) == 11 && memcmp(text, "hello again", 11) == 0);
    CHECK(fh_fstat(reader, &a) == 0 && a.size == 11 && S_ISREG(a.mode) && fh_close(reader) == 0);
    CHECK(fh_stat(s, "/d", &a) == 0 && S_ISDIR(a.mode));
    CHECK(fh_opendir(s, "/d", &d) == 0 && fh_readdir(d, &e) == 1 && strcmp(e.name, "note") == 0);
    CHECK(fh_readdir(d, &e) == 0 && fh_closedir(d) == 0);
    CHECK(fh_setxattr(s, "/d/note", "user.mood", "calm", 4, 0) == 0);
    CHECK(fh_getxattr(s, "/d/note", "user.mood", text, sizeof text) == 4 && memcmp(text, "calm", 4) == 0);
    CHECK(fh_rename(s, "/d/note", "/d/moved", 0) == 0 && fh_stat(s, "/d/note", &a) == -ENOENT);
    CHECK(fh_link(s, "/d/moved", "/d/other") == -EOPNOTSUPP);
}

/* More requests than a session with a manager has places for, most of them waiting for the store at once. */
static void queue(fh_session *s) {
    fh_queue *q;
    struct fh_completion done[MANY];
    fh_file *all[MANY];
    char name[32];
    int i, n, got = 0;
    CHECK(fh_queue_new(s, MANY, &q) == 0);
    for (i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "/d/q%03d", i);
        CHECK(fh_submit_open(q, name, O_WRONLY | O_CREAT, 0644, i) == 0);
    }
    CHECK(fh_submit_open(q, "/d/more", O_RDONLY, 0, 0) == -EAGAIN);
    while (got < MANY) {
        CHECK((n = fh_poll(q, done, MANY, -1)) > 0);
        for (i = 0; i < n; i++) {
            CHECK(done[i].result == 0 && done[i].file != NULL);
            all[done[i].user_data] = done[i].file;
        }
        got += n;
    }
    for (i = 0; i < MANY; i++)
        CHECK(fh_pwrite(all[i], "x", 1, 0) == 1 && fh_submit_fsync(q, all[i], i) == 0);
    for (got = 0; got < MANY; got += n) {
        CHECK((n = fh_poll(q, done, MANY, 10000)) > 0);
        for (i = 0; i < n; i++)
            CHECK(done[i].result == 0);
    }
    CHECK(fh_poll(q, done, MANY, -1) == 0);
    for (i = 0; i < MANY; i++)
        CHECK(fh_close(all[i]) == 0);
    CHECK(fh_queue_free(q) == 0);
}

int main(int argc, char **argv) {
    fh_session *s, *other;
    fh_file *f;
    struct fh_attr a;
    CHECK(argc == 3);
    refusals(argv[1], argv[2]);
    s = open_bucket(argv[1], argv[2], "");
    files(s);
    queue(s);
    other = open_bucket(argv[1], argv[2], ",ro");
    CHECK(fh_stat(other, "/d/q007", &a) == 0 && a.size == 1);
    CHECK(fh_open(other, "/d/q007", O_WRONLY, 0, &f) == -EROFS);
    CHECK(fh_disconnect(other) == 0);
    /* What is freed last may be a file; what is only open comes to nothing with the process. */
    CHECK(fh_open(s, "/lost", O_WRONLY | O_CREAT, 0644, &f) == 0 && fh_pwrite(f, "x", 1, 0) == 1);
    CHECK(fh_open(s, "/last", O_WRONLY | O_CREAT, 0644, &f) == 0 && fh_pwrite(f, "xy", 2, 0) == 2);
    CHECK(fh_disconnect(s) == 0 && fh_close(f) == 0);
    puts("done");
    return 0;
}
