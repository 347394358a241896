/*
 * data_make.c: the list of `plimsoll data`'s subcommands, and the first of them, `data make`: a
 * synthetic dataset in SA-1B's format (data/prepare/prepare.h).
 */
#include "cli/data.h"
#include "data/prepare/prepare.h"

struct make_options {
    struct options o;
    uint64_t most_masks;   /* --masks */
    uint32_t size[2];
    const char *order;
    struct make_set set;
};

static int check(const struct make_options *x, struct error *e)
{
    const struct make_set *m = &x->set;
    if (!m->images || m->images > 1000000)
        return error_set(e, PL_USAGE, "--images %llu: expected 1 to 1000000", (unsigned long long)m->images);
    if (!m->shards || m->shards > m->images || m->shards > 1000000)
        return error_set(e, PL_USAGE, "--shards %llu: expected 1 to the number of images, %llu",
                         (unsigned long long)m->shards, (unsigned long long)m->images);
    if (strcmp(x->order, "random") && strcmp(x->order, "sorted"))
        return error_set(e, PL_USAGE, "--order %s: expected random or sorted", x->order);
    return synth_check(&m->synth, e);
}

static int make(struct options *o, struct error *e)
{
    struct make_options *x = (struct make_options *)o;
    struct make_set *m = &x->set;
    char size[32], time[32], there[64] = "";
    const double from = clock_seconds();
    if (o->paths.n != 1) return error_set(e, PL_USAGE, "expected one output folder (see --help)");
    m->dir = o->paths.at[0];
    m->synth.width = x->size[0], m->synth.height = x->size[1];
    m->synth.masks = (uint32_t)min_u64(x->most_masks, UINT32_MAX);
    m->sorted = !strcmp(x->order, "sorted");
    TRY(check(x, e));
    TRY(make_set(m, e));
    const char *what = m->extracted ? "folder" : "shard";
    if (m->there) snprintf(there, sizeof there, "; %llu of them were there already", (unsigned long long)m->there);
    printf("%s: %llu image%s of %ux%u with %llu mask%s in %llu %s%s%s, %s, %s\n", m->dir,
           (unsigned long long)m->images, m->images == 1 ? "" : "s", m->synth.width, m->synth.height,
           (unsigned long long)m->masks, m->masks == 1 ? "" : "s", (unsigned long long)m->shards, what,
           m->shards == 1 ? "" : "s", there, size_print(m->bytes, size), duration_print(clock_seconds() - from, time));
    return PL_OK;
}

static const struct option OPTIONS[] = {
    OPTION(struct make_options, "--images", COUNT, set.images),
    OPTION(struct make_options, "--shards", COUNT, set.shards),
    OPTION(struct make_options, "--size", SIZE, size), OPTION(struct make_options, "--seed", COUNT, set.synth.seed),
    OPTION(struct make_options, "--masks", COUNT, most_masks), OPTION(struct make_options, "--order", TEXT, order),
    OPTION(struct make_options, "--extracted", SWITCH, set.extracted)};

const struct command data_make = {
    "make",
    "data make DIR [--images N] [--shards K] [--size WxH] [--seed S] [--masks M] [--order random|sorted] [--extracted]",
    "Writes a synthetic dataset in SA-1B's format: textured images of overlapping shapes, with the\n"
    "exact mask of the visible part of each shape. DIR must not hold sa_* files. After a kill, the same\n"
    "command continues.\n"
    "\n"
    "  --images N      number of images (100)\n"
    "  --shards K      number of tar files, sa_000000.tar and so on, with equal shares of the images (1)\n"
    "  --size WxH      size of every image (1024x768)\n"
    "  --seed S        random seed; each seed gives another dataset (0)\n"
    "  --masks M       shapes per image; a shape that is hardly visible gets no mask (12)\n"
    "  --order         order of the files in a tar: random, as in SA-1B, or sorted (random)\n"
    "  --extracted     writes folders of files instead of tars",
    .shared = OPT_PATHS, COMMAND_OPTIONS(OPTIONS),
    COMMAND_STATE(struct make_options, .set = {.images = 100, .shards = 1}, .most_masks = 12, .size = {1024, 768},
    .order = "random"), .run = make};

static const struct command *const COMMANDS[] = {&data_make,   &data_prepare, &data_inspect,
                                                 &data_verify, &data_pack,    &data_tokenize};

const struct command command_data = {
    "data", "data make | prepare | inspect | verify | pack | tokenize ...",
    "Makes, repairs, inspects, verifies and packs datasets of images with masks; inspects and tokenizes conversations.",
    .commands = COMMANDS, .n_commands = COUNT(COMMANDS)};
