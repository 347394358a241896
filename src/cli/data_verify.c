/*
 * data_verify.c: `plimsoll data verify`: decodes every sample once. Training can read every sample
 * that passes.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/progress.h"
#include "cli/data.h"
#include "cli/data_samples.h"
#include "data/jpeg.h"

static int decode_image(struct jpg *j, const struct sample *s, uint32_t *w, uint32_t *h, struct error *e)
{
    if (s->facts.decoded) return sample_size(s, w, h, e);
    return image_check(j, s->image, s->facts.n, w, h, e);
}

/* Checks the runs of a mask, and the area and box that the file states. Boxes may differ by one
 * pixel: SA-1B's are one short, those of other datasets are not. Only RLE masks are compared: the
 * area and box of polygons describe the polygon, not its pixels. */
static int check_mask(const struct sample *s, uint32_t k, struct error *e)
{
    const struct mask *m = &s->masks[k];
    struct rle_facts f;
    if (sample_measure(s, k, &f, e)) return e->code;
    if (m->shape.kind != SHAPE_RLE) return PL_OK;
    if (m->area >= 0 && m->area != f.area)
        return error_set(e, PL_USAGE, "mask %lld: the file states an area of %.0f, the runs cover %u", (long long)m->id, m->area, f.area);
    if (fabs(m->box[0] - f.x) > 1 || fabs(m->box[1] - f.y) > 1 || fabs(m->box[2] - f.w) > 1 || fabs(m->box[3] - f.h) > 1)
        return error_set(e, PL_USAGE, "mask %lld: the file states a box of %g %g %g %g, the runs span %u %u %u %u", (long long)m->id, m->box[0], m->box[1],
                         m->box[2], m->box[3], f.x, f.y, f.w, f.h);
    return PL_OK;
}

static int check_sample(const struct samples *all, uint64_t i, struct jpg *j, struct sample *s, struct error *e)
{
    uint32_t w, h;
    if (samples_read(all, i, s, e) || dataset_check(all->set, i, e)) return e->code;
    if (decode_image(j, s, &w, &h, e)) return e->code;
    if (w != s->found.w || h != s->found.h)
        return mask_size_differs(w, h, s->found.w, s->found.h, e);
    for (uint32_t k = 0; k < s->found.n; k++)
        if (check_mask(s, k, e)) return e->code;
    return PL_OK;
}

/* Counts and prints the bad samples, in the order of their indices. */
static uint64_t check_all(const struct samples *all, uint64_t *masks)
{
    enum { BLOCK = 256 };
    uint64_t bad = 0, sum = 0;
    struct text lines[BLOCK];
    struct progress progress;
    progress_begin(&progress, "verifying", "images", all->n);
    for (uint64_t from = 0; from < all->n; from += BLOCK) {
        uint64_t n = min_u64(all->n - from, BLOCK);
#pragma omp parallel reduction(+ : sum)
        {
            struct jpg *j = jpg_new(NULL);
#pragma omp for schedule(dynamic)
            for (uint64_t i = 0; i < n; i++) {
                struct sample s;
                struct error e = {0};
                lines[i] = (struct text){0};
                if (check_sample(all, from + i, j, &s, &e)) text_printf(&lines[i], "%s: %s", s.name, e.text);
                sum += s.found.n;
                sample_free(&s);
#pragma omp critical
                progress_add(&progress, 1);
            }
            jpg_free(j);
        }
        for (uint64_t i = 0; i < n; i++) {
            if (lines[i].n) progress_clear(), printf("bad: %s\n", lines[i].at), bad++;
            text_free(&lines[i]);
        }
    }
    progress_clear();
    *masks = sum;
    return bad;
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
        if (shard_report_print(&s.report, line, sizeof line)) printf("bad: %s: %s\n", s.path, line), broken++;
        shard_close(&s);
    }
    return broken;
}

static int verify(const struct samples_options *o, const struct names *paths, struct error *e)
{
    struct samples all;
    if (samples_open(&all, o, paths, e)) {
        /* A packed store that does not open is damaged: a finding. In other formats the options may
         * be wrong: a usage error. */
        if (all.format && !strcmp(all.format, "packed")) e->code = PL_FAIL;
        return e->code;
    }
    const double from = clock_seconds();
    char time[32];
    survey_log(all.set);
    uint64_t masks, broken = check_shards(&all), bad = check_all(&all, &masks);
    const char *what = strcmp(all.format, "sa1b") ? "files" : "shards";
    printf("%s: %u %s, %llu samples, %llu masks: %llu bad samples, %llu %s with damage or unpaired files, %s\n", all.format, all.files.n, what,
           (unsigned long long)all.n, (unsigned long long)masks, (unsigned long long)bad, (unsigned long long)broken, what,
           duration_print(clock_seconds() - from, time));
    int rc = dataset_intact(all.set, e);
    if (!rc && (bad || broken))
        rc = error_set(e, PL_FAIL, "%llu of %llu samples and %llu of %u %s are bad%s", (unsigned long long)bad, (unsigned long long)all.n, (unsigned long long)broken,
                       all.files.n, what, strcmp(all.format, "sa1b") ? "" : "; `plimsoll data prepare` writes shards without them");
    samples_close(&all);
    return rc;
}

static int run(int argc, char **argv, struct error *e)
{
    struct names paths = {0};
    struct samples_options o = {0};
    bool help;
    const struct data_option table[] = {SAMPLES_OPTIONS(o)};
    int rc = data_options(&data_verify, table, COUNT(table), argc, argv, &paths, &help, e);
    if (!rc && !help) rc = paths.n ? verify(&o, &paths, e) : error_set(e, PL_USAGE, "no data is given: add shards, folders or globs (see --help)");
    names_free(&paths);
    return rc;
}

const struct command data_verify = {
    "verify", "data verify PATHS [--format F] [--images DIR] [--masks DIR] [--labels KIND] [--range R]",
    "Decodes every image and every mask, and compares the stated sizes, areas and boxes with the\n"
    "decoded ones. Prints every bad sample; the exit code is 1 when there is one.\n"
    "\n"
    "  PATHS           shards (tar), folders of extracted files, folders of shards; the annotation\n"
    "                  file of COCO; a folder of images and masks; a table; .pack; globs\n"
    SAMPLES_HELP,
    run};
