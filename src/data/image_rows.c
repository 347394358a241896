/*
 * image_rows.c: see image_rows.h.
 */
#include "data/image_rows.h"
#include "data/formats/packed.h"
#include "data/text/records.h"

#include "data/order.h"

struct row_slot {
    struct image_row out;
    char *pixels;            /* [options.images + options.frames][image_rows_each] */
    float *volumes[MODALITIES];
    struct row_media *media; /* [image_rows_media] */
    struct image_grid *grids;  /* [options.images] with patches */
    uint32_t replaced;       /* frames that could not be decoded... */
    uint32_t replaced_in;    /* ...the first of them in this sample of the store */
    uint32_t *samples;       /* [sequence] what the row holds: a conversation has at least a token */
    uint32_t n;
    uint32_t seen;           /* conversations that the row should hold */
    struct slot_fault why;   /* of those that are broken */
    int rc;                  /* not PL_OK: nothing in the row could be used or replaced */
};

/* The state of a thread. */
struct worker {
    struct image_rows_options o;
    uint64_t each;           /* bytes of an image */
    struct image_reader *reader; /* NULL: embeddings are read */
};

/* --- memory ----------------------------------------------------------------------------------- */

/* Returns the bytes of an image, or of its embedding. */
static uint64_t image_rows_each(const struct image_rows_options *o)
{
    const struct patch_rules *p = o->reader.patches;
    if (p && !o->embedding)
        return (uint64_t)(o->most_patches ? o->most_patches : p->merge * p->merge) * patch_bytes(p);
    return o->embedding ? o->embedding : image_reader_size(&o->reader);
}

static int modalities_of(const struct image_rows_options *o)
{
    return o->reader.modalities ? o->reader.modalities->n : 0;
}

uint32_t image_rows_media(const struct image_rows_options *o)
{
    return o->frames + o->volumes * (uint32_t)modalities_of(o);
}

/* Returns the bytes of a volume of a modality. */
static uint64_t volume_bytes(const struct image_rows_options *o, int modality)
{
    return (uint64_t)modality_floats(&o->reader.modalities->at[modality]) * sizeof(float);
}

static uint64_t slot_layout(void *slot, const void *options, char *at)
{
    const struct image_rows_options *o = options;
    struct row_slot *s = slot;
    uint64_t used = 0;
    token_row_place(&s->out.tokens, o->sequence, at, &used);
    s->samples = ring_carve(at, &used, (uint64_t)o->sequence * sizeof *s->samples);
    s->pixels = ring_carve(at, &used, (o->images + o->frames) * image_rows_each(o));
    for (int k = 0; k < modalities_of(o); k++)
        s->volumes[k] = ring_carve(at, &used, volume_bytes(o, k) * o->volumes);
    s->media = ring_carve(at, &used, image_rows_media(o) * sizeof *s->media);
    s->grids = ring_carve(at, &used, (o->reader.patches ? o->images : 0) * sizeof *s->grids);
    return used;
}

static uint64_t thread_bytes(const void *options)
{
    const struct image_rows_options *o = options;
    return o->embedding ? 0 : image_reader_bytes(&o->reader);
}

static void *thread_new(const void *options, char *at)
{
    struct worker *w = mem_alloc(sizeof *w);
    w->o = *(const struct image_rows_options *)options;
    w->each = image_rows_each(&w->o);
    if (!w->o.embedding) w->reader = image_reader_new(&w->o.reader, at);
    return w;
}

static void thread_free(void *thread)
{
    struct worker *w = thread;
    if (!w) return;
    image_reader_free(w->reader);
    mem_free(w);
}

/* --- a row ------------------------------------------------------------------------------------ */

static uint64_t row_at(const struct image_rows_source *s, uint64_t position)
{
    return s->order.once ? position
                         : sample_at(s->order.seed, position, conversations_count(s->set), s->order.shuffle);
}

static struct row_size size_of(const struct conversations *c, struct row_samples row)
{
    struct row_size sum = {0};
    for (uint32_t k = 0; k < row.n; k++) {
        const struct row_size *x = &c->used.at[row.at[k]].size;
        sum.tokens += x->tokens, sum.images += x->images, sum.frames += x->frames;
        for (int i = 0; i < MODALITIES; i++) sum.volumes[i] += x->volumes[i];
    }
    return sum;
}

