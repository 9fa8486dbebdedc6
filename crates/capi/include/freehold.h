/*
 * Freehold for C: the files of a volume that a manager serves, or of a bucket of an object store.
 *
 * A manager owns the volume (`freehold mount ... -o share=/run/volume.sock`). A program begins a session on the manager's
 * socket; from then on calls go through memory that both share, mostly without a system call.
 *
 *     fh_session *session;
 *     fh_file *file;
 *     int error = fh_connect("/run/volume.sock", &session);
 *     if (error < 0) { fprintf(stderr, "%s\n", fh_last_message()); return 1; }
 *     error = fh_open(session, "/greeting", O_RDWR | O_CREAT, 0644, &file);
 *     if (error == 0) {
 *         fh_pwrite(file, "hello", 5, 0);
 *         fh_fsync(file);
 *         fh_close(file);
 *     }
 *     fh_disconnect(session);
 *
 * A bucket needs no manager: the process itself talks to the store (fh_open_bucket). Everything below holds for it too, with what
 * docs/SEMANTICS.md says of buckets: a file is in the store, whole, when fh_close or fh_fsync has returned 0, and a barrier is a sync.
 *
 * Link with -lfreehold (libfreehold.so, or libfreehold.a and -lpthread -ldl -lm).
 *
 * Results. A call that fails returns the negative of a value of <errno.h>, -ENOENT for example; fh_last_message() then
 * says more. A call that succeeds returns 0, or a number of bytes or entries. Either leaves errno alone. Where a result goes
 * through a pointer, a call that fails leaves that memory alone (a buffer that is read into may have changed). Beside the
 * errors of the POSIX call of the same name:
 *     -EINVAL     an object is NULL, or an argument makes no sense
 *     -EFAULT     a string or buffer is NULL (a NULL buffer of length 0 is accepted)
 *     -ESHUTDOWN  the manager is gone, and for 30 seconds no other one came that serves the volume at the same socket. Until then
 *                 calls wait, requests of queues too; with the next manager files go on (docs/SEMANTICS.md, "Sessions")
 *     -EIO        the medium failed, or this library did
 *
 * Credentials. The manager learns who the process is from the kernel when the session begins; a later setuid() changes nothing.
 *
 * Paths. "/" is the root of the volume, and relative paths begin there. A path has at most 4095 bytes, a name 255.
 *
 * Threads. Sessions and files may be used by many threads at once. So may directories, one call after the other. A queue
 * is used by one thread at a time: a call that finds another thread in the queue fails with -EBUSY. Nobody may use an
 * object while or after it is freed (fh_disconnect, fh_close, fh_closedir, fh_queue_free). After fork() the child must not
 * use, nor free, what the parent had; it begins a session of its own.
 *
 * Lifetime. Objects may be freed in any order: files, directories and queues keep what they need of their session.
 * When a process ends, the manager closes its files; what it has written to files of a bucket and neither closed nor synced is lost.
 */
#ifndef FREEHOLD_H
#define FREEHOLD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fh_session fh_session;
typedef struct fh_file fh_file;
typedef struct fh_dir fh_dir;
typedef struct fh_queue fh_queue;

/* A point in time: seconds since 1970-01-01 00:00 UTC, and nanoseconds below 1,000,000,000. */
struct fh_time {
    int64_t sec;
    uint32_t nsec;
    uint32_t reserved;
};

/* What stat tells. */
struct fh_attr {
    uint64_t ino;
    uint64_t size;   /* bytes */
    uint64_t blocks; /* allocated, in units of 512 bytes */
    uint64_t rdev;   /* of a device node */
    uint32_t mode;   /* type and permission bits, as st_mode; see S_ISREG() and its kin */
    uint32_t nlink;
    uint32_t uid;
    uint32_t gid;
    struct fh_time atime; /* last access */
    struct fh_time mtime; /* last change of the data */
    struct fh_time ctime; /* last change of data or attributes */
    struct fh_time btime; /* creation */
};

/* What statfs tells; counts of blocks are in units of block_size bytes. */
struct fh_statfs {
    uint32_t block_size;
    uint32_t name_max; /* bytes of the longest name */
    uint64_t blocks;
    uint64_t blocks_free;
    uint64_t blocks_available; /* free for anyone but root */
    uint64_t inodes;           /* that exist or could be made */
    uint64_t inodes_free;      /* that could still be made */
};

/* An entry of a directory. */
struct fh_dirent {
    uint64_t ino;
    uint64_t next_offset; /* for fh_seekdir: where the scan goes on behind this entry */
    uint32_t mode;        /* type and permission bits, as st_mode */
    uint32_t name_len;
    char name[256]; /* ends with a NUL */
};

/* ---- Sessions ---- */

/* Begins a session with the manager that listens at the path of a Unix socket. -ENOENT, -ECONNREFUSED (no manager),
 * -EACCES (it does not serve this user), -EMFILE (it has no room), -EPROTO (something else listens there, or a manager of another version). It waits
 * for a manager that is there and does not answer, for one that is stopped for example. */
