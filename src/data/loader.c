/*
 * loader.c: images with masks in a ring (see loader.h); fill.c does the work of a thread.
 */
#include "data/loader.h"

#include "data/fill.h"

#define LISTS "; `plimsoll data verify` lists all"

/* --- the ring's kind ------------------------------------------------------------------------- */

static uint64_t layout(void *slot, const void *options, char *at) { return slot_layout(slot, options, at); }
static uint64_t thread_bytes(const void *options) { return filler_size(options); }
static void *thread_new(const void *options, char *at) { return filler_new(options, at); }
static void thread_free(void *filler) { filler_free(filler); }
static void fill(void *filler, const void *source, uint64_t position, void *slot)
{
    fill_slot(filler, source, position, slot);
}

static void prefetch(const void *source, uint64_t position)
{
    const struct loader_source *s = source;
    dataset_prefetch(s->set, source_sample(s, position));
}

uint64_t loader_default_room(const char *format, bool stores)
{
    const uint64_t mib = !strcmp(format, "sa1b") ? 8 : !strcmp(format, "coco") ? 16 : stores ? 1 : 64;
    return mib << 20;
}

/* --- the consumer ---------------------------------------------------------------------------- */

static void count(struct loader_source *s, const struct slot *slot)
{
    struct loader_counts *c = &s->order.counts;
    c->seen++;
    c->bad_masks += slot->bad_masks;
    c->lost_masks += slot->lost_masks;
    if (slot->out.fault == FAULT_NO_MASKS) c->empty++;
    else if (slot->out.fault)
        faults_count(c, &slot->why, s->order.quiet,
                     s->order.once ? "it is skipped" : "another sample replaces it", LISTS);
}

/* Prints "data.min_iou 0.9, data.categories": the filters that are set. */
static const char *filters_print(const struct loader_source *s, char out[160])
{
    const struct sampler_options *o = &s->sampler;
    int n = 0;
    out[0] = 0;
    if (o->min_iou > 0) n += snprintf(out + n, 160 - (size_t)n, ", data.min_iou %g", (double)o->min_iou);
    if (o->min_stability > 0)
        n += snprintf(out + n, 160 - (size_t)n, ", data.min_stability %g", (double)o->min_stability);
    if (o->min_area > 0 || (o->max_area > 0 && o->max_area < 1))
        n += snprintf(out + n, 160 - (size_t)n, ", data.area %g to %g", o->min_area, o->max_area);
    if (s->set->by_category) n += snprintf(out + n, 160 - (size_t)n, ", data.categories");
    return n ? out + 2 : "none is set";
}

/* Reports that no sample could be used. If none ever could, the data or the filters are wrong. */
static int nothing_left(const struct loader_source *s, const struct slot *slot, struct error *e)
{
    const struct loader_counts *c = &s->order.counts;
    char filters[160];
    return error_set(e, c->broken + c->empty == c->seen ? PL_USAGE : PL_FAIL,
                     "no sample is left: %s cannot be used (%s), and neither can any substitute that was tried; of "
                     "%llu samples so far %llu are broken and "
                     "%llu have no mask that passes the filters (%s); list them with `plimsoll data verify`",
                     slot->why.name, slot->why.text, (unsigned long long)c->seen, (unsigned long long)c->broken,
                     (unsigned long long)c->empty, filters_print(s, filters));
}

/* Fails when too many samples are broken, or when a broken one has no substitute. */
static int check_broken(const struct loader_source *s, const struct slot *slot, struct error *e)
{
    const bool whole = (slot->out.position + 1) % dataset_count(s->set) == 0;
    if (dataset_intact(s->set, e)) return e->code; /* no fault of this sample */
    if (slot->rc) return nothing_left(s, slot, e);
    return faults_check(&s->order.counts, s->order.max_bad, whole, LISTS, e);
}

int slot_count(struct loader_source *s, const struct slot *slot, struct error *e)
{
    if (faults_open(&slot->why, e)) return e->code;
    count(s, slot);
    return check_broken(s, slot, e);
}

static uint64_t count_samples(const void *source)
{
    return dataset_count(((const struct loader_source *)source)->set);
}

static int take(void *source, const void *slot, struct error *e) { return slot_count(source, slot, e); }

const struct reader_kind loader_kind = {
    .ring = {sizeof(struct slot), layout, thread_bytes, thread_new, thread_free, fill, prefetch},
    .options = sizeof(struct loader_options),
    .threads = offsetof(struct loader_options, threads),
    .slots = offsetof(struct loader_options, slots),
    .count = count_samples,
    .take = take};