/* Reads an image or a video of any size. */
static enum data_fault read_patches(struct worker *w, const struct image_rows_source *source, struct sample_image x,
                                    char *to, struct image_grid *grid, uint32_t *replaced, struct error *e)
{
    const uint32_t most = w->o.most_patches;
    struct patches_read read = {.to = (uint8_t *)to, .tokens = most ? 0 : x.count, .most = most};
    const bool video = media_is_video(x.reference);
    const enum data_fault fault =
        (video ? image_reader_video_patches : image_reader_patches)(w->reader, source->files, x.reference, &read, e);
    *grid = (struct image_grid){read.grid.t, read.grid.h, read.grid.w, video, read.seconds};
    *replaced += read.replaced;
    return fault;
}

/* Copies what the store has of an image of any size. */
static enum data_fault read_outputs(const struct worker *w, const struct image_rows_source *source,
                                    struct sample_image x, char *to, struct image_grid *grid, struct error *e)
{
    struct packed_output stored;
    uint32_t none;
    const enum data_fault fault =
        image_files_embeddings(source->files, x.reference, x.count, to, x.count * w->each, &none, e);
    const uint32_t merge = w->o.reader.patches->merge;
    if (fault || image_files_output(source->files, x.reference, &stored, e)) return fault ? fault : FAULT_READ;
    *grid = (struct image_grid){.t = 1, .h = stored.rows * merge, .w = stored.columns * merge};
    return FAULT_NONE;
}

static enum data_fault read_image(struct worker *w, const struct image_rows_source *source, struct sample_image x,
                                  char *to, struct image_grid *grid, uint32_t *replaced, struct error *e)
{
    if (w->o.reader.patches && w->o.embedding) return read_outputs(w, source, x, to, grid, e);
    if (w->o.reader.patches) return read_patches(w, source, x, to, grid, replaced, e);
    if (w->o.embedding)
        return image_files_embeddings(source->files, x.reference, x.count, to, x.count * w->each, replaced, e);
    return image_reader_read(w->reader, source->files, x.reference, x.count, (uint8_t *)to, e);
}

static enum data_fault read_video(struct worker *w, const struct image_rows_source *source,
                                  const struct sample_media *x, char *to, uint32_t *replaced, struct error *e)
{
    if (w->o.embedding)
        return image_files_embeddings(source->files, x->reference, x->frames, to, x->frames * w->each, replaced, e);
    return image_reader_video(w->reader, source->files, x->reference, x->frames,
                              &(struct frames_to){.pixels = (uint8_t *)to}, replaced, e);
}

/* Counts frames of a conversation that could not be decoded. */
static void count_frames(struct row_slot *s, const struct used_sample *u, uint32_t replaced)
{
    if (!s->replaced) s->replaced_in = u->sample;
    s->replaced += replaced;
}

/* Returns where volume `nth` of a modality lies in a slot. */
static float *volume_at(const struct worker *w, const struct row_slot *s, int modality, uint32_t nth)
{
    return s->volumes[modality] + nth * modality_floats(&w->o.reader.modalities->at[modality]);
}

/* Reads the videos and volumes of a conversation that begins at token `at` of the row. */
static enum data_fault read_media(struct worker *w, const struct image_rows_source *source,
                                  const struct used_sample *u, uint32_t at, struct row_slot *s, struct error *e)
{
    struct sample_media x;
    uint32_t frames = 0, volumes[MODALITIES] = {0}, n = 0, all = 0;
    for (; conversations_media(source->set, u, n, &x); n++) {
        const int k = x.modality;
        uint32_t replaced = 0;
        char *pixels = s->pixels + (w->o.images + s->out.frames + frames) * w->each;
        const enum data_fault fault =
            k < 0 ? read_video(w, source, &x, pixels, &replaced, e)
                  : image_reader_volume(w->reader, source->files, x.reference,
                                        volume_at(w, s, k, s->out.n_volumes[k] + volumes[k]++), e);
        if (fault) return fault;
        s->media[s->out.n_media + n] = (struct row_media){at + x.tokens.begin, at + x.tokens.end, k};
        frames += x.frames;
        all += replaced;
    }
    s->out.n_media += n;
    s->out.frames += frames;
    for (int k = 0; k < MODALITIES; k++) s->out.n_volumes[k] += volumes[k];
    count_frames(s, u, all);
    return FAULT_NONE;
}