int fh_connect(const char *socket, fh_session **session);

/* Begins a session with a bucket: `url` is "s3://bucket" or "s3://bucket/prefix". `options` are words between commas, those that
 * `freehold mount --help` lists for buckets, without the options of mounts ("endpoint=http://127.0.0.1:9000,path_style"; "ro": nothing may be
 * changed); NULL: none. Keys and regions are found as by `freehold mount`, in the environment, ~/.aws and the machine's roles.
 * Permissions are checked for the credentials of this process. -EINVAL (URL, option, profile), -ENOENT (no such bucket), -EACCES (wrong key, or it may not),
 * -EIO (the store cannot be reached, or refuses). Calls go on for two minutes when the store fails, and are -EIO then. */
int fh_open_bucket(const char *url, const char *options, fh_session **session);

/* Frees a session. It ends when its files, directories and queues have been freed, too. */
int fh_disconnect(fh_session *session);

/* Describes a negative result in at most `len` bytes, the NUL included; cut off when there is less room. */
int fh_strerror(int error, char *text, size_t len);

/* What the latest call of this thread that failed had to say; "" when none has failed. The text stays until the thread's next call
 * that fails. Never NULL. */
const char *fh_last_message(void);

/* ---- Files ---- */

/* Opens a file. `flags` are those of open(2): O_RDONLY, O_WRONLY or O_RDWR with O_CREAT, O_EXCL, O_TRUNC, O_APPEND,
 * O_DIRECT, O_SYNC, O_DSYNC, O_NOATIME, O_NOFOLLOW, O_DIRECTORY, O_TMPFILE; O_CLOEXEC, O_LARGEFILE, O_NONBLOCK and O_NOCTTY
 * make no difference; others are refused (-EINVAL), and so is O_TRUNC with O_RDONLY. `mode`: permission bits of a file that is made, less 022. */
int fh_open(fh_session *session, const char *path, int flags, uint32_t mode, fh_file **file);

/* Closes a file and frees it. -EBUSY, and it stays open, when asynchronous requests of it are under way; one whose completion was
 * not taken may have ended already, so count requests rather than rely on this. After any other
 * error it is freed nevertheless. */
int fh_close(fh_file *file);

/* Reads at an offset. Returns the number of bytes: less than `len` only at the end of the file. */
int64_t fh_pread(fh_file *file, void *to, size_t len, uint64_t offset);

/* Writes at an offset (with O_APPEND: at the end). Returns the number of bytes: less than `len` only when an error came
 * after a part. */
int64_t fh_pwrite(fh_file *file, const void *from, size_t len, uint64_t offset);

int fh_fstat(fh_file *file, struct fh_attr *attr);
int fh_ftruncate(fh_file *file, uint64_t size);

/* Data and attributes (fdatasync: data, and what is needed to read it) are durable when these return. */
int fh_fsync(fh_file *file);
int fh_fdatasync(fh_file *file);

/* The same with order instead of durability: of everything done on the volume, by anybody and on whichever file, what was done
 * before the call persists before anything that is done after it returned. They wait for no device. fh_fdatabarrier may leave times of
 * the file out. docs/SEMANTICS.md, "Order", says what each of the four promises. */
int fh_fbarrier(fh_file *file);
int fh_fdatabarrier(fh_file *file);

/* ---- Barriers on file descriptors ---- */

/* fh_fbarrier and fh_fdatabarrier for what open(2) gave, whatever it is: a program may always call them. They take the first of
 * these that there is:
 *   1. the functions fbarrier and fdatabarrier of this process: those of the library that `freehold run` preloads;
 *   2. the ioctl below, which FUSE mounts of volumes answer;
 *   3. fsync(2) or fdatasync(2): on other file systems, and on volumes mounted with the option `writeback`, where the kernel keeps
 *      writes that have returned.
 * Buffers of stdio are to be flushed first. Stores into shared mappings are covered only when msync(2) with MS_SYNC, or fsync(2), has
 * written them. Errors are negative, as everywhere here: -EBADF, -EIO, and -EINVAL or -EROFS for what cannot be synced, a pipe for example. */
int fh_barrier_fd(int fd);
int fh_databarrier_fd(int fd);

/* The ioctl itself, for programs that do without this library: _IO('F', 0xb0) and _IO('F', 0xb1), on a regular file or directory of a mounted volume,
 * without an argument. -1 with ENOTTY: not here; use fsync(2). */
#define FH_IOC_BARRIER 0x46b0u
#define FH_IOC_DATABARRIER 0x46b1u

/* ---- Names ---- */

