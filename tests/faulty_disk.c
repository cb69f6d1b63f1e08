/* A disk that is slow or fails, for the process it is preloaded into; faulty_disk.py says how.

   FAULTY_DISK has rules "CALLS:PART:FAULT", separated by commas: calls of that kind on a file whose
   path has PART in it fail with the error number FAULT, or take FAULT as in "200ms". Rules hold
   while the file FAULTY_DISK_WHILE exists, or always where it is not set. Both are read from the
   environment at each call. Not covered: mapped memory, and programs that link no C library. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

/* Returns the error number that the call is to fail with, or 0, after any delay. */
static int fault(const char *calls, const char *path) {
    const char *rules = getenv("FAULTY_DISK");
    if (!rules) return 0;
    int before = errno, found = 0;
    size_t length = strlen(calls);
    for (const char *rule = rules; rule && *rule && !found;) {
        const char *next = strchr(rule, ',');
        size_t size = next ? (size_t)(next - rule) : strlen(rule);
        char text[512] = "";
        memcpy(text, rule, size < sizeof text ? size : sizeof text - 1);
        rule = next ? next + 1 : NULL;
        if (strncmp(text, calls, length) || text[length] != ':') continue;
        char *part = text + length + 1, *what = strrchr(part, ':');
        if (!what) continue;
        *what++ = '\0';
        if (!strstr(path, part)) continue;
        const char *switched_on = getenv("FAULTY_DISK_WHILE");
        if (switched_on && access(switched_on, F_OK)) continue;
        char *unit;
        long number = strtol(what, &unit, 10);
        if (*unit) {
            struct timespec delay = {number / 1000, number % 1000 * 1000000};
            nanosleep(&delay, NULL);
        } else {
            found = (int)number;
        }
    }
    errno = before;
    return found;
}

static int fault_of_fd(const char *calls, int fd) {
    if (!getenv("FAULTY_DISK")) return 0;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int before = errno;
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size < 0) return 0;
    path[size] = '\0';
    return fault(calls, path);
}

#define FAIL_BY_FD(calls, fd)                       \
    do {                                            \
        int number = fault_of_fd(calls, fd);        \
        if (number) return errno = number, -1;      \
    } while (0)
#define FAIL_BY_PATH(calls, path)                   \
    do {                                            \
        int number = fault(calls, path);            \
        if (number) return errno = number, -1;      \
    } while (0)

#define WITH_FD(calls, type, name, parameters, arguments, ...)  \
    type name parameters {                                      \
        FAIL_BY_FD(calls, fd);                                  \
        return REAL(type, name, __VA_ARGS__) arguments;         \
    }

WITH_FD("read", ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), int, void *, size_t)
WITH_FD("read", ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), int,
        void *, size_t, off_t)
WITH_FD("read", ssize_t, pread64, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at), int,
        void *, size_t, off64_t)
WITH_FD("write", ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n), int,
        const void *, size_t)
WITH_FD("write", ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at),
        (fd, from, n, at), int, const void *, size_t, off_t)
WITH_FD("write", ssize_t, pwrite64, (int fd, const void *from, size_t n, off64_t at),
        (fd, from, n, at), int, const void *, size_t, off64_t)
WITH_FD("write", ssize_t, writev, (int fd, const struct iovec *from, int n), (fd, from, n), int,
        const struct iovec *, int)
WITH_FD("write", int, ftruncate, (int fd, off_t size), (fd, size), int, off_t)
WITH_FD("write", int, ftruncate64, (int fd, off64_t size), (fd, size), int, off64_t)
WITH_FD("sync", int, fsync, (int fd), (fd), int)
WITH_FD("sync", int, fdatasync, (int fd), (fd), int)
WITH_FD("lock", int, flock, (int fd, int operation), (fd, operation), int, int)

int rename(const char *from, const char *to) {
    FAIL_BY_PATH("rename", from);
    return REAL(int, rename, const char *, const char *)(from, to);
}

int unlink(const char *path) {
    FAIL_BY_PATH("remove", path);
    return REAL(int, unlink, const char *)(path);
}

#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...) {                                \
        va_list more;                                                           \
        va_start(more, flags);                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                           \
        FAIL_BY_PATH("open", path);                                             \
        return REAL(int, name, const char *, int, ...)(path, flags, mode);      \
    }
OPEN(open)
OPEN(open64)

#define FCNTL(name)                                             \
    int name(int fd, int command, ...) {                        \
        va_list more;                                           \
        va_start(more, command);                                \
        void *argument = va_arg(more, void *);                  \
        va_end(more);                                           \
        if (command == F_SETLK || command == F_SETLKW)          \
            FAIL_BY_FD("lock", fd);                             \
        return REAL(int, name, int, int, ...)(fd, command, argument); \
    }
FCNTL(fcntl)
FCNTL(fcntl64)
