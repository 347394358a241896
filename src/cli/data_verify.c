/*
 * data_verify.c: `plimsoll data verify` (data/prepare/prepare.h).
 */
#include "cli/data.h"
#include "data/loader.h"
#include "data/prepare/prepare.h"
#include "report/data_report.h"

static int verify(const struct dataset_options *o, const struct names *paths, uint64_t room, struct error *e)
{
    struct samples all;
    struct verified v;
    char time[32];
    if (samples_open(&all, o, paths, e)) {
        /* A packed store that does not open is damaged: a finding. In other formats the options may
         * be wrong: a usage error. */
        if (all.format && !strcmp(all.format, "packed")) e->code = PL_FAIL;
        return e->code;
    }
    const double from = clock_seconds();
    const bool shards = !strcmp(all.format, "sa1b");
    const char *what = shards ? "shards" : "files";
    survey_log(all.set);
    verify_samples(&all, room, &v);
    printf("%s: %u %s, %llu sample%s, %llu mask%s: %llu bad sample%s, %llu %s with damage or unpaired files, %s\n",
           all.format, all.files.n, what, (unsigned long long)all.n, all.n == 1 ? "" : "s", (unsigned long long)v.masks,
           v.masks == 1 ? "" : "s", (unsigned long long)v.bad, v.bad == 1 ? "" : "s", (unsigned long long)v.broken,
           what, duration_print(clock_seconds() - from, time));
    if (v.differ)
        printf("%llu samples have a note: training uses them; %llu masks are left out\n", (unsigned long long)v.differ,
               (unsigned long long)v.left_out);
    int rc = dataset_intact(all.set, e);
    if (!rc && (v.bad || v.broken))
        rc = error_set(e, PL_FAIL, "%llu of %llu samples and %llu of %u %s are bad%s", (unsigned long long)v.bad,
                       (unsigned long long)all.n, (unsigned long long)v.broken, all.files.n, what,
                       shards ? "; `plimsoll data prepare` writes shards without them" : "");
    samples_close(&all);
    return rc;
}

struct verifying {
    struct options o;
    struct samples_options samples;
    uint64_t memory;
};

static int run(struct options *o, struct error *e)
{
    struct verifying *v = (struct verifying *)o;
    struct dataset_options *set = &v->samples.set;
    const uint64_t room = min_u64(v->memory, 65536) << 20;
    set->room = room ? room : loader_default_room("pairs", false);
    if (!o->paths.n) return error_set(e, PL_USAGE, "no data is given: add shards, folders or globs (see --help)");
    if (embeddings_alone(&o->paths)) return inspect_embeddings(&o->paths, true, false, e);
    TRY(samples_options_read(&v->samples, e));
    return verify(set, &o->paths, room, e);
}

static const struct option OPTIONS[] = {SAMPLES_OPTIONS(struct verifying, samples),
                                        OPTION(struct verifying, "--sample-memory", POSITIVE, memory)};

const struct command data_verify = {
    "verify", "data verify PATHS [--format F] [--images DIR] [--masks DIR] [--labels KIND] [--range R]",
    "Reads every image and every mask as training does. Prints every bad sample, which training would\n"
    "reject; the exit code is 1 when there is one. Also notes samples of which training leaves out some\n"
    "masks, and masks whose areas or boxes are not those that the file states.\n"
    "\n"
    "  PATHS           shards (tar), folders of extracted files, folders of shards; the annotation\n"
    "                  file of COCO; a folder of images and masks; a table; .pack; globs\n"
    SAMPLES_HELP "\n"
    "  --sample-memory MIB  data.sample_memory of the run (default: auto): larger samples are bad",
    .shared = OPT_PATHS, COMMAND_OPTIONS(OPTIONS), COMMAND_STATE(struct verifying, .o = {0}), .run = run};
