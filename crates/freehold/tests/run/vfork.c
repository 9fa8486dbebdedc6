/* Children of vfork that open files for what they execute, of a parent that has done nothing (a child may name its file by a whole path), looked at a file, or opened one; or that write to a
 * file that the parent was started with: what they do is theirs alone, though they have their parent's memory. The last argument but one says which; the
 * last is the directory, in which it is started. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *name) {
    char text[100];
    int fd = open(name, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    printf("%s: %s %d: %s\n", name, fd < 0 ? "not opened" : "opened", (int)n, text);
    fflush(stdout);
    /* Left open: each takes another place. */
}

int main(int argc, char **argv) {
    const char *before = argv[argc - 2];
    struct stat st;
    if (!strcmp(before, "looks")) printf("stat: %d\n", stat("in", &st));
    if (!strcmp(before, "opens")) say("in");
    for (int i = 0; i < 3; i++) {
        char out[10];
        if (!strcmp(before, "writes")) {
            pid_t child = vfork();
            if (child == 0) _exit(write(1, "child\n", 6) != 6);
            int status;
            waitpid(child, &status, 0);
            printf("ended: %d\n", WEXITSTATUS(status));
            fflush(stdout);
            continue;
        }
        sprintf(out, "out%d", i);
        pid_t child = vfork();
        if (child == 0) {
            char in[5000] = "in";
            if (!strcmp(before, "names")) snprintf(in, sizeof in, "%s/in", argv[argc - 1]);
            int from = open(in, O_RDONLY), to = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
            if (from < 0 || to < 0) _exit(8);
            dup2(from, 0);
            dup2(to, 1);
            execlp("cat", "cat", (char *)0);
            _exit(9);
        }
        int status;
        waitpid(child, &status, 0);
        printf("ended: %d\n", WEXITSTATUS(status));
        say("in");
        say(out);
    }
    return 0;
}
