/*
 * pack_store.c: see pack_store.h.
 *
 * Threads prepare the samples of a block with the loader's own code; the block is then written in
 * order. With an encoder, it runs on the images of a block, one by one, in its own planned memory.
 */
#include "infer/pack_store.h"

#include "base/progress.h"
#include "batch/embed.h"
#include "data/fill.h"
#include "data/formats/memmap.h"
#include "data/images/image.h"
#include "io/png.h"
#include "models/contents.h"
#include "models/model.h"

enum { BLOCK = 16, POLYGON_RUNS = 1 << 19 };
/* bytes per thread for a sample's files; pages are committed on first use */
static const uint64_t room = (uint64_t)1 << 28;

struct packing {
    struct samples all;
    struct loader_options o;
    bool bytes;                  /* the layout with a memory map */
    struct packed_writer *store; /* either `store` or `map` is set */
    struct memmap_writer *map;
    struct embedder *embedder;   /* NULL: no embeddings */
    void *embedding;             /* of the current sample */
    struct pack_result *out;
    struct progress progress;
    VEC(int32_t) categories;     /* seen so far */
};

/* One sample between preparation and writing. */
struct packable {
    struct fill_facts facts;
    struct mask *masks;          /* [n] */
    uint8_t *image, *bits;
    size_t image_n;              /* bytes of the image file, when the file is kept */
    uint32_t n, bad;
    char name[512], group[512];
    struct error e;
    bool ok, grouped;
};

/* ---- preparing ---- */

static enum data_fault make_masks(const struct packing *p, struct filler *f, struct packable *to)
{
    size_t bytes = grid_mask_bytes(p->o.cells, p->o.cells);
    uint32_t n = to->facts.n;
    to->masks = mem_alloc(n * sizeof *to->masks);
    to->bits = mem_alloc(n * bytes);
    for (uint32_t k = 0; k < n; k++) {
        enum data_fault fault = fill_bits(f, k, to->bits + to->n * bytes, &to->e);
        if (fault == FAULT_SIZE) return fault;
        if (fault) to->bad++;
        else to->masks[to->n++] = to->facts.records[k];
    }
    return to->n ? FAULT_NONE : FAULT_NO_MASKS;
}

static bool is_deep(const struct sample *s)
{
    struct png_header h;
    struct error ignored;
    return image_format(s->image, s->facts.n) == IMAGE_PNG && !png_peek(s->image, s->facts.n, &h, &ignored) &&
           h.depth == 16;
}

/* Keeps the bytes of the image file. The pixels of a packed store become a PNG, and so does an
 * image of 16 bits, as 8 bits by the range that was decided over all images. */
static enum data_fault keep_file(const struct packing *p, uint64_t i, struct packable *to)
{
    struct sample s;
    struct text png = {0};
    struct image rgb;
    int rc = samples_read(p->all.set, i, &s, &to->e);
    if (!rc && (s.facts.decoded || is_deep(&s))) {
        rc = sample_decode(&s, &p->all.set->range, &rgb, &to->e);
        if (!rc) {
            rc = png_encode(&png, PNG_RGB, rgb.width, rgb.height, rgb.rgb, 0, &to->e);
            image_free(&rgb);
        }
        to->image = (uint8_t *)png.at, to->image_n = png.n;
        if (s.facts.decoded) to->facts.h = s.facts.h, to->facts.w = s.facts.w;
    } else if (!rc) {
        to->image = s.image, to->image_n = s.facts.n;
        s.image = NULL;
    }
    sample_free(&s);
    return rc ? FAULT_READ : FAULT_NONE;
}

static void make(const struct packing *p, struct filler *f, uint64_t i, struct packable *to)
{
    memset(to, 0, sizeof *to);
    dataset_name(p->all.set, i, to->name, sizeof to->name);
    to->grouped = dataset_split_group(p->all.set, i, to->group, sizeof to->group);
    enum data_fault fault = fill_records(f, p->all.set, i, p->bytes, &to->facts, &to->e);
    if (!fault) fault = make_masks(p, f, to);
    if (!fault && p->bytes) fault = keep_file(p, i, to);
    else if (!fault) {
        to->image = mem_alloc((size_t)p->o.side * p->o.side * 3);
        fault = fill_sample_image(f, p->all.set, i, to->image, &to->e);
    }
    to->ok = !fault;
}

/* ---- writing ---- */

/* Records each category of a sample's masks once. */
static void record_categories(struct packing *p, const struct packable *x)
{
    for (uint32_t k = 0; k < x->n; k++) {
        bool known = false;
        for (uint32_t i = 0; i < p->categories.n && !known; i++) known = p->categories.at[i] == x->masks[k].category;
        if (known) continue;
        vec_push(&p->categories, x->masks[k].category);
        const char *name = dataset_category(p->all.set, x->masks[k].category);
        if (name && p->store) packed_category(p->store, x->masks[k].category, name);
    }
}

