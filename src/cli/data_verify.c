/*
 * data_verify.c: `plimsoll data verify`: reads every sample once, with the loader's own code and
 * its limits. Training rejects exactly the samples that this command calls bad.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/progress.h"
#include "cli/data.h"
#include "cli/data_samples.h"
#include "data/fill.h"

struct verify {
    struct samples all;
    struct loader_options o;
    uint64_t masks, bad, left_out, differ;
};

/* What one sample has. */
struct finding {
    struct text bad, differs; /* a line each; empty: none */
    uint32_t masks, left_out; /* masks that can be used, and malformed ones, which training leaves out */
};

/* --- as training reads it ---------------------------------------------------------------- */

/* The memory of one thread. */
struct reader {
    char *memory;
    struct filler *filler;
    uint8_t *image, *bits;
};

static struct reader reader_new(const struct loader_options *o)
{
    struct reader r = {.memory = mem_alloc(filler_size(o) + 64), .image = mem_alloc((size_t)o->side * o->side * 3),
                       .bits = mem_alloc(grid_mask_bytes(o->cells, o->cells))};
    r.filler = filler_new(o, (char *)align_up((uintptr_t)r.memory, 64));
    return r;
}

static void reader_free(struct reader *r)
{
    filler_free(r->filler);
    mem_free(r->memory);
    mem_free(r->image);
    mem_free(r->bits);
}

static enum data_fault read_sample(const struct verify *v, struct reader *r, uint64_t i, struct finding *to,
                                   struct error *e)
{
    struct fill_facts facts;
    enum data_fault fault = fill_records(r->filler, v->all.set, i, false, &facts, e);
    if (fault) return fault;
    for (uint32_t k = 0; k < facts.n; k++) {
        fault = fill_bits(r->filler, k, r->bits, e);
        if (fault == FAULT_SIZE) return fault;
        if (fault) to->left_out++;
        else to->masks++;
    }
    return to->masks ? fill_sample_image(r->filler, v->all.set, i, r->image, e) : FAULT_MASK;
}

/* --- beyond what training needs ------------------------------------------------------------- */

/* Compares a mask with the area and box that the file states. Boxes may differ by one pixel:
 * SA-1B's are one short, those of other datasets are not. Only RLE masks are compared: the area and
 * box of polygons describe the polygon, not its pixels. */
static int compare_mask(const struct sample *s, uint32_t k, struct error *e)
{
    const struct mask *m = &s->masks[k];
    struct rle_facts f;
    if (m->shape.kind != SHAPE_RLE) return PL_OK;
    if (sample_measure(s, k, &f, e)) return e->code;
    if (m->area >= 0 && m->area != f.area)
        return error_set(e, PL_USAGE, "mask %lld: the file states an area of %.0f, the runs cover %u", (long long)m->id,
                         m->area, f.area);
    if (fabs(m->box[0] - f.x) > 1 || fabs(m->box[1] - f.y) > 1 || fabs(m->box[2] - f.w) > 1 ||
        fabs(m->box[3] - f.h) > 1)
        return error_set(e, PL_USAGE, "mask %lld: the file states a box of %g %g %g %g, the runs span %u %u %u %u",
                         (long long)m->id, m->box[0], m->box[1], m->box[2], m->box[3], f.x, f.y, f.w, f.h);
    return PL_OK;
}

static void compare_masks(const struct samples *all, uint64_t i, struct text *differs)
{
    struct sample s;
    struct error e = {0};
    if (strcmp(all->format, "sa1b") && strcmp(all->format, "coco")) return; /* the others have no run lengths */
    if (samples_read(all->set, i, &s, &e)) text_printf(differs, "%s: %s", s.name, e.text);
    for (uint32_t k = 0; k < s.found.n && !differs->n; k++)
        if (compare_mask(&s, k, &e)) text_printf(differs, "%s: %s", s.name, e.text);
    sample_free(&s);
}

/* --- all samples --------------------------------------------------------------------------- */

static void check_sample(const struct verify *v, struct reader *r, uint64_t i, struct finding *to)
{
    struct error e = {0};
    char name[512];
    *to = (struct finding){0};
    enum data_fault fault = read_sample(v, r, i, to, &e);
    dataset_name(v->all.set, i, name, sizeof name);
    if (fault)
        text_printf(&to->bad, "%s: %s%s", name, e.text,
                    fault == FAULT_TOO_LARGE ? " (data.sample_memory; --sample-memory here)" : "");
    else if (to->left_out)
        text_printf(&to->differs, "%s: %u of its %u masks are left out: %s", name, to->left_out,
                    to->left_out + to->masks, e.text);
    else compare_masks(&v->all, i, &to->differs);
}

