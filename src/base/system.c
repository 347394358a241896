/*
 * system.c: see system.h. Linux: reads /proc and the control group's files.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"
#include "base/system.h"

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

/* Returns the number after a key. In /proc each key begins a line, and its unit is KiB. */
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
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path || !read_file(path, text))
        text[0] = '\0';
}

/* Returns the number in a file; 0 (no limit) for "max" and for a missing file. */
static uint64_t file_number(const char *folder, const char *name)
{
    char text[ROOM];
    read_below(folder, name, text);
    return number_after(text, "");
}

/* The names of a control group's files, of version 2 and of version 1. */
static const struct group_files {
    const char *base, *limit, *used, *stat;
    const char *inactive, *active; /* keys in `stat`: pages of files, which the kernel frees on demand */
} group_files[] = {
    {"/sys/fs/cgroup", "memory.max", "memory.current", "memory.stat", "\ninactive_file ", "\nactive_file "},
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "\ntotal_inactive_file ",
     "\ntotal_active_file "},
};

/* Lowers the figures to what a control group's limit leaves. */
static void apply_memory(void *figures, const char *folder, int version)
{
    struct system_memory *m = figures;
    const struct group_files *f = &group_files[version == 1];
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

/* Finds the path in the line of /proc/self/cgroup that has a controller, such as
 * "3:cpu,cpuacct:/user/run"; "": that of version 2, "0::/user/run". NULL: there is no such line. */
static const char *group_path(const char *lines, const char *controller)
{
    const size_t n = strlen(controller);
    for (const char *line = lines; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *at = strchr(line, ':'), *end = at ? strchr(at + 1, ':') : NULL;
        while (at && end && at < end) {
            const size_t length = strcspn(at + 1, ",:");
            if (length == n && !strncmp(at + 1, controller, n)) return end + 1;
            at += 1 + length;
        }
    }
    return NULL;
}

/* Applies the limits of the process's group of a controller and of every group above it. A
 * container sees its own group as "/". */
static void apply_groups(const char *root, const char *controller, const char *files,
                         void (*apply)(void *figures, const char *folder, int version), void *figures)
{
    char folder[PATH_ROOM], lines[ROOM];
    read_below(root, "proc/self/cgroup", lines);
    const char *at = group_path(lines, controller);
    int base = snprintf(folder, sizeof folder, "%s%s", root, files), n = at ? (int)strcspn(at, "\n") : 0;
    if (base >= (int)sizeof folder ||
        snprintf(folder + base, sizeof folder - (size_t)base, "%.*s", n, at ? at : "") >= (int)sizeof folder - base)
        return;
    for (;;) {
        apply(figures, folder, *controller ? 1 : 2);
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
    apply_groups(root, "", group_files[0].base, apply_memory, m);
    apply_groups(root, "memory", group_files[1].base, apply_memory, m);
}

void system_memory(struct system_memory *m) { system_memory_in("", m); }

/* Lowers the quota to a control group's: microseconds of processor time in each period. */
static void apply_quota(void *figures, const char *folder, int version)
{
    struct system_processors *p = figures;
    char text[ROOM];
    long long quota = 0, period = 0;
    read_below(folder, version == 1 ? "cpu.cfs_quota_us" : "cpu.max", text);
    if (version == 1) sscanf(text, "%lld", &quota), period = (long long)file_number(folder, "cpu.cfs_period_us");
    else sscanf(text, "%lld %lld", &quota, &period);
    if (quota <= 0 || period <= 0) return; /* "max", or -1 */
    const double processors = (double)quota / (double)period;
    if (!p->quota || processors < p->quota) p->quota = processors;
}

void system_processors_in(const char *root, struct system_processors *p)
{
    unsigned long mask[1024] = {0};
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    *p = (struct system_processors){.online = online > 0 ? (uint32_t)online : 1};
    if (!sched_getaffinity(0, sizeof mask, (cpu_set_t *)mask))
        for (size_t i = 0; i < sizeof mask / sizeof *mask; i++) p->allowed += (uint32_t)__builtin_popcountl(mask[i]);
    if (!p->allowed) p->allowed = p->online;
    apply_groups(root, "", group_files[0].base, apply_quota, p);
    apply_groups(root, "cpu", "/sys/fs/cgroup/cpu", apply_quota, p);
    p->usable = p->allowed;
    if (p->quota && p->quota < p->usable) p->usable = p->quota > 1 ? (uint32_t)ceil(p->quota) : 1;
}

void system_processors(struct system_processors *p) { system_processors_in("", p); }

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

/* --- plug-ins beside the program -------------------------------------------------------------- */

enum { FOLDER = 3000 };

/* Finds the folder of the program, or of the library that contains this code. */
static bool folder_of(bool library, char out[FOLDER])
{
    Dl_info at;
    ssize_t n = -1;
    if (!library) n = readlink("/proc/self/exe", out, FOLDER - 1);
    else if (dladdr((void *)(uintptr_t)plugin_find, &at) && at.dli_fname) n = snprintf(out, FOLDER, "%s", at.dli_fname);
    if (n < 0 || n >= FOLDER) return false;
    out[n] = '\0';
    char *slash = strrchr(out, '/');
    if (slash) *slash = '\0';
    return slash;
}

bool plugin_find(const char *name, char path[PLUGIN_PATH])
{
    static const char *const beside[] = {"", "../", "../lib/"};
    char folder[FOLDER];
    for (size_t i = 0; i < 2 * COUNT(beside); i++) {
        if (!folder_of(i >= COUNT(beside), folder)) continue;
        snprintf(path, PLUGIN_PATH, "%s/%s%s", folder, beside[i % COUNT(beside)], name);
        if (!access(path, R_OK)) return true;
    }
    return false;
}