static int write_sample(struct packing *p, const struct packable *x, struct error *e)
{
    if (p->embedder) {
        TRY(embed_image(p->embedder, x->image, x->facts.rows, x->facts.columns, p->embedding, e));
        TRY(embed_finite(p->embedder, p->embedding, x->name, e));
    }
    const char *slash = strrchr(x->name, '/'), *key = slash ? slash + 1 : x->name,
               *group = x->grouped ? x->group : NULL;
    record_categories(p, x);
    p->out->samples++;
    p->out->masks += x->n;
    p->out->bad_masks += x->bad;
    if (p->map)
        return memmap_add(p->map,
                          &(struct memmap_new){.name = x->name, .key = key, .group = group, .h = x->facts.h,
                                               .w = x->facts.w, .image = x->image, .n = x->image_n, .bits = x->bits,
                                               .masks = x->n},
                          e);
    return packed_add(p->store,
                      &(struct packed_new){.name = x->name, .key = key, .group = group, .h = x->facts.h,
                                           .w = x->facts.w, .rows = x->facts.rows, .columns = x->facts.columns,
                                           .image = x->image, .embedding = p->embedding, .masks = x->masks,
                                           .bits = x->bits, .n = x->n, .empty = x->facts.empty},
                      e);
}

static int write_block(struct packing *p, struct packable *block, uint64_t n, struct error *e)
{
    int rc = PL_OK;
    for (uint64_t i = 0; i < n; i++) {
        struct packable *x = &block[i];
        if (!x->ok && p->out->left_out++ < PACK_REPORTED) {
            progress_clear();
            print_line("left out: %s: %s", x->name, x->e.text);
        }
        if (x->ok && !rc) rc = write_sample(p, x, e);
        progress_add(&p->progress, 1);
        mem_free(x->masks);
        mem_free(x->image);
        mem_free(x->bits);
    }
    return rc;
}

static int pack_all(struct packing *p, struct error *e)
{
    struct packable *block = mem_alloc(BLOCK * sizeof *block);
    int rc = PL_OK;
    progress_begin(&p->progress, p->embedder ? "packing with embeddings" : "packing", "images", p->all.n);
    for (uint64_t from = 0; from < p->all.n && !rc; from += BLOCK) {
        uint64_t n = min_u64(p->all.n - from, BLOCK);
#pragma omp parallel
        {
            char *memory = mem_alloc(filler_size(&p->o) + 64);
            struct filler *f = filler_new(&p->o, (char *)align_up((uintptr_t)memory, 64));
#pragma omp for schedule(dynamic)
            for (uint64_t i = 0; i < n; i++) make(p, f, from + i, &block[i]);
            filler_free(f);
            mem_free(memory);
        }
        rc = write_block(p, block, n, e);
    }
    progress_clear();
    mem_free(block);
    return rc;
}

/* Writes the store; the output appears when it is complete. */
static int write_store(struct packing *p, const struct pack_options *o, struct error *e)
{
    int rc = p->bytes ? memmap_create(&p->map, o->output, p->o.cells, e)
                      : packed_create(&p->store, o->output, p->o.side, p->o.cells, e);
    survey_log(p->all.set);
    if (!rc && p->store && p->all.set->range.kind != RANGE_AUTO) packed_set_range(p->store, &p->all.set->range);
    if (!rc && p->embedder) packed_embed(p->store, &p->embedder->about);
    if (!rc) rc = pack_all(p, e);
    if (!rc) rc = dataset_intact(p->all.set, e);
    if (!rc && !p->out->samples)
        rc = error_set(e, PL_USAGE, "none of %llu samples is usable: no file is written", (unsigned long long)p->all.n);
    if (!rc) return p->store ? packed_finish(p->store, e) : memmap_finish(p->map, e);
    if (p->store) packed_abandon(p->store);
    if (p->map) memmap_abandon(p->map);
    return rc;
}

/* Packs images with masks. Prints the first unusable samples, which are left out. The encoder is
 * opened first, so that its errors appear before any file is written. */
static int pack_samples(const struct pack_options *o, struct pack_result *out, struct error *e)
{
    const double from = clock_seconds();
    struct embedder m;
    struct dataset_options set = *o->set;
    struct packing p = {.out = out, .bytes = o->memmap,
                        .o = {.side = o->side, .stretched = o->stretched, .cells = o->cells,
                              .masks = 1, .threads = 1, .slots = 2, .room = room,
                              .polygon_runs = POLYGON_RUNS}};
    *out = (struct pack_result){0};
    set.room = room;
    if (o->encoder) {
        TRY(embed_open(&m, o->encoder, o->side, o->dtype, o->keys, e));
        p.embedder = &m, p.embedding = mem_alloc(m.bytes), out->embeddings = m.about;
    }
    int rc = samples_open(&p.all, &set, o->paths, e);
    if (!rc) {
        rc = write_store(&p, o, e);
        vec_free(&p.categories);
        samples_close(&p.all);
    }
    mem_free(p.embedding);
    if (o->encoder) embed_close(&m);
    out->seconds = clock_seconds() - from;
    return rc;
}

/* --- what the options say --------------------------------------------------------------------- */