static void count(struct verify *v, struct finding *f)
{
    if (f->bad.n || f->differs.n) progress_clear();
    if (f->bad.n) print_line("bad: %s", f->bad.at), v->bad++;
    if (f->differs.n) print_line("note: %s", f->differs.at), v->differ++;
    v->masks += f->masks;
    v->left_out += f->left_out;
    text_free(&f->bad);
    text_free(&f->differs);
}

/* Counts and prints the findings, in the order of the samples. */
static void check_all(struct verify *v)
{
    enum { BLOCK = 256 };
    struct finding found[BLOCK];
    struct progress progress;
    progress_begin(&progress, "verifying", "images", v->all.n);
    for (uint64_t from = 0; from < v->all.n; from += BLOCK) {
        uint64_t n = min_u64(v->all.n - from, BLOCK);
#pragma omp parallel
        {
            struct reader r = reader_new(&v->o);
#pragma omp for schedule(dynamic)
            for (uint64_t i = 0; i < n; i++) {
                check_sample(v, &r, from + i, &found[i]);
#pragma omp critical
                progress_add(&progress, 1);
            }
            reader_free(&r);
        }
        for (uint64_t i = 0; i < n; i++) count(v, &found[i]);
    }
    progress_clear();
}

/* Counts and prints shards with damage or unpaired files. Their indexes exist by now. */
static uint64_t check_shards(const struct samples *all)
{
    uint64_t broken = 0;
    for (uint32_t k = 0; k < all->files.n && !strcmp(all->format, "sa1b"); k++) {
        struct shard s;
        struct error e;
        char line[512];
        if (shard_open(&s, all->files.at[k], &e)) continue;
        if (shard_report_print(&s.report, line, sizeof line)) print_line("bad: %s: %s", s.path, line), broken++;
        shard_close(&s);
    }
    return broken;
}

static int verify(const struct dataset_options *o, const struct names *paths, uint64_t memory, struct error *e)
{
    struct verify v = {0};
    struct samples *all = &v.all;
    if (samples_open(all, o, paths, e)) {
        /* A packed store that does not open is damaged: a finding. In other formats the options may
         * be wrong: a usage error. */
        if (all->format && !strcmp(all->format, "packed")) e->code = PL_FAIL;
        return e->code;
    }
    const double from = clock_seconds();
    char time[32];
    survey_log(all->set);
    const bool shards = !strcmp(all->format, "sa1b"),
               stores = !strcmp(all->format, "packed") && !text_ends_with(all->files.at[0], ".json");
    v.o = (struct loader_options){.side = 1024, .cells = 256, .masks = 1, .threads = 1, .slots = 2,
                                  .polygon_runs = strcmp(all->format, "coco") ? 0 : LOADER_POLYGON_RUNS,
                                  .room = memory ? memory << 20 : loader_default_room(all->format, stores)};
    const uint64_t broken = check_shards(all);
    check_all(&v);
    const char *what = shards ? "shards" : "files";
    printf("%s: %u %s, %llu sample%s, %llu mask%s: %llu bad sample%s, %llu %s with damage or unpaired files, %s\n",
           all->format, all->files.n, what, (unsigned long long)all->n, all->n == 1 ? "" : "s",
           (unsigned long long)v.masks, v.masks == 1 ? "" : "s", (unsigned long long)v.bad, v.bad == 1 ? "" : "s",
           (unsigned long long)broken, what, duration_print(clock_seconds() - from, time));
    if (v.differ)
        printf("%llu samples have a note: training uses them; %llu masks are left out\n", (unsigned long long)v.differ,
               (unsigned long long)v.left_out);
    int rc = dataset_intact(all->set, e);
    if (!rc && (v.bad || broken))
        rc = error_set(e, PL_FAIL, "%llu of %llu samples and %llu of %u %s are bad%s", (unsigned long long)v.bad,
                       (unsigned long long)all->n, (unsigned long long)broken, all->files.n, what,
                       shards ? "; `plimsoll data prepare` writes shards without them" : "");
    samples_close(all);
    return rc;
}

static int run(int argc, char **argv, struct error *e)
{
    struct names paths = {0};
    struct samples_options o = {0};
    uint64_t memory = 0;
    bool help;
    const struct data_option table[] = {SAMPLES_OPTIONS(o), {"--sample-memory", DATA_POSITIVE, &memory}};
    int rc = data_options(&data_verify, table, COUNT(table), argc, argv, &paths, &help, e);
    o.set.room = memory ? min_u64(memory, 65536) << 20 : loader_default_room("pairs", false);
    if (!rc && !help && paths.n && embeddings_alone(&paths)) rc = inspect_embeddings(&paths, true, false, e);
    else if (!rc && !help && !paths.n)
        rc = error_set(e, PL_USAGE, "no data is given: add shards, folders or globs (see --help)");
    else if (!rc && !help && !(rc = samples_options_read(&o, e)))
        rc = verify(&o.set, &paths, min_u64(memory, 65536), e);
    names_free(&paths);
    return rc;
}

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
    run};
