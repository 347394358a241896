/*
 * loader.c: the ring and its threads (see loader.h); fill.c does the work of a thread.
 *
 *     taken            next
 *       │                │
 *   ... │ r  r  .  r  .  │ free ...      r: ready   .: being filled
 *       └── at most `slots` wide ──┘
 *
 * One mutex guards the counters. A slot belongs to a thread from its ticket until `ready`, then to
 * the consumer until it takes the next slot. A seek waits until no ticket is out, so a thread
 * never writes to a slot that has been reassigned.
 */
#include "data/loader.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "data/fill.h"

enum { STACK = 1 << 20, NAMED = 10 }; /* NAMED: broken samples that are all logged by name; later only some are */

struct loader {
    struct loader_options o;
    struct slot *slots;        /* [o.slots] */
    struct filler **fillers;   /* [o.threads] */
    pthread_t *threads;
    uint32_t started;
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* for threads: a slot is free; for the consumer: a slot is ready,
                                  or no ticket is out */
    struct loader_source *source; /* NULL: none yet */
    uint64_t taken, next;      /* the consumer's next position, and the position of the next ticket */
    bool holds;                /* the consumer has the slot of `taken` - 1 */
    uint32_t busy;             /* tickets that are out */
    bool stop, held;           /* held: no new tickets, a seek is waiting */
};

/* --- memory ------------------------------------------------------------------------------ */

uint64_t loader_bytes(const struct loader_options *o)
{
    struct slot s = {0};
    uint64_t slot = slot_layout(&s, o, NULL), filler = filler_size(o);
    return o->slots * slot + o->threads * filler;
}

/* --- threads ------------------------------------------------------------------------------ */

static bool may_start(const struct loader *l)
{
    if (!l->source || l->held) return false;
    if (l->source->once && l->next >= dataset_count(l->source->set)) return false;
    /* the consumer still reads the slot of taken - 1 */
    return l->next < l->taken - l->holds + l->o.slots;
}

struct start {
    struct loader *l;
    struct filler *f;
};

/* Prefetches the sample that will be read after all current tickets. */
static void prefetch(const struct loader *l, const struct loader_source *s, uint64_t position)
{
    uint64_t ahead = position + l->o.threads;
    if (!s->once || ahead < dataset_count(s->set)) dataset_prefetch(s->set, source_sample(s, ahead));
}

