/* Uses the installed library for C: greet SOCKET writes /greeting on the served volume and reads it back. Built by scripts/install.sh. */
#include <errno.h>
#include <fcntl.h>
#include <freehold.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const char text[] = "hello from C\n";
    char back[sizeof text] = "";
    fh_session *session;
    fh_file *file;
    if (argc != 2) {
        fprintf(stderr, "usage: greet SOCKET\n");
        return 2;
    }
    if (fh_connect("/nonexistent/socket", &session) >= 0) {
        fprintf(stderr, "greet: a session with nobody\n");
        return 1;
    }
    if (fh_connect(argv[1], &session) < 0) {
        fprintf(stderr, "greet: %s\n", fh_last_message());
        return 1;
    }
    if (fh_open(session, "/greeting", O_RDWR | O_CREAT | O_TRUNC, 0644, &file) < 0 ||
        fh_pwrite(file, text, sizeof text - 1, 0) != (long)sizeof text - 1 || fh_fsync(file) < 0 ||
        fh_pread(file, back, sizeof text, 0) != (long)sizeof text - 1 || strcmp(back, text) != 0 || fh_close(file) < 0) {
        fprintf(stderr, "greet: %s\n", fh_last_message());
        return 1;
    }
    fh_disconnect(session);
    return 0;
}
