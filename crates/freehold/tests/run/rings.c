#include <fcntl.h>
#include <libaio.h>
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static char out[4096], in[4096];
static void check(const char *what, long got, long want) {
    printf("%s %ld %s\n", what, got, got == want ? "right" : "wrong");
}
int main(int argc, char **argv) {
    int early = open(argv[1], O_RDWR | O_CREAT, 0644);
    check("early", pwrite(early, "before", 6, 0), 6);
    memset(out, 'r', sizeof out);
    struct io_uring ring;
    if (io_uring_queue_init(8, &ring, 0)) return 77;
    int file = open(argv[1], O_RDWR);
    struct io_uring_cqe *cqe;
    for (int reads = 0; reads < 2; reads++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        if (reads) io_uring_prep_read(sqe, file, in, 4096, 4096); else io_uring_prep_write(sqe, file, out, 4096, 4096);
        io_uring_submit(&ring);
        io_uring_wait_cqe(&ring, &cqe);
        check("ring", cqe->res, 4096);
        io_uring_cqe_seen(&ring, cqe);
    }
    check("same", memcmp(in, out, 4096), 0);
    io_context_t context = 0;
    check("setup", io_setup(8, &context), 0);
    struct iocb cb, *cbs = &cb;
    struct io_event event;
    memset(out, 'a', sizeof out);
    io_prep_pwrite(&cb, file, out, 4096, 8192);
    check("submit", io_submit(context, 1, &cbs), 1);
    check("got", io_getevents(context, 1, 1, &event, 0), 1);
    check("aio", (long)event.res, 4096);
    check("sees", pread(early, in, 4096, 8192), 4096);
    check("same", memcmp(in, out, 4096), 0);
    return 0;
}