/* Returns where the pixels of the next image go, behind `images` others of its conversation, which
 * are `files` files. */
static char *next_pixels(const struct worker *w, const struct row_slot *s, uint32_t images, uint32_t files)
{
    uint64_t patches = 0;
    if (!w->o.most_patches) return s->pixels + (s->out.images + images) * w->each;
    for (uint32_t i = 0; i < s->out.n_grids + files; i++) patches += (uint64_t)grid_patches(&s->grids[i]);
    return s->pixels + patches * patch_bytes(w->o.reader.patches);
}

/* Adds a conversation to the row, if all of its images and videos can be read. */
static enum data_fault add_sample(struct worker *w, const struct image_rows_source *source, uint32_t sample,
                                  struct row_slot *s, struct error *e)
{
    const struct used_sample *u = &source->set->used.at[sample];
    uint32_t images = 0, files = 0, replaced = 0;
    for (; images < u->size.images; files++) {
        struct sample_image x = conversations_image(source->set, u, images);
        struct image_grid *grid = s->grids + s->out.n_grids + files;
        enum data_fault fault = read_image(w, source, x, next_pixels(w, s, images, files), grid, &replaced, e);
        if (fault) return fault;
        images += x.count;
    }
    if (!w->o.reader.patches) { /* else videos are among the images */
        const enum data_fault fault =
            read_media(w, source, u, size_of(source->set, (struct row_samples){s->samples, s->n}).tokens, s, e);
        if (fault) return fault;
    }
    count_frames(s, u, replaced);
    s->samples[s->n++] = sample;
    s->out.images += images;
    s->out.n_grids += files;
    return FAULT_NONE;
}

/* Tries to add other conversations in place of a broken one, in the room that the row has for
 * it. */
static void add_substitute(struct worker *w, const struct image_rows_source *source, uint64_t position, uint32_t place,
                           struct row_size room, struct row_slot *s)
{
    struct error e = {0};
    for (uint64_t i = 0; i < FAULTS_TRIES && s->why.fault != FAULT_OPEN; i++) {
        const uint32_t k = (uint32_t)faults_substitute(source->order.seed, position, (uint64_t)place * FAULTS_TRIES + i,
                                                       source->set->used.n);
        const struct used_sample *u = &source->set->used.at[k];
        if (row_fits(&room, &u->size) && !add_sample(w, source, k, s, &e)) return;
        if (e.no_descriptors) faults_set(&s->why, FAULT_OPEN, &e);
    }
}

static void note_fault(struct row_slot *s, const struct image_rows_source *source, uint32_t sample,
                       enum data_fault fault, const struct error *e)
{
    const struct stored_sample *x = &source->set->store.samples[source->set->used.at[sample].sample];
    if (!s->why.broken++ || e->no_descriptors) {
        snprintf(s->why.name, sizeof s->why.name, "%.200s:%s", source->set->store.names + x->file,
                 record_place(x->line).text);
        faults_set(&s->why, fault, e);
    }
}

