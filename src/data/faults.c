/*
 * faults.c: see faults.h.
 */
#include "data/faults.h"

#include <errno.h>
#include <unistd.h>

#include "base/random.h"
#include "io/file.h"

enum { NAMED = 10 }; /* broken samples that are all logged by name; later only some are */

void faults_set(struct slot_fault *f, enum data_fault fault, const struct error *e)
{
    f->fault = e->no_descriptors ? FAULT_OPEN : fault;
    snprintf(f->text, sizeof f->text, "%.500s", e->text);
}

uint64_t faults_substitute(uint64_t seed, uint64_t position, uint64_t attempt, uint64_t n)
{
    return random_bits(random_bits(random_key(seed, "substitute"), position), attempt) % n;
}

static void log_broken(const struct loader_counts *c, const struct slot_fault *f, const char *what, const char *list)
{
    const uint64_t n = c->broken;
    if (n > NAMED && (n & (n - 1))) return;
    log_warn("broken sample %s: %s (%s); %s; %llu of %llu so far", f->name, fault_text(f->fault), f->text, what,
             (unsigned long long)n, (unsigned long long)c->seen);
    if (n == NAMED) log_warn("only some of the further broken samples are logged%s", list);
}

void faults_count(struct loader_counts *c, const struct slot_fault *f, bool quiet, const char *what, const char *list)
{
    c->broken += f->broken;
    c->fault[f->fault] += f->broken;
    snprintf(c->last, sizeof c->last, "%s: %.200s", f->name, f->text);
    if (!quiet) log_broken(c, f, what, list);
}

int faults_open(const struct slot_fault *f, struct error *e)
{
    if (!f->broken || f->fault != FAULT_OPEN) return PL_OK;
    error_set(e, PL_FAIL, "%s: %s", f->name, f->text);
    e->no_descriptors = true;
    return e->code;
}

int faults_check(const struct loader_counts *c, double max_bad, bool whole, const char *list, struct error *e)
{
    if ((c->broken < FAULTS_FIRST && !whole) || (double)c->broken <= max_bad * (double)c->seen) return PL_OK;
    enum data_fault most = FAULT_NONE;
    char why[FAULTS_NAMED + 160] = ""; /* empty when all came before a resume, which keeps only their number */
    for (int f = 1; f < FAULT_KINDS; f++)
        if (c->fault[f] > c->fault[most]) most = (enum data_fault)f;
    if (most)
        snprintf(why, sizeof why, "; most often: %s (%llu), last %s", fault_text(most),
                 (unsigned long long)c->fault[most], c->last);
    return error_set(e, PL_FAIL, "%llu of %llu samples are broken, but data.max_bad is %g%s%s",
                     (unsigned long long)c->broken, (unsigned long long)c->seen, max_bad, why, list);
}

enum data_fault fault_read_file(const char *path, void *to, size_t room, size_t *n, struct error *e)
{
    uint64_t bytes;
    int fd = file_open(path, &bytes, e);
    if (fd < 0) return FAULT_READ;
    enum data_fault f = FAULT_NONE;
    *n = 0;
    if (bytes > room) {
        error_set(e, PL_NOFIT, "%s: it has %llu bytes; expected at most %zu", path, (unsigned long long)bytes, room);
        f = FAULT_TOO_LARGE;
    }
    while (!f && *n < bytes) {
        ssize_t r = pread(fd, (char *)to + *n, (size_t)bytes - *n, (off_t)*n);
        if (r < 0 && errno == EINTR) continue;
        if (r <= 0) {
            error_set(e, PL_FAIL, "%s: cannot read at byte %zu: %s", path, *n,
                      r ? strerror(errno) : "it became shorter");
            f = FAULT_READ;
        } else {
            *n += (size_t)r;
        }
    }
    close(fd);
    return f;
}
