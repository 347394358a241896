/*
 * system.c: see system.h. Linux: reads /proc and the control group's files.
 */
#include "base/system.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROOM = 8192 };

static bool read_file(const char *path, char text[ROOM])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, ROOM - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* The number after a key. In /proc each key begins a line, and its unit is KiB. */
static uint64_t number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    unsigned long long x = 0;
    return at && sscanf(at + strlen(key), "%llu", &x) == 1 ? x : 0;
}

/* Returns 0 (no limit) for "max" and for a missing file. */
static uint64_t group_number(const char *path)
{
    char text[ROOM];
    return read_file(path, text) ? number_after(text, "") : 0;
}

void system_memory(struct system_memory *m)
{
    char text[ROOM];
    *m = (struct system_memory){0};
    if (read_file("/proc/meminfo", text)) {
        m->total = number_after(text, "MemTotal:") << 10;
        m->available = number_after(text, "MemAvailable:") << 10;
    }
    uint64_t limit = group_number("/sys/fs/cgroup/memory.max"), used = group_number("/sys/fs/cgroup/memory.current");
    if (!limit) { /* cgroup v1 */
        limit = group_number("/sys/fs/cgroup/memory/memory.limit_in_bytes");
        used = group_number("/sys/fs/cgroup/memory/memory.usage_in_bytes");
    }
    if (!limit || limit > m->total) return; /* more than the machine has means no limit */
    m->total = limit;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < m->available) m->available = left;
}

/* Counts a folder's entries by the system call, because opendir allocates from the heap. */
static uint32_t count_entries(const char *path)
{
    _Alignas(8) char entries[ROOM];
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint32_t n = 0;
    if (fd < 0) return 0;
    for (long bytes; (bytes = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0;)
        for (long at = 0; at < bytes; n++) {
            uint16_t length; /* after the inode and the offset */
            memcpy(&length, entries + at + 16, sizeof length);
            at += length;
        }
    close(fd);
    return n > 2 ? n - 2 : 0; /* . and .. */
}

void system_process(struct system_process *p)
{
    char text[ROOM];
    *p = (struct system_process){0};
    if (read_file("/proc/self/status", text)) {
        p->resident = number_after(text, "VmRSS:") << 10;
        p->anonymous = number_after(text, "RssAnon:") << 10;
        p->resident_peak = number_after(text, "VmHWM:") << 10;
        p->threads = (uint32_t)number_after(text, "Threads:");
    }
    p->descriptors = count_entries("/proc/self/fd");
    if (p->descriptors) p->descriptors--; /* the one that listed them */
}
