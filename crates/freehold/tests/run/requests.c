#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libaio.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>
enum { N = 300, DEPTH = 96, SIZE = 5000 };
static char out[DEPTH][SIZE], in[N][SIZE];
static io_context_t context;
static void check(const char *what, long got, long want) {
    printf("%s %ld %s\n", what, got, got == want ? "right" : "wrong");
}
static int submit(struct iocb *cb) { return io_submit(context, 1, &cb); }
/* One request and its result. */
static long one(struct iocb *cb) {
    struct io_event event;
    int n = submit(cb);
    if (n != 1) return 100000 + n;
    if (io_getevents(context, 1, 1, &event, NULL) != 1 || event.obj != cb || event.data != cb->data) return -99;
    return (long)event.res;
}
static void *waits(void *most) {
    struct io_event event;
    struct timespec time = {20, 0};
    return (void *)(long)(io_getevents(context, 1, 1, &event, most ? NULL : &time) == 1 ? (long)event.res : -1);
}
int main(int argc, char **argv) {
    int ours = open(argv[1], O_RDWR | O_CREAT, 0644), theirs = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0644);
    check("setup", io_setup(DEPTH, &context), 0);
    static struct iocb cbs[N];
    struct io_event events[DEPTH];
    int sent = 0, done = 0, wrong = 0, full = 0;
    while (done < N) {
        while (sent < N && sent - done < DEPTH) {
            memset(out[sent % DEPTH], 'a' + sent % 26, SIZE);
            io_prep_pwrite(&cbs[sent], sent % 3 ? ours : theirs, out[sent % DEPTH], SIZE, (long long)sent * SIZE);
            cbs[sent].data = (void *)(long)sent;
            int n = submit(&cbs[sent]);
            if (n == -EAGAIN) { full++; break; }
            if (n != 1) { wrong++; break; }
            sent++;
        }
        /* All, because the memory of the first is used again. */
        int n = io_getevents(context, sent - done, DEPTH, events, NULL);
        for (int i = 0; i < n; i++) wrong += (long)events[i].res != SIZE || events[i].obj != &cbs[(long)events[i].data];
        done += n;
    }
    check("wrote", wrong, 0);
    struct iocb *list[DEPTH];
    for (int first = 0; first < N; first += 60) {
        for (int i = 0; i < 60; i++) {
            int k = first + i;
            io_prep_pread(&cbs[k], k % 3 ? ours : theirs, in[k], SIZE, (long long)k * SIZE);
            list[i] = &cbs[k];
        }
        int n = 0;
        while (n < 60) {
            int more = io_submit(context, 60 - n, list + n);
            if (more <= 0) { wrong++; break; }
            n += more;
        }
        for (int got = 0; got < 60;) got += io_getevents(context, 1, 7, events, NULL);
        for (int i = 0; i < 60; i++) for (int b = 0; b < SIZE; b++) wrong += in[first + i][b] != 'a' + (first + i) % 26;
    }
    check("read", wrong, 0);
    struct iocb cb;
    struct iovec v[2] = {{"one", 3}, {"three", 5}}, w[2] = {{in[0], 4}, {in[1], 100}};
    long long end = lseek(ours, 0, SEEK_END);
    check("end", end, (long long)N * SIZE);
    io_prep_pwritev(&cb, ours, v, 2, end);
    check("vector", one(&cb), 8);
    io_prep_preadv(&cb, ours, w, 2, end);
    check("vector", one(&cb), 8);
    check("same", memcmp(in[0], "onet", 4) || memcmp(in[1], "hree", 4), 0);
    io_prep_pread(&cb, ours, in[0], 100, end + 8);
    check("end of file", one(&cb), 0);
    io_prep_fsync(&cb, ours);
    check("fsync", one(&cb), 0);
    io_prep_fdsync(&cb, ours);
    check("fdsync", one(&cb), 0);
    io_prep_pread(&cb, ours, in[0], 100, -1);
    check("offset", submit(&cb), -EINVAL);
    io_prep_pread(&cb, 1000, in[0], 100, 0);
    check("descriptor", submit(&cb), -EBADF);
    int reads = open(argv[1], O_RDONLY), writes = open(argv[1], O_WRONLY | O_APPEND);
    io_prep_pwrite(&cb, reads, "x", 1, 0);
    check("reader", submit(&cb), -EBADF);
    io_prep_pread(&cb, writes, in[0], 1, 0);
    check("writer", submit(&cb), -EBADF);
    io_prep_pwrite(&cb, writes, "end", 3, 0);
    check("append", one(&cb), 3);
    check("appended", lseek(ours, 0, SEEK_END), end + 11);
    cb.aio_lio_opcode = 77;
    check("operation", submit(&cb), -EINVAL);
    check("none", io_getevents(context, 2, 1, events, NULL), -EINVAL);
    struct timespec soon = {0, 20000000};
    check("time", io_getevents(context, 1, 1, events, &soon), 0);
    /* Who only looks now and then sees it done. */
    io_prep_pread(&cb, ours, in[0], 20, 0);
    check("submitted", submit(&cb), 1);
    struct timespec none = {0, 0};
    int looked = 0;
    for (int i = 0; i < 20000 && looked == 0; i++) {
        looked = io_getevents(context, 0, 1, events, &none);
        if (looked == 0) usleep(1000);
    }
    check("looked", looked, 1);
    check("seen", (long)events[0].res, 20);
    /* A request that announces its end. */
    int event = eventfd(0, 0);
    unsigned long long count = 0;
    io_prep_pread(&cb, ours, in[0], 10, 0);
    io_set_eventfd(&cb, event);
    check("announced", submit(&cb), 1);
    struct pollfd p = {event, POLLIN, 0};
    check("announces", poll(&p, 1, 20000), 1);
    check("counts", read(event, &count, 8) == 8 ? (long)count : -1, 1);
    check("is there", io_getevents(context, 0, 1, events, NULL), 1);
    /* Somebody else waits. */
    for (int forever = 0; forever < 2; forever++) {
        for (int kernel = 0; kernel < 2; kernel++) {
            pthread_t waiter;
            void *result;
            pthread_create(&waiter, NULL, waits, (void *)(long)forever);
            usleep(30000);
            io_prep_pread(&cb, kernel ? theirs : ours, in[0], 77, 0);
            check("submitted", submit(&cb), 1);
            pthread_join(waiter, &result);
            check("woken", (long)result, 77);
        }
    }
    /* What was begun is finished, also when nobody waits for it. */
    io_prep_pwrite(&cb, ours, "last", 4, 0);
    check("begun", submit(&cb), 1);
    check("closed", close(ours), 0);
    check("destroy", io_destroy(context), 0);
    check("gone", submit(&cb), -EINVAL);
    check("finished", pread(reads, in[0], 4, 0) == 4 && !memcmp(in[0], "last", 4), 1);
    return 0;
}