static void *work(void *argument)
{
    struct loader *l = ((struct start *)argument)->l;
    struct filler *f = ((struct start *)argument)->f;
    pthread_mutex_lock(&l->lock);
    l->started++;
    pthread_cond_broadcast(&l->done);
    while (!l->stop) {
        if (!may_start(l)) {
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        uint64_t position = l->next++;
        const struct loader_source *source = l->source;
        struct slot *s = &l->slots[position % l->o.slots];
        l->busy++;
        pthread_mutex_unlock(&l->lock);
        prefetch(l, source, position);
        fill_slot(f, source, position, s);
        pthread_mutex_lock(&l->lock);
        l->busy--;
        s->ready = true;
        pthread_cond_broadcast(&l->done);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Starts a thread with all signals blocked, except that of a memory map that fails (base/mapped.h);
 * waits until it has read `start`. */
static int start_thread(struct loader *l, uint32_t i, struct error *e)
{
    struct start start = {l, l->fillers[i]};
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&l->threads[i], &attributes, work, &start);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (rc) return error_set(e, PL_FAIL, "cannot start loader thread %u: %s; lower data.threads", i, strerror(rc));
    pthread_mutex_lock(&l->lock);
    while (l->started <= i) pthread_cond_wait(&l->done, &l->lock);
    pthread_mutex_unlock(&l->lock);
    return PL_OK;
}

uint64_t loader_default_room(const char *format, bool stores)
{
    const uint64_t mib = !strcmp(format, "sa1b") ? 8 : !strcmp(format, "coco") ? 16 : stores ? 1 : 64;
    return mib << 20;
}

int loader_open(struct loader **out, const struct loader_options *o, void *memory, struct error *e)
{
    CHECK(o->slots >= 2 && o->threads && (uintptr_t)memory % 64 == 0, "loader of %u slots and %u threads at %p", o->slots, o->threads, memory);
    struct loader *l = mem_alloc(sizeof *l);
    char *at = memory;
    l->o = *o;
    l->slots = mem_alloc(o->slots * sizeof *l->slots);
    l->fillers = mem_alloc(o->threads * sizeof *l->fillers);
    l->threads = mem_alloc(o->threads * sizeof *l->threads);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    for (uint32_t i = 0; i < o->slots; i++) at += slot_layout(&l->slots[i], o, at);
    for (uint32_t i = 0; i < o->threads; i++, at += filler_size(o)) l->fillers[i] = filler_new(o, at);
    int rc = PL_OK;
    for (uint32_t i = 0; i < o->threads && !rc; i++) rc = start_thread(l, i, e);
    if (rc) loader_close(l);
    else *out = l;
    return rc;
}

void loader_close(struct loader *l)
{
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (uint32_t i = 0; i < l->started; i++) pthread_join(l->threads[i], NULL);
    for (uint32_t i = 0; i < l->o.threads; i++) filler_free(l->fillers[i]);
    pthread_cond_destroy(&l->done);
    pthread_cond_destroy(&l->work);
    pthread_mutex_destroy(&l->lock);
    mem_free(l->threads);
    mem_free(l->fillers);
    mem_free(l->slots);
    mem_free(l);
}

/* --- the consumer ---------------------------------------------------------------------------- */

void loader_seek(struct loader *l, struct loader_source *s, uint64_t position)
{
    pthread_mutex_lock(&l->lock);
    l->held = true;
    while (l->busy) pthread_cond_wait(&l->done, &l->lock);
    for (uint32_t i = 0; i < l->o.slots; i++) l->slots[i].ready = false;
    l->source = s;
    l->taken = l->next = position;
    l->holds = l->held = false;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
}

bool loader_at(const struct loader *l, const struct loader_source *s, uint64_t position)
{
    return l->source == s && l->taken == position; /* only the consumer changes these */
}

/* Logs the first broken samples, then one each time their number has doubled. */
static void log_broken(const struct loader_source *s, const struct slot *slot)
{
    uint64_t n = s->counts.broken;
    if (s->quiet) return;
    if (n > NAMED && (n & (n - 1))) return;
    log_warn("broken sample %s: %s (%s); %s; %llu of %llu so far", slot->name, fault_text(slot->out.fault), slot->text,
             s->once ? "it is skipped" : "another sample replaces it", (unsigned long long)n, (unsigned long long)s->counts.seen);
    if (n == NAMED) log_warn("only some of the further broken samples are logged; `plimsoll data verify` lists all");
}

static void count(struct loader_source *s, const struct slot *slot)
{
    struct loader_counts *c = &s->counts;
    c->seen++;
    c->bad_masks += slot->bad_masks;
    c->lost_masks += slot->lost_masks;
    if (slot->out.fault == FAULT_NO_MASKS) c->empty++;
    else if (slot->out.fault) {
        c->broken++;
        c->fault[slot->out.fault]++;
        snprintf(c->last, sizeof c->last, "%s: %.200s", slot->name, slot->text);
        log_broken(s, slot);
    }
}

/* "data.min_iou 0.9, data.categories": the filters that are set. */
static const char *filters_print(const struct loader_source *s, char out[160])
{
    const struct sampler_options *o = &s->sampler;
    int n = 0;
    out[0] = 0;
    if (o->min_iou > 0) n += snprintf(out + n, 160 - (size_t)n, ", data.min_iou %g", (double)o->min_iou);
    if (o->min_stability > 0) n += snprintf(out + n, 160 - (size_t)n, ", data.min_stability %g", (double)o->min_stability);
    if (o->min_area > 0 || (o->max_area > 0 && o->max_area < 1)) n += snprintf(out + n, 160 - (size_t)n, ", data.area %g to %g", o->min_area, o->max_area);
    if (s->set->by_category) n += snprintf(out + n, 160 - (size_t)n, ", data.categories");
    return n ? out + 2 : "none is set";
}

/* No sample could be used. If none ever could, the data or the filters are wrong. */
static int nothing_left(const struct loader_source *s, const struct slot *slot, struct error *e)
{
    const struct loader_counts *c = &s->counts;
    char filters[160];
    return error_set(e, c->broken + c->empty == c->seen ? PL_USAGE : PL_FAIL,
                     "no sample is left: %s cannot be used (%s), and neither can any substitute that was tried; of %llu samples so far %llu are broken and "
                     "%llu have no mask that passes the filters (%s); list them with `plimsoll data verify`",
                     slot->name, slot->text, (unsigned long long)c->seen, (unsigned long long)c->broken, (unsigned long long)c->empty, filters_print(s, filters));
}

/* Fails when too many samples are broken, or when a broken one has no substitute. */
static int check_broken(const struct loader_source *s, const struct slot *slot, struct error *e)
{
    const struct loader_counts *c = &s->counts;
    bool whole = (slot->out.position + 1) % dataset_count(s->set) == 0;
    if (dataset_intact(s->set, e)) return e->code; /* no fault of this sample */
    if (slot->rc) return nothing_left(s, slot, e);
    if ((c->broken < LOADER_BAD_FIRST && !whole) || (double)c->broken <= s->max_bad * (double)c->seen) return PL_OK;
    enum data_fault most = FAULT_NONE;
    char why[LOADER_NAMED + 160] = ""; /* empty when all came before a resume, which keeps only their number */
    for (int f = 1; f < FAULT_KINDS; f++)
        if (c->fault[f] > c->fault[most]) most = (enum data_fault)f;
    if (most) snprintf(why, sizeof why, "; most often: %s (%llu), last %s", fault_text(most), (unsigned long long)c->fault[most], c->last);
    return error_set(e, PL_FAIL, "%llu of %llu samples are broken, but data.max_bad is %g%s; `plimsoll data verify` lists all",
                     (unsigned long long)c->broken, (unsigned long long)c->seen, s->max_bad, why);
}

int loader_next(struct loader *l, const struct loader_sample **out, struct error *e)
{
    CHECK(l->source && (!l->source->once || l->taken < dataset_count(l->source->set)), "no sample at position %llu", (unsigned long long)l->taken);
    pthread_mutex_lock(&l->lock);
    if (l->holds) { /* release the slot of the previous call */
        l->holds = false;
        pthread_cond_broadcast(&l->work);
    }
    struct slot *s = &l->slots[l->taken % l->o.slots];
    while (!s->ready) pthread_cond_wait(&l->done, &l->lock);
    s->ready = false;
    l->taken++;
    l->holds = true;
    pthread_mutex_unlock(&l->lock);
    count(l->source, s);
    *out = &s->out;
    return check_broken(l->source, s, e);
}
