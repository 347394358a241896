/*
 * data_pack.c: `plimsoll data pack`: converts samples of any format to a store that is read without
 * decoding (data/formats/packed.h), or to an index with a memory map (data/formats/memmap.h).
 *
 * Threads prepare the samples of a block with the loader's own code; the block is then written
 * in order. An unusable sample is reported and left out. The output appears when it is complete.
 * With --embeddings a model's image encoder runs on the images of a block, one by one, in its
 * own planned memory.
 */
#include <stdio.h>
#include <string.h>

#include "base/progress.h"
#include "models/model.h"
#include "cli/data.h"
#include "cli/data_samples.h"
#include "data/fill.h"
#include "data/images/image.h"
#include "data/formats/memmap.h"
#include "data/formats/packed.h"
#include "io/png.h"
#include "models/masks.h"
#include "infer/embed_make.h"
#include "feed/embed.h"

enum { BLOCK = 16, POLYGON_RUNS = 1 << 19, REPORTED = 20 };
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
    uint64_t written, left_out, masks, bad_masks;
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

static void packable_free(struct packable *p)
{
    mem_free(p->masks);
    mem_free(p->image);
    mem_free(p->bits);
}

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
    return image_format(s->image, s->facts.n) == IMAGE_PNG && !png_peek(s->image, s->facts.n, &h, &ignored) && h.depth == 16;
}

/* An image of 16 bits is written as 8 bits, by the range that was decided over all images. */
static int bake(const struct packing *p, const struct sample *s, struct packable *to)
{
    struct text png = {0};
    struct png_pixels q;
    if (range_decode(s->image, s->facts.n, &p->all.set->range, NULL, 0, &q, NULL, &to->e)) return to->e.code;
    int rc = png_encode(&png, PNG_RGB, q.width, q.height, q.at, 0, &to->e);
    mem_free(q.at);
    to->image = (uint8_t *)png.at, to->image_n = png.n;
    return rc;
}

