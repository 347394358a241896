/*
 * data_verify.c: `plimsoll data verify`: decodes everything once. What this finds good, training
 * can read.
 */
#include <math.h>
#include <stdio.h>

#include "cli/data.h"
#include "cli/data_samples.h"
#include "data/jpeg.h"
#include "io/png.h"

/* All rows, one after the other: nothing of the picture's size is kept. */
static int decode_jpeg(struct jpg *j, const struct text *file, uint32_t *w, uint32_t *h, struct error *e)
{
    if (jpg_start(j, file->at, file->n, 1, w, h, e)) return e->code;
    uint8_t *row = mem_alloc((size_t)*w * 3);
    int rc = PL_OK;
    for (uint32_t y = 0; y < *h && !rc; y++) rc = jpg_rows(j, row, 0, 1, e);
    if (!rc) rc = jpg_finish(j, e);
    mem_free(row);
    return rc;
}

static int decode_image(struct jpg *j, const struct text *file, uint32_t *w, uint32_t *h, struct error *e)
{
    if (file->n < 4 || (uint8_t)file->at[0] != 0x89) return decode_jpeg(j, file, w, h, e);
    struct png_pixels p;
    int rc = png_decode(file->at, file->n, PNG_AS_RGB, 0, NULL, 0, &p, e);
    *w = p.width, *h = p.height;
    mem_free(p.at);
    return rc;
}

/* Runs, and the facts that the file states of them. SA-1B's boxes are one short; others' are not. */
static int check_mask(const struct mask *m, struct error *e)
{
    struct rle_facts f;
    enum rle_status s = rle_measure(&m->shape.rle, &f);
    if (s != RLE_OK) return error_set(e, PL_USAGE, "mask %lld: %s", (long long)m->id, rle_status_text(s));
    if (m->area >= 0 && m->area != f.area)
        return error_set(e, PL_USAGE, "mask %lld: the file says an area of %.0f, its runs have %u", (long long)m->id, m->area, f.area);
    if (fabs(m->box[0] - f.x) > 1 || fabs(m->box[1] - f.y) > 1 || fabs(m->box[2] - f.w) > 1 || fabs(m->box[3] - f.h) > 1)
        return error_set(e, PL_USAGE, "mask %lld: the file says a box of %g %g %g %g, its runs have %u %u %u %u", (long long)m->id, m->box[0], m->box[1],
                         m->box[2], m->box[3], f.x, f.y, f.w, f.h);
    return PL_OK;
}

static int check_sample(const struct samples *all, uint64_t i, struct jpg *j, struct sample *s, struct error *e)
{
    uint32_t w, h;
    if (samples_read(all, i, s, e)) return e->code;
    if (decode_image(j, &s->image, &w, &h, e)) return e->code;
    if (w != s->facts.w || h != s->facts.h)
        return error_set(e, PL_USAGE, "the picture is %ux%u, its annotations are for %ux%u", w, h, s->facts.w, s->facts.h);
    if (!s->facts.masks) return error_set(e, PL_USAGE, "it has no masks");
    for (uint32_t k = 0; k < s->facts.masks; k++)
        if (check_mask(&s->masks[k], e)) return e->code;
    return PL_OK;
}

/* Counts the bad ones and names them, in order of their numbers within a block. */
static uint64_t check_all(const struct samples *all, uint64_t *masks)
{
    enum { BLOCK = 256 };
    uint64_t bad = 0, sum = 0;
    struct text lines[BLOCK];
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
                sum += s.facts.masks;
                sample_free(&s);
            }
            jpg_free(j);
        }
        for (uint64_t i = 0; i < n; i++) {
            if (lines[i].n) printf("bad: %s\n", lines[i].at), bad++;
            text_free(&lines[i]);
        }
    }
    *masks = sum;
    return bad;
}

static int verify(const struct names *paths, struct error *e)
{
    struct samples all;
    if (samples_open(&all, paths, e)) return e->code;
    uint64_t broken = 0, masks;
    double from = clock_seconds();
    for (uint32_t k = 0; k < all.n_shards; k++) {
        char line[512];
        if (shard_report_print(&all.shards[k].report, line, sizeof line)) printf("bad: %s: %s\n", all.shards[k].path, line), broken++;
    }
    uint64_t bad = check_all(&all, &masks);
    printf("%u shards, %llu pairs, %llu masks: %llu bad pairs, %llu shards with damage or missing halves, %.1f s\n", all.n_shards, (unsigned long long)all.n,
           (unsigned long long)masks, (unsigned long long)bad, (unsigned long long)broken, clock_seconds() - from);
    int rc = PL_OK;
    if (!all.n) rc = error_set(e, PL_FAIL, "there is no pair of a picture and its annotations");
    else if (bad || broken)
        rc = error_set(e, PL_FAIL, "%llu of %llu pairs and %llu of %u shards are bad; `plimsoll data prepare` writes shards without them",
                       (unsigned long long)bad, (unsigned long long)all.n, (unsigned long long)broken, all.n_shards);
    samples_close(&all);
    return rc;
}

static int run(int argc, char **argv, struct error *e)
{
    struct names paths = {0};
    bool help;
    int rc = data_options(&data_verify, NULL, 0, argc, argv, &paths, &help, e);
    if (!rc && !help) rc = paths.n ? verify(&paths, e) : error_set(e, PL_USAGE, "which data? Give shards, folders or globs; --help shows how");
    names_free(&paths);
    return rc;
}

const struct command data_verify = {
    "verify", "data verify PATHS",
    "Decodes every picture and every mask, and compares what the files state (sizes, areas, boxes)\n"
    "with what they hold. Prints what is bad; exit code 1 when anything is.\n"
    "\n"
    "  PATHS           shards (tar), folders of extracted files, folders of shards, globs",
    run};
