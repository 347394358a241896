/*
 * data_pack.c: `plimsoll data pack` (infer/pack_store.h).
 */
#include "cli/data.h"
#include "models/model.h"
#include "batch/embed.h"
#include "infer/embed_make.h"
#include "infer/pack_store.h"
#include "models/masks.h"

/* Reports whether a model folder is one of images and text, whose images are those of
 * conversations. */
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

static int check(const struct pack_options *o, uint64_t size, uint64_t cells, const char *layout, struct error *e)
{
    if (!o->output) return error_set(e, PL_USAGE, "no output is given: add -o FILE.pack");
    if (strcmp(layout, "plimsoll") && strcmp(layout, "memmap"))
        return error_set(e, PL_USAGE, "--layout %s: expected plimsoll or memmap", layout);
    if (size < 16 || size > PACKED_MAX_SIDE)
        return error_set(e, PL_USAGE, "--size %llu: expected 16 to %d", (unsigned long long)size, PACKED_MAX_SIDE);
    if (cells < 4 || cells > size)
        return error_set(e, PL_USAGE, "--masks-size %llu: expected 4 to --size", (unsigned long long)cells);
    if (o->memmap && o->encoder)
        return error_set(e, PL_USAGE, "--layout memmap cannot store embeddings: leave out --layout or --embeddings");
    return PL_OK;
}

/* Packs the images of conversations. */
static int pack_conversations(const struct pack_options *o, struct error *e)
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

static int pack(const struct pack_options *o, struct error *e)
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

/* Packs what the options say. */
static int choose(struct pack_options *o, struct samples_options *samples, uint64_t size, uint64_t cells,
                  const char *model, const char *layout, struct error *e)
{
    o->memmap = !strcmp(layout, "memmap");
    if (!o->paths->n) return error_set(e, PL_USAGE, "no data is given: add shards, folders or globs (see --help)");
    if (o->encoder && takes_conversations(o->encoder, o->keys)) {
        if (size || cells || model || strcmp(layout, "plimsoll"))
            return error_set(e, PL_USAGE,
                             "--size, --masks-size, --model and --layout are for images with masks; %s takes "
                             "conversations: leave them out",
                             o->encoder);
        return pack_conversations(o, e);
    }
    if (!o->encoder && (o->dtype || o->keys->n))
        return error_set(e, PL_USAGE, "%s needs --embeddings", o->dtype ? "--embeddings-dtype" : "--set");
    if (model || o->encoder) TRY(read_model_sizes(model ? model : o->encoder, &size, &cells, e));
    TRY(samples_options_read(samples, e));
    if (!size) size = 1024;
    if (!cells) cells = size / 4;
    TRY(check(o, size, cells, layout, e));
    o->side = (uint32_t)size, o->cells = (uint32_t)cells;
    return pack(o, e);
}

struct packing {
    struct options o;
    struct samples_options samples;
    struct pack_options pack;
    uint64_t size, cells;
    const char *layout;
};

static int run(struct options *o, struct error *e)
{
    struct packing *p = (struct packing *)o;
    p->pack.set = &p->samples.set, p->pack.paths = &o->paths, p->pack.keys = &o->set, p->pack.output = o->output;
    return choose(&p->pack, &p->samples, p->size, p->cells, o->model, p->layout, e);
}

static const struct packing START = {.layout = "plimsoll"};
static const struct option OPTIONS[] = {
    SAMPLES_OPTIONS(struct packing, samples), OPTION(struct packing, "--size", POSITIVE, size),
    OPTION(struct packing, "--masks-size", POSITIVE, cells), OPTION(struct packing, "--layout", TEXT, layout),
    OPTION(struct packing, "--model", TEXT, o.model), OPTION(struct packing, "--embeddings", TEXT, pack.encoder),
    OPTION(struct packing, "--embeddings-dtype", TEXT, pack.dtype)};

const struct command data_pack = {
    "pack",
    "data pack PATHS -o FILE.pack [--model MODEL] [--size 1024] [--masks-size N] [--format F] [--embeddings DIR] "
    "[--layout memmap]",
    "Stores images and masks in the form that training reads: images resized and padded, masks\n"
    "rasterised. Reading a sample is one copy, without decoding. Set data.format: packed and data.train:\n"
    "FILE.pack in the run.\n"
    "\n"
    "With --embeddings and a model of images and text, PATHS are files of conversations: stores what the\n"
    "vision tower computes from each of their images, for training with a frozen tower. Set data.images:\n"
    "FILE.pack in the run; data.train stays as it is.\n"
    "\n"
    "  PATHS           shards (tar), folders of extracted files, folders of shards; the annotation file\n"
    "                  of COCO; a folder of images and masks; a table; .pack; globs\n"
    "  -o FILE.pack    the output; it appears when it is complete\n"
    "  --model MODEL   a folder or a preset: the default of --size and --masks-size\n"
    "  --size N        side of the images: data.image_size of the run (1024)\n"
    "  --masks-size N  side of the masks: the resolution of the loss, 4 x size / patch (without --model a\n"
    "                  quarter of --size, as for patches of 16; sam-tiny, with patches of 8, needs half)\n"
    SAMPLES_HELP
    "\n"
    "  --embeddings DIR  a model folder: also stores the embedding of each image by its image encoder,\n"
    "                  for training with a frozen encoder; also the default of --model\n"
    "  --embeddings-dtype T  f32 or bf16: the dtype in which they are computed and stored (default: bf16\n"
    "                  where the device has bf16 instructions)\n"
    "  --set key=value with --embeddings: device and memory keys of the encoder's run; of conversations\n"
    "                  also data.images, data.range, data.max_frames, data.fps and memory.quantize, as in\n"
    "                  the run\n"
    "  --layout memmap writes a folder instead, -o DIR: index.json, masks.u8 (a memory map of uint8,\n"
    "                  masks x N x N, each mask resized from its whole image) and the image files",
    .shared = OPT_PATHS | OPT_OUTPUT | OPT_SET, COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(START), .run = run};
