/*
 * data_pack.c: `plimsoll data pack` (infer/pack_store.h).
 */
#include "cli/data.h"
#include "infer/pack_store.h"

struct packing {
    struct options o;
    struct samples_options samples;
    struct pack_options pack;
};

static int run(struct options *o, struct error *e)
{
    struct packing *p = (struct packing *)o;
    p->pack.set = &p->samples.set, p->pack.paths = &o->paths, p->pack.keys = &o->set, p->pack.output = o->output;
    return pack(&p->pack, &p->samples, e);
}

static const struct option OPTIONS[] = {
    SAMPLES_OPTIONS(struct packing, samples), OPTION(struct packing, "--size", POSITIVE, pack.size),
    OPTION(struct packing, "--masks-size", POSITIVE, pack.masks_size),
    OPTION(struct packing, "--layout", TEXT, pack.layout),
    OPTION(struct packing, "--model", TEXT, pack.model), OPTION(struct packing, "--embeddings", TEXT, pack.encoder),
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
    .shared = OPT_PATHS | OPT_OUTPUT | OPT_SET, COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(struct packing, .pack.layout = "plimsoll"), .run = run};