/* Keeps the bytes of the image file; encodes the pixels of a packed store as a PNG. */
static enum data_fault keep_file(const struct packing *p, uint64_t i, struct packable *to)
{
    struct sample s;
    struct text png = {0};
    int rc = samples_read(p->all.set, i, &s, &to->e);
    if (!rc && s.facts.decoded) {
        rc = png_encode(&png, PNG_RGB, s.facts.w, s.facts.h, s.image, 0, &to->e);
        to->image = (uint8_t *)png.at, to->image_n = png.n;
        to->facts.h = s.facts.h, to->facts.w = s.facts.w;
    } else if (!rc && is_deep(&s)) {
        rc = bake(p, &s, to);
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

static int embed(struct packing *p, const struct packable *x, struct error *e)
{
    int rc = embed_image(p->embedder, x->image, x->facts.rows, x->facts.columns, p->embedding, e);
    return rc ? rc : embed_finite(p->embedder, p->embedding, x->name, e);
}

static int write_sample(struct packing *p, const struct packable *x, struct error *e)
{
    if (p->embedder && embed(p, x, e)) return e->code;
    const char *slash = strrchr(x->name, '/'), *key = slash ? slash + 1 : x->name,
               *group = x->grouped ? x->group : NULL;
    record_categories(p, x);
    p->written++;
    p->masks += x->n;
    p->bad_masks += x->bad;
    if (p->map)
        return memmap_add(p->map,
                          &(struct memmap_new){.name = x->name,
                                               .key = key,
                                               .group = group,
                                               .h = x->facts.h,
                                               .w = x->facts.w,
                                               .image = x->image,
                                               .n = x->image_n,
                                               .bits = x->bits,
                                               .masks = x->n},
                          e);
    return packed_add(p->store,
                      &(struct packed_new){.name = x->name,
                                           .key = key,
                                           .group = group,
                                           .h = x->facts.h,
                                           .w = x->facts.w,
                                           .rows = x->facts.rows,
                                           .columns = x->facts.columns,
                                           .image = x->image,
                                           .embedding = p->embedding,
                                           .masks = x->masks,
                                           .bits = x->bits,
                                           .n = x->n,
                                           .empty = x->facts.empty},
                      e);
}

static int write_block(struct packing *p, struct packable *block, uint64_t n, struct error *e)
{
    int rc = PL_OK;
    for (uint64_t i = 0; i < n; i++) {
        struct packable *x = &block[i];
        if (!x->ok && p->left_out++ < REPORTED) {
            progress_clear();
            print_line("left out: %s: %s", x->name, x->e.text);
        }
        if (x->ok && !rc) rc = write_sample(p, x, e);
        progress_add(&p->progress, 1);
        packable_free(x);
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

/* ---- the command ---- */

static int finish(struct packing *p, int rc, struct error *e)
{
    if (!rc && !p->written)
        rc = error_set(e, PL_USAGE, "none of %llu samples is usable: no file is written", (unsigned long long)p->all.n);
    if (rc && p->store) packed_abandon(p->store);
    if (rc && p->map) memmap_abandon(p->map);
    if (rc) return rc;
    return p->store ? packed_finish(p->store, e) : memmap_finish(p->map, e);
}

static int pack(struct packing *p, const struct dataset_options *o, const struct names *paths, const char *output,
                struct error *e)
{
    const double from = clock_seconds();
    char time[32], shape[64];
    int rc = samples_open(&p->all, o, paths, e);
    if (rc) return rc;
    rc = p->bytes ? memmap_create(&p->map, output, p->o.cells, e)
                  : packed_create(&p->store, output, p->o.side, p->o.cells, e);
    survey_log(p->all.set);
    if (!rc && p->store && p->all.set->range.kind != RANGE_AUTO) packed_set_range(p->store, &p->all.set->range);
    if (!rc && p->embedder) packed_embed(p->store, &p->embedder->about);
    if (!rc) rc = pack_all(p, e);
    if (!rc) rc = dataset_intact(p->all.set, e);
    if (p->store || p->map) rc = finish(p, rc, e);
    if (!rc) {
        if (p->left_out > REPORTED)
            printf("left out: %llu more samples; `plimsoll data verify` lists all\n",
                   (unsigned long long)(p->left_out - REPORTED));
        printf("%s: %llu samples with %llu masks, ", output, (unsigned long long)p->written,
               (unsigned long long)p->masks);
        if (!p->bytes) printf("images of side %u, ", p->o.side);
        if (p->embedder) printf("embeddings %s, ", embed_print(&p->embedder->about, shape));
        printf("masks of side %u; %llu samples and %llu masks left out, %s\n", p->o.cells,
               (unsigned long long)p->left_out, (unsigned long long)p->bad_masks,
               duration_print(clock_seconds() - from, time));
    }
    vec_free(&p->categories);
    samples_close(&p->all);
    return rc;
}

/* Whether a model folder is one of images and text, whose images are those of conversations. */
static bool takes_conversations(const char *folder, const struct names *set)
{
    struct config c;
    struct model m;
    struct error ignored;
    bool found = false;
    if (!embed_config(&c, folder, NULL, set, &ignored) && !config_open_model(&c, &m, &ignored)) {
        found = m.images;
        model_close(&m);
    }
    config_free(&c);
    return found;
}

/* Fills in the sizes that the options did not give with the model's training sizes. */
static int read_model_sizes(const char *name, uint64_t *size, uint64_t *cells, struct error *e)
{
    struct model m = {0};
    int rc = model_find(&m, name, e);
    if (!rc && !m.masks) rc = error_set(e, PL_USAGE, "%s: a %s predicts no masks", name, m.family->model_type);
    if (!rc && *size % (uint64_t)m.masks->patch)
        rc = error_set(e, PL_USAGE,
                       "%s: the image size %llu is not divisible by the patch size %lld; give another --size", name,
                       (unsigned long long)*size, (long long)m.masks->patch);
    if (!rc && !*size) *size = (uint64_t)m.image;
    if (!rc && !*cells) *cells = (uint64_t)m.masks->side(&m, (int64_t)*size);
    model_close(&m);
    return rc;
}

static int check(struct packing *p, uint64_t size, uint64_t cells, const char *layout, const char *output,
                 struct error *e)
{
    if (!output) return error_set(e, PL_USAGE, "no output is given: add -o FILE.pack");
    if (strcmp(layout, "plimsoll") && strcmp(layout, "memmap"))
        return error_set(e, PL_USAGE, "--layout %s: expected plimsoll or memmap", layout);
    if (size < 16 || size > PACKED_MAX_SIDE)
        return error_set(e, PL_USAGE, "--size %llu: expected 16 to %d", (unsigned long long)size, PACKED_MAX_SIDE);
    if (!cells) cells = size / 4;
    if (cells < 4 || cells > size)
        return error_set(e, PL_USAGE, "--masks-size %llu: expected 4 to --size", (unsigned long long)cells);
    p->bytes = !strcmp(layout, "memmap");
    p->o = (struct loader_options){.side = (uint32_t)size,
                                   .cells = (uint32_t)cells,
                                   .masks = 1,
                                   .threads = 1,
                                   .slots = 2,
                                   .room = room,
                                   .polygon_runs = POLYGON_RUNS};
    return PL_OK;
}

/* Opens the encoder first, so that its errors appear before any file is written. */
static int pack_embedded(struct packing *p, const char *folder, const char *dtype, const struct names *set,
                         const struct dataset_options *o, const struct names *paths, const char *output,
                         struct error *e)
{
    struct embedder m;
    if (p->bytes)
        return error_set(e, PL_USAGE, "--layout memmap cannot store embeddings: leave out --layout or --embeddings");
    int rc = embed_open(&m, folder, p->o.side, dtype, set, e);
    if (rc) return rc;
    p->embedder = &m;
    p->embedding = mem_alloc(m.bytes);
    rc = pack(p, o, paths, output, e);
    mem_free(p->embedding);
    embed_close(&m);
    return rc;
}

static int run(int argc, char **argv, struct error *e)
{
    struct names paths = {0}, set = {0};
    struct samples_options o = {.set.room = room};
    struct packing p = {0};
    uint64_t size = 0, cells = 0;
    const char *output = NULL, *model = NULL, *encoder = NULL, *dtype = NULL, *layout = "plimsoll";
    bool help;
    const struct data_option table[] = {SAMPLES_OPTIONS(o),
                                        {"-o", DATA_TEXT, &output},
                                        {"--out", DATA_TEXT, &output},
                                        {"--size", DATA_POSITIVE, &size},
                                        {"--masks-size", DATA_POSITIVE, &cells},
                                        {"--layout", DATA_TEXT, &layout},
                                        {"--model", DATA_TEXT, &model},
                                        {"--embeddings", DATA_TEXT, &encoder},
                                        {"--embeddings-dtype", DATA_TEXT, &dtype},
                                        {"--set", DATA_LIST, &set}};
    int rc = data_options(&data_pack, table, COUNT(table), argc, argv, &paths, &help, e);
    if (!rc && !help && !paths.n)
        rc = error_set(e, PL_USAGE, "no data is given: add shards, folders or globs (see --help)");
    if (!rc && !help && encoder && takes_conversations(encoder, &set)) {
        if (size || cells || model || strcmp(layout, "plimsoll"))
            rc = error_set(e, PL_USAGE,
                           "--size, --masks-size, --model and --layout are for images with masks; %s takes "
                           "conversations: leave them out",
                           encoder);
        else
            rc = pack_images(&(struct image_packing){.folder = encoder,
                                                     .dtype = dtype,
                                                     .set = &set,
                                                     .paths = &paths,
                                                     .where = o.set.images,
                                                     .output = output},
                             e);
        help = true; /* nothing more to do */
    }
    if (!rc && !help && !encoder && (dtype || set.n))
        rc = error_set(e, PL_USAGE, "%s needs --embeddings", dtype ? "--embeddings-dtype" : "--set");
    if (!rc && !help && (model || encoder)) rc = read_model_sizes(model ? model : encoder, &size, &cells, e);
    if (!rc && !help) rc = samples_options_read(&o, e);
    if (!rc && !help) rc = check(&p, size ? size : 1024, cells, layout, output, e);
    if (!rc && !help)
        rc = encoder ? pack_embedded(&p, encoder, dtype, &set, &o.set, &paths, output, e) : pack(&p, &o.set, &paths, output, e);
    names_free(&set);
    names_free(&paths);
    return rc;
}

const struct command data_pack =
    {"pack",
     "data pack PATHS -o FILE.pack [--model MODEL] [--size 1024] [--masks-size N] [--format F] [--embeddings DIR] "
     "[--layout memmap]",
     "Stores images and masks in the form that training reads: images resized and padded, masks\n"
     "rasterised. Reading a sample is one copy, without decoding. Set data.format: packed and\n"
     "data.train: FILE.pack in the run.\n"
     "\n"
     "With --embeddings and a model of images and text, PATHS are files of conversations: stores what the\n"
     "vision tower makes of each of their images, for training with a frozen tower. Set data.images:\n"
     "FILE.pack in the run; data.train stays as it is.\n"
     "\n"
     "  PATHS           shards (tar), folders of extracted files, folders of shards; the annotation\n"
     "                  file of COCO; a folder of images and masks; a table; .pack; globs\n"
     "  -o FILE.pack    the output; it appears when it is complete\n"
     "  --model MODEL   a folder or a preset: the default of --size and --masks-size\n"
     "  --size N        side of the images: data.image_size of the run (1024)\n"
     "  --masks-size N  side of the masks: the resolution of the loss, 4 x size / patch (without --model a quarter\n"
     "                  of --size, as for patches of 16; sam-tiny, with patches of 8, needs half)\n" SAMPLES_HELP "\n"
     "  --embeddings DIR  a model folder: also stores the embedding of each image by its image encoder, for\n"
     "                  training with a frozen encoder; also the default of --model\n"
     "  --embeddings-dtype T  f32 or bf16: the dtype in which they are computed and stored (default: bf16 where\n"
     "                  the device has bf16 instructions)\n"
     "  --set key=value with --embeddings: device and memory keys of the encoder's run; of conversations also\n"
     "                  data.images, data.range, data.max_frames, data.fps and memory.quantize, as in the run\n"
     "  --layout memmap writes a folder instead, -o DIR: index.json, masks.u8 (a memory map of uint8,\n"
     "                  masks x N x N, each mask resized from its whole image) and the image files",
     run};