/* fh_stat follows a symlink at the end of the path, fh_lstat does not. */
int fh_stat(fh_session *session, const char *path, struct fh_attr *attr);
int fh_lstat(fh_session *session, const char *path, struct fh_attr *attr);
/* `mode`: permission bits, less 022, without set-id bits. */
int fh_mkdir(fh_session *session, const char *path, uint32_t mode);
int fh_unlink(fh_session *session, const char *path);
int fh_rmdir(fh_session *session, const char *path);
int fh_truncate(fh_session *session, const char *path, uint64_t size);
int fh_chmod(fh_session *session, const char *path, uint32_t mode);

#define FH_RENAME_NOREPLACE 1u /* -EEXIST when the target exists */
#define FH_RENAME_EXCHANGE 2u  /* exchanges both names, which must exist */
int fh_rename(fh_session *session, const char *from, const char *to, uint32_t flags);

/* Gives a file another name. A symlink at the end of `original` is not followed. */
int fh_link(fh_session *session, const char *original, const char *path);
int fh_symlink(fh_session *session, const char *target, const char *path);

/* Reads a symlink into `len` bytes and adds a NUL. Returns the length without it; -ERANGE when there is too little room. */
int64_t fh_readlink(fh_session *session, const char *path, char *to, size_t len);

int fh_statfs(fh_session *session, struct fh_statfs *to);

/* Everything that was written to the volume is durable when this returns. */
int fh_sync(fh_session *session);

/* ---- Directories ---- */

int fh_opendir(fh_session *session, const char *path, fh_dir **dir);

/* The next entry: returns 1, or 0 behind the last one. "." and ".." are left out. After an error the scan can go on. */
int fh_readdir(fh_dir *dir, struct fh_dirent *entry);

/* Goes on behind the entry that had this next_offset; 0: from the start. */
int fh_seekdir(fh_dir *dir, uint64_t offset);

/* Frees it, whatever it returns (unless `dir` is NULL). */
int fh_closedir(fh_dir *dir);

/* ---- Extended attributes; symlinks are followed ---- */

/* The value, or all names, each with a NUL behind it. Returns the length; with `len` 0 nothing else happens. -ERANGE when there
 * is too little room, -ENODATA when there is no such attribute. */
int64_t fh_getxattr(fh_session *session, const char *path, const char *name, void *to, size_t len);
int64_t fh_listxattr(fh_session *session, const char *path, char *to, size_t len);

#define FH_XATTR_CREATE 1u  /* -EEXIST when it exists */
#define FH_XATTR_REPLACE 2u /* -ENODATA when it does not */
int fh_setxattr(fh_session *session, const char *path, const char *name, const void *value, size_t len,
                uint32_t flags);
int fh_removexattr(fh_session *session, const char *path, const char *name);

/* ---- Asynchronous requests ----
 *
 * Requests are submitted to a queue and complete in any order; `user_data` says which one it was. There is no thread behind
 * a queue: a request makes all of its progress while some call of its queue runs, except for the call that the manager has at
 * the moment. Requests that depend on each other must wait for each other: a read that is submitted behind a write of the
 * same bytes may be earlier.
 *
 * A session with a manager has up to 56 requests under way at a time, of all queues together; further ones wait in their queues until
 * one of these completes, which is only noticed when the queue that has it is polled.
 *
 * Memory given to a request belongs to the library until its completion was returned by fh_poll or the queue was freed. Paths are
 * copied at once.
 */

/* A queue with room for `depth` requests (1 to 4096) that are under way or whose completion was not taken. */
int fh_queue_new(fh_session *session, uint32_t depth, fh_queue **queue);

/* Frees a queue and gives up its requests: those under way may or may not happen. -EBUSY when another thread is in it. */
int fh_queue_free(fh_queue *queue);

/* These return 0 when the request was accepted, which is all they say about it; -EAGAIN when the queue is full. `result` of the
 * completion is what the blocking call of that name returns. */
int fh_submit_pread(fh_queue *queue, fh_file *file, void *to, size_t len, uint64_t offset, uint64_t user_data);
int fh_submit_pwrite(fh_queue *queue, fh_file *file, const void *from, size_t len, uint64_t offset,
                     uint64_t user_data);
int fh_submit_fsync(fh_queue *queue, fh_file *file, uint64_t user_data);
int fh_submit_fdatasync(fh_queue *queue, fh_file *file, uint64_t user_data);
/* The completion has the file. */
int fh_submit_open(fh_queue *queue, const char *path, int flags, uint32_t mode, uint64_t user_data);
int fh_submit_stat(fh_queue *queue, const char *path, struct fh_attr *attr, uint64_t user_data);

struct fh_completion {
    uint64_t user_data;
    int64_t result;
    fh_file *file; /* of fh_submit_open that succeeded, else NULL */
};

/* Takes up to `max` completions (at least 1), waiting for the first one for `timeout_ms` milliseconds; 0: not at all; negative:
 * for as long as it takes. Returns their number, 0 when the time is over or no request is under way. */
int fh_poll(fh_queue *queue, struct fh_completion *completions, uint32_t max, int timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
