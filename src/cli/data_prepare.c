/*
 * data_prepare.c: `plimsoll data prepare` (data/prepare/prepare.h).
 */
#include "cli/data.h"
#include "data/prepare/prepare.h"

struct prepare_options {
    struct options o;
    struct prepare p;
};

static int prepare(struct options *o, struct error *e)
{
    struct prepare *p = &((struct prepare_options *)o)->p;
    char in[32], out[32], time[32];
    const double from = clock_seconds();
    p->out = o->output;
    if (!o->paths.n)
        return error_set(e, PL_USAGE, "no shards are given: add tar files, folders of them or globs (see --help)");
    if (!p->out) return error_set(e, PL_USAGE, "no output is given: add -o DIR");
    if (p->quality < 1 || p->quality > 100)
        return error_set(e, PL_USAGE, "--quality %llu: expected 1 to 100", (unsigned long long)p->quality);
    if (p->long_side && (p->long_side < 16 || p->long_side > 16384))
        return error_set(e, PL_USAGE, "--long-side %llu: expected 16 to 16384 pixels",
                         (unsigned long long)p->long_side);
    TRY(prepare_shards(p, &o->paths, e));
    printf("%llu pairs read, %llu written, %llu left out; %s to %s, %s\n", (unsigned long long)p->read,
           (unsigned long long)p->written, (unsigned long long)p->dropped, size_print(p->bytes_in, in),
           size_print(p->bytes_out, out), duration_print(clock_seconds() - from, time));
    if (p->written || p->existing) return PL_OK;
    return error_set(e, PL_USAGE, "%s%s: no usable pair of an image and its annotations: no file is written",
                     o->paths.at[0], o->paths.n > 1 ? " and the others" : "");
}

static const struct option OPTIONS[] = {OPTION(struct prepare_options, "--long-side", POSITIVE, p.long_side),
                                        OPTION(struct prepare_options, "--quality", COUNT, p.quality)};

const struct command data_prepare = {
    "prepare", "data prepare IN... -o DIR [--long-side N] [--quality Q]",
    "Rewrites downloaded shards for training: decompresses them, skips damaged data, pairs images\n"
    "with their annotations, and writes plain sorted tars with an index. Every image is decoded\n"
    "once as a check. Unusable pairs are reported and left out; outputs that exist already are kept.\n"
    "\n"
    "  IN              tar files (also gzip under a .tar name), folders of them, folders of extracted\n"
    "                  files, globs\n"
    "  -o DIR          the folder for the new shards, which keep the names of the old\n"
    "  --long-side N   resizes images whose longer side is above N, with their masks, and encodes them\n"
    "                  as JPEG, PNGs too (1024 loads about five times as fast; without this option the\n"
    "                  image bytes do not change)\n"
    "  --quality Q     JPEG quality of resized images (95)",
    .shared = OPT_PATHS | OPT_OUTPUT, COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(struct prepare_options, .p.quality = 95), .run = prepare};