/* Reports whether a model folder has an encoder of the images of conversations. */
static bool encodes_conversations(const char *folder, const struct names *set)
{
    struct config c;
    struct model m;
    struct error ignored;
    bool found = false;
    if (!embed_config(&c, folder, NULL, set, &ignored) && !config_open_model(&c, &m, &ignored)) {
        found = m.encoder && !*m.encoder;
        model_close(&m);
    }
    config_free(&c);
    return found;
}

/* Fills in the sizes that the options did not give with the model's training sizes. */
static int read_model_sizes(const char *name, uint64_t *size, uint64_t *cells, bool *stretched, struct error *e)
{
    struct model m = {0};
    struct mask_canvas x = {0};
    int rc = model_find(&m, name, e);
    if (!rc && !model_canvas(&m, (int64_t)*size, &x))
        rc = error_set(e, PL_USAGE, "%s: a %s predicts no masks", name, m.family->model_type);
    if (!rc && *size % (uint64_t)x.patch)
        rc = error_set(e, PL_USAGE,
                       "%s: the image size %llu is not divisible by the patch size %lld; give another --size", name,
                       (unsigned long long)*size, (long long)x.patch);
    *size = (uint64_t)x.side;
    if (!*cells) *cells = (uint64_t)x.cells;
    *stretched = x.stretched;
    model_close(&m);
    return rc;
}

static int check(const struct pack_options *o, uint64_t size, uint64_t cells, struct error *e)
{
    if (!o->output) return error_set(e, PL_USAGE, "no output is given: add -o FILE.pack");
    if (strcmp(o->layout, "plimsoll") && strcmp(o->layout, "memmap"))
        return error_set(e, PL_USAGE, "--layout %s: expected plimsoll or memmap", o->layout);
    if (size < 16 || size > PACKED_MAX_SIDE)
        return error_set(e, PL_USAGE, "--size %llu: expected 16 to %d", (unsigned long long)size, PACKED_MAX_SIDE);
    if (cells < 4 || cells > size)
        return error_set(e, PL_USAGE, "--masks-size %llu: expected 4 to --size", (unsigned long long)cells);
    if (o->memmap && o->encoder)
        return error_set(e, PL_USAGE, "--layout memmap cannot store embeddings: leave out --layout or --embeddings");
    return PL_OK;
}

/* Packs the images of conversations and prints how many. */
static int print_images(const struct pack_options *o, struct error *e)
{
    struct pack_result r;
    char shape[64], time[32], bytes[32];
    if (!o->output) return error_set(e, PL_USAGE, "no output is given: add -o FILE.pack");
    TRY(pack_images(o, &r, e));
    printf("%s: %llu images of %llu conversations, %llu embeddings %s of %s; %llu images cannot be read, %s\n",
           o->output, (unsigned long long)r.images, (unsigned long long)r.samples, (unsigned long long)r.count,
           embed_print(&r.embeddings, shape), size_print(r.bytes, bytes), (unsigned long long)r.left_out,
           duration_print(r.seconds, time));
    return PL_OK;
}

static int print_samples(const struct pack_options *o, struct error *e)
{
    struct pack_result r;
    char time[32], shape[64];
    TRY(pack_samples(o, &r, e));
    if (r.left_out > PACK_REPORTED)
        printf("left out: %llu more samples; `plimsoll data verify` lists all\n",
               (unsigned long long)(r.left_out - PACK_REPORTED));
    printf("%s: %llu samples with %llu masks, ", o->output, (unsigned long long)r.samples, (unsigned long long)r.masks);
    if (!o->memmap) printf("images of side %u, ", o->side);
    if (o->encoder) printf("embeddings %s, ", embed_print(&r.embeddings, shape));
    printf("masks of side %u; %llu samples and %llu masks left out, %s\n", o->cells, (unsigned long long)r.left_out,
           (unsigned long long)r.bad_masks, duration_print(r.seconds, time));
    return PL_OK;
}

int pack(struct pack_options *o, struct samples_options *samples, struct error *e)
{
    uint64_t size = o->size, cells = o->masks_size;
    o->memmap = !strcmp(o->layout, "memmap");
    if (!o->paths->n) return error_set(e, PL_USAGE, "no data is given: add shards, folders or globs (see --help)");
    if (o->encoder && encodes_conversations(o->encoder, o->keys)) {
        if (size || cells || o->model || strcmp(o->layout, "plimsoll"))
            return error_set(e, PL_USAGE,
                             "--size, --masks-size, --model and --layout are for images with masks; %s takes "
                             "conversations: leave them out",
                             o->encoder);
        return print_images(o, e);
    }
    if (!o->encoder && (o->dtype || o->keys->n))
        return error_set(e, PL_USAGE, "%s needs --embeddings", o->dtype ? "--embeddings-dtype" : "--set");
    if (o->model || o->encoder)
        TRY(read_model_sizes(o->model ? o->model : o->encoder, &size, &cells, &o->stretched, e));
    if (o->model && o->encoder) TRY(read_model_sizes(o->encoder, &size, &cells, &o->stretched, e));
    TRY(samples_options_read(samples, e));
    if (!size) size = 1024;
    if (!cells) cells = size / 4;
    TRY(check(o, size, cells, e));
    o->side = (uint32_t)size, o->cells = (uint32_t)cells;
    return print_samples(o, e);
}
