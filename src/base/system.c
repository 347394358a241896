/*
 * system.c: see system.h. Linux: reads /proc and the control group's files.
 */
#include "base/system.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROOM = 8192, PATH_ROOM = 4096 };

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

/* Reads a file of a folder; text is "" on failure. */
static void read_below(const char *folder, const char *name, char text[ROOM])
{
    char path[PATH_ROOM];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path || !read_file(path, text)) text[0] = '\0';
}

/* The number in a file; 0 (no limit) for "max" and for a missing file. */
static uint64_t file_number(const char *folder, const char *name)
{
    char text[ROOM];
    read_below(folder, name, text);
    return number_after(text, "");
}

/* The names of a control group's files, of version 2 and of version 1. */
static const struct group_files {
    const char *controller, *base, *limit, *used, *stat;
    const char *inactive, *active; /* keys in `stat`: pages of files, which the kernel frees on demand */
} group_files[] = {
    {"0::", "/sys/fs/cgroup", "memory.max", "memory.current", "memory.stat", "\ninactive_file ", "\nactive_file "},
    {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "\ntotal_inactive_file ", "\ntotal_active_file "},
};

/* Lowers the figures to what a control group's limit leaves. */
static void apply_group(struct system_memory *m, const struct group_files *f, const char *folder)
{
    char text[ROOM];
    uint64_t limit = file_number(folder, f->limit), used = file_number(folder, f->used);
    if (!limit || limit > m->total) return; /* more than the machine has means no limit */
    read_below(folder, f->stat, text);
    uint64_t pages = number_after(text, f->inactive) + number_after(text, f->active);
    used -= pages < used ? pages : used;
    m->total = limit;
    m->swap = 0;
    uint64_t left = limit > used ? limit - used : 0;
    if (left < m->available) m->available = left;
}

/* Applies the limits of the process's group and of every group above it. Its path follows
 * `controller` in a line of /proc/self/cgroup, such as "0::/user/run"; a container sees its own
 * group as "/". */
static void apply_groups(struct system_memory *m, const char *root, const struct group_files *f, const char *lines)
{
    char folder[PATH_ROOM];
    const char *at = strstr(lines, f->controller);
    if (at) at += strlen(f->controller);
    int base = snprintf(folder, sizeof folder, "%s%s", root, f->base), n = at ? (int)strcspn(at, "\n") : 0;
    if (base >= (int)sizeof folder || snprintf(folder + base, sizeof folder - (size_t)base, "%.*s", n, at ? at : "") >= (int)sizeof folder - base) return;
    for (;;) {
        apply_group(m, f, folder);
        char *slash = strrchr(folder, '/');
        if (!slash || slash < folder + base) break;
        *slash = '\0';
    }
}

void system_memory_in(const char *root, struct system_memory *m)
{
    char text[ROOM];
    *m = (struct system_memory){0};
    read_below(root, "proc/meminfo", text);
    m->total = number_after(text, "MemTotal:") << 10;
    m->available = number_after(text, "MemAvailable:") << 10;
    m->swap = number_after(text, "SwapFree:") << 10;
    read_below(root, "proc/self/cgroup", text);
    for (size_t i = 0; i < sizeof group_files / sizeof *group_files; i++) apply_groups(m, root, &group_files[i], text);
}

void system_memory(struct system_memory *m) { system_memory_in("", m); }

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
