/*
 * question_rows.c: see image_rows.h.
 */
#include "data/image_rows.h"

#include "data/fill.h"

struct row_slot {
    struct question_row out;
    struct slot masks;
    uint8_t *pixels;
};

/* The state of a thread. */
struct worker {
    uint64_t size; /* bytes of an image for the tower */
    uint32_t sequence;
    struct filler *filler;
    struct image_reader *reader;
};

/* --- memory ----------------------------------------------------------------------------------- */

static uint64_t layout(void *slot, const void *options, char *at)
{
    const struct question_rows_options *o = options;
    struct row_slot *s = slot;
    struct token_row *t = &s->out.tokens;
    int32_t **const arrays[] = {&t->ids, &t->labels, &t->positions, &t->ranges};
    uint64_t used = slot_layout(&s->masks, &o->masks, at);
    for (size_t i = 0; i < COUNT(arrays); i++)
        *arrays[i] = ring_carve(at, &used, (i == 3 ? 2ull : 1ull) * o->sequence * sizeof(int32_t));
    s->pixels = ring_carve(at, &used, image_reader_size(&o->reader));
    return used;
}

static uint64_t filler_room(const struct question_rows_options *o) { return (filler_size(&o->masks) + 63) / 64 * 64; }

static uint64_t thread_bytes(const void *options)
{
    const struct question_rows_options *o = options;
    return filler_room(o) + image_reader_bytes(&o->reader);
}

static void *thread_new(const void *options, char *at)
{
    const struct question_rows_options *o = options;
    struct worker *w = mem_alloc(sizeof *w);
    *w = (struct worker){.size = image_reader_size(&o->reader), .sequence = o->sequence,
                         .filler = filler_new(&o->masks, at)};
    w->reader = image_reader_new(&o->reader, at + filler_room(o));
    return w;
}

static void thread_free(void *thread)
{
    struct worker *w = thread;
    if (!w) return;
    filler_free(w->filler);
    image_reader_free(w->reader);
    mem_free(w);
}

/* --- a sample --------------------------------------------------------------------------------- */

/* Returns the tokens before the answer; with `answers`, all. */
static int32_t tokens_read(const struct conversations *c, uint32_t k, const struct token_row *row, bool answers)
{
    const struct stored_sample *x = &c->store.samples[c->used.at[k].sample];
    if (answers || !x->answers) return (int32_t)row->tokens;
    return (int32_t)min_i64(c->store.answers[x->first_answer].begin, row->tokens);
}

/* Clears the targets of a sample that cannot be used: it counts in no loss. */
static void clear_targets(const struct worker *w, struct row_slot *s)
{
    for (uint32_t i = 0; i < w->sequence; i++) s->out.tokens.labels[i] = -100;
    s->out.tokens.labelled = 0;
    s->masks.out.n = 0;
}

static void fill(void *thread, const void *from, uint64_t position, void *slot)
{
    struct worker *w = thread;
    const struct question_rows_source *source = from;
    struct row_slot *s = slot;
    struct error ignored;
    fill_slot(w->filler, &source->masks, position, &s->masks);
    const uint32_t k = source->row_of[s->masks.rc ? 0 : s->masks.out.sample];
    const struct sample_image x = conversations_image(source->set, &source->set->used.at[k], 0);
    conversations_fill(source->set, (struct row_samples){&k, 1}, &s->out.tokens);
    s->out.question[0] = 0;
    s->out.question[1] = tokens_read(source->set, k, &s->out.tokens, source->reads_answers);
    s->out.pixels = s->pixels;
    s->out.image = &s->masks.out;
    if (!image_reader_read(w->reader, source->files, x.reference, x.count, s->pixels, &ignored)) return;
    memset(s->pixels, 0, w->size);
    clear_targets(w, s);
}

static void prefetch(const void *source, uint64_t position)
{
    const struct loader_source *s = &((const struct question_rows_source *)source)->masks;
    dataset_prefetch(s->set, source_sample(s, position));
}

/* --- the consumer ----------------------------------------------------------------------------- */

static uint64_t count_samples(const void *source)
{
    return dataset_count(((const struct question_rows_source *)source)->masks.set);
}

static int take(void *from, const void *slot, struct error *e)
{
    struct question_rows_source *source = from;
    TRY(conversations_check(source->set, e)); /* no fault of this sample */
    return slot_count(&source->masks, &((const struct row_slot *)slot)->masks, e);
}

const struct reader_kind question_rows_kind = {
    .ring = {sizeof(struct row_slot), layout, thread_bytes, thread_new, thread_free, fill, prefetch},
    .options = sizeof(struct question_rows_options),
    .threads = offsetof(struct question_rows_options, masks.threads),
    .slots = offsetof(struct question_rows_options, masks.slots),
    .count = count_samples,
    .take = take};
