/*
 * image_list.c: see image_rows.h.
 */
#include "data/image_rows.h"

#include "data/order.h"

struct image_slot {
    struct list_image out;
    uint8_t *pixels;
    struct slot_fault why;
    int rc;                  /* not PL_OK: no substitute could be used either */
};

/* The state of a thread. */
struct worker {
    uint64_t bytes;          /* of an image for the tower */
    struct image_reader *reader;
};

/* --- memory ----------------------------------------------------------------------------------- */

static uint64_t slot_layout(void *slot, const void *options, char *at)
{
    const struct image_list_options *o = options;
    struct image_slot *s = slot;
    uint64_t used = 0;
    s->pixels = ring_carve(at, &used, image_reader_size(&o->reader));
    return used;
}

static uint64_t thread_bytes(const void *options)
{
    return image_reader_bytes(&((const struct image_list_options *)options)->reader);
}

static void *thread_new(const void *options, char *at)
{
    const struct image_list_options *o = options;
    struct worker *w = mem_alloc(sizeof *w);
    *w = (struct worker){image_reader_size(&o->reader), image_reader_new(&o->reader, at)};
    return w;
}

static void thread_free(void *thread)
{
    struct worker *w = thread;
    if (!w) return;
    image_reader_free(w->reader);
    mem_free(w);
}

/* --- an image --------------------------------------------------------------------------------- */

static enum data_fault read_sample(struct worker *w, const struct image_list_source *source, uint64_t sample,
                                   struct image_slot *s, struct error *e)
{
    s->out.sample = sample;
    return image_reader_read(w->reader, source->files, source->set->samples.at[sample].image, 1, s->pixels, e);
}

static void fill(void *thread, const void *from, uint64_t position, void *slot)
{
    struct worker *w = thread;
    const struct image_list_source *source = from;
    const struct sample_order *order = &source->order;
    const uint64_t n = source->set->samples.n,
                   sample = order->once ? position : sample_at(order->seed, position, n, order->shuffle);
    struct image_slot *s = slot;
    struct error e = {0};
    s->out = (struct list_image){.position = position, .pixels = s->pixels};
    s->why.broken = 0;
    s->why.fault = FAULT_NONE;
    s->rc = PL_OK;
    const enum data_fault fault = read_sample(w, source, sample, s, &e);
    if (!fault) return;
    s->why.broken = 1;
    labelled_name(source->set, sample, s->why.name, sizeof s->why.name);
    faults_set(&s->why, fault, &e);
    for (uint64_t i = 0; i < FAULTS_TRIES && !source->order.once && s->why.fault != FAULT_OPEN; i++)
        if (!read_sample(w, source, faults_substitute(source->order.seed, position, i, n), s, &e)) return;
    memset(s->pixels, 0, w->bytes);
    s->out.broken = true;
    s->rc = source->order.once ? PL_OK : PL_FAIL;
}

/* --- the consumer ----------------------------------------------------------------------------- */

static uint64_t count_images(const void *source) { return ((const struct image_list_source *)source)->set->samples.n; }

static int take(void *from, const void *slot, struct error *e)
{
    const struct image_slot *s = slot;
    struct image_list_source *source = from;
    const bool whole = (s->out.position + 1) % source->set->samples.n == 0;
    if (faults_open(&s->why, e)) return e->code;
    source->order.counts.seen++;
    if (s->why.broken)
        faults_count(&source->order.counts, &s->why, false,
                     source->order.once ? "it is left out" : "another image replaces it", "");
    if (s->rc)
        return error_set(e, source->order.counts.broken == source->order.counts.seen ? PL_USAGE : PL_FAIL,
                         "no image is left: %s cannot be used (%s), and neither can any substitute that was tried",
                         s->why.name, s->why.text);
    return faults_check(&source->order.counts, source->order.max_bad, whole, "", e);
}

const struct reader_kind image_list_kind = {
    .ring = {sizeof(struct image_slot), slot_layout, thread_bytes, thread_new, thread_free, fill, NULL},
    .options = sizeof(struct image_list_options),
    .threads = offsetof(struct image_list_options, threads),
    .slots = offsetof(struct image_list_options, slots),
    .count = count_images,
    .take = take};