static void fill_row(void *thread, const void *from, uint64_t position, void *slot)
{
    struct worker *w = thread;
    const struct image_rows_source *source = from;
    struct row_slot *s = slot;
    struct error e = {0};
    const struct row_samples row = conversations_samples(source->set, row_at(source, position));
    s->out =
        (struct image_row){.position = position, .tokens = s->out.tokens, .pixels = s->pixels, .media = s->media,
                               .grids = s->grids};
    for (int k = 0; k < modalities_of(&w->o); k++) s->out.volumes[k] = s->volumes[k];
    s->n = s->why.broken = s->replaced = 0;
    s->why.fault = FAULT_NONE;
    s->seen = row.n;
    for (uint32_t k = 0; k < row.n; k++) {
        const enum data_fault fault = add_sample(w, source, row.at[k], s, &e);
        if (!fault) continue;
        note_fault(s, source, row.at[k], fault, &e);
        const struct row_size before = size_of(source->set, (struct row_samples){s->samples, s->n}),
                              after = size_of(source->set, (struct row_samples){row.at + k + 1, row.n - k - 1});
        struct row_size room = {.tokens = w->o.sequence, .images = w->o.images, .frames = w->o.frames};
        for (int i = 0; i < modalities_of(&w->o); i++) room.volumes[i] = w->o.volumes;
        row_take(&room, &before);
        row_take(&room, &after);
        if (!source->order.once) add_substitute(w, source, position, k, room, s);
    }
    if (!w->o.reader.patches) /* the batch writer knows where patches end */
        memset(s->pixels + s->out.images * w->each, 0, (w->o.images - s->out.images) * w->each);
    memset(s->pixels + (w->o.images + s->out.frames) * w->each, 0, (w->o.frames - s->out.frames) * w->each);
    for (int k = 0; k < modalities_of(&w->o); k++)
        memset(volume_at(w, s, k, s->out.n_volumes[k]), 0,
               (w->o.volumes - s->out.n_volumes[k]) * volume_bytes(&w->o, k));
    conversations_fill(source->set, (struct row_samples){s->samples, s->n}, &s->out.tokens);
    s->rc = s->n || source->order.once ? PL_OK : PL_FAIL;
}

/* --- the consumer ----------------------------------------------------------------------------- */

static uint64_t count_rows(const void *source)
{
    return conversations_count(((const struct image_rows_source *)source)->set);
}

/* Returns the conversations in the rows before a position. */
static uint64_t count_seen(const void *source, uint64_t position)
{
    const struct image_rows_source *s = source;
    const uint64_t rows = conversations_count(s->set);
    uint64_t seen = position / rows * s->set->used.n;
    for (uint64_t p = position - position % rows; p < position; p++)
        seen += conversations_samples(s->set, row_at(s, p)).n;
    return seen;
}

static int bits_of(uint64_t n) { return n ? 64 - __builtin_clzll(n) : 0; }

/* Counts frames that could not be decoded, and logs the first, and then each time their number has
 * doubled. */
static void count_replaced(struct image_rows_source *source, const struct row_slot *s)
{
    const struct token_store *store = &source->set->store;
    const struct stored_sample *x = &store->samples[s->replaced_in];
    const uint64_t before = source->replaced;
    source->replaced += s->replaced;
    if (bits_of(source->replaced) > bits_of(before))
        log_warn("%s:%s: a frame of its video cannot be decoded and is replaced by one beside it; %llu frames so far",
                 store->names + x->file, record_place(x->line).text, (unsigned long long)source->replaced);
}

static int take(void *from, const void *slot, struct error *e)
{
    const struct row_slot *s = slot;
    struct image_rows_source *source = from;
    const bool whole = (s->out.position + 1) % conversations_count(source->set) == 0;
    if (faults_open(&s->why, e)) return e->code;
    source->order.counts.seen += s->seen;
    count_replaced(source, s);
    if (s->why.broken)
        faults_count(&source->order.counts, &s->why, false,
                     source->order.once ? "it is left out" : "another sample replaces it", "");
    if (conversations_check(source->set, e)) return e->code; /* no fault of this row */
    if (s->rc)
        return error_set(e, source->order.counts.broken == source->order.counts.seen ? PL_USAGE : PL_FAIL,
                         "no sample is left: %s cannot be used (%s), and neither can any substitute that was tried; "
                         "%llu of %llu samples so far are broken",
                         s->why.name, s->why.text, (unsigned long long)source->order.counts.broken,
                         (unsigned long long)source->order.counts.seen);
    return faults_check(&source->order.counts, source->order.max_bad, whole, "", e);
}

const struct reader_kind image_rows_kind = {
    .ring = {sizeof(struct row_slot), slot_layout, thread_bytes, thread_new, thread_free, fill_row, NULL},
    .options = sizeof(struct image_rows_options),
    .threads = offsetof(struct image_rows_options, threads),
    .slots = offsetof(struct image_rows_options, slots),
    .count = count_rows,
    .take = take,
    .seen = count_seen};
