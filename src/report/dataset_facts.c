/*
 * dataset_facts.c: see data_report.h.
 */
#include "report/data_report.h"

#include "base/words.h"
#include "batch/embed.h"
#include "data/formats/packed.h"
#include "io/json.h"

/* --- memory of the masks ---------------------------------------------------------------------- */

static const char *const encoding_names[ENCODINGS] = {"float32", "uint8", "1 bit", "RLE"};
static const char *const encoding_keys[ENCODINGS] = {"float32", "uint8", "bits", "rle"};
static const char *const size_keys[SIZES] = {"full", "1024", "256"};

/* The rows of a whole sample; kinds from ENCODINGS on are the image and the annotations. */
enum { IMAGE = ENCODINGS, ANNOTATIONS };
static double sample_bytes(const struct mask_memory *c, int kind, int s)
{
    return kind == IMAGE         ? c->image[s]
           : kind == ANNOTATIONS ? c->annotations
                                 : c->image[s] + c->annotations + c->bytes[kind][s];
}
static const struct {
    const char *name, *key;
    int kind;
} sample_rows[] = {{"image, RGB", "image", IMAGE},
                   {"annotations", "annotations", ANNOTATIONS},
                   {"total, masks uint8", "total_uint8", UINT8},
                   {"total, masks float32", "total_float32", FLOAT32}};

static void print_sample(const struct mask_memory *c, struct text *out)
{
    char size[32];
    text_printf(
        out, "Memory of the whole sample: the image in 8 bits, about 500 bytes of JSON for each mask, and the masks\n");
    for (size_t i = 0; i < COUNT(sample_rows); i++) {
        text_printf(out, "  %-20s", sample_rows[i].name);
        for (int s = 0; s < SIZES; s++)
            text_printf(out, " %12s", size_print((uint64_t)(sample_bytes(c, sample_rows[i].kind, s) + 0.5), size));
        text_printf(out, "\n");
    }
}

/* Prints the memory of the masks of one sample; of the whole sample too where that is known. */
static void mask_memory_print(const struct mask_memory *c, struct text *out)
{
    text_printf(out, "Memory of the masks of one sample%s: %.0fx%.0f, %.1f masks\n", c->estimated ? "" : ", mean", c->w,
                c->h, c->masks);
    text_printf(out, "  %-10s %12s %12s %12s\n", "", "full size", "1024x1024", "256x256");
    for (int f = 0; f < ENCODINGS; f++) {
        text_printf(out, "  %-10s", encoding_names[f]);
        for (int s = 0; s < SIZES; s++) {
            char size[32], about[40];
            snprintf(about, sizeof about, "%s%s", f == RUNS && (s != FULL || c->estimated) ? "~" : "",
                     size_print((uint64_t)(c->bytes[f][s] + 0.5), size));
            text_printf(out, " %12s", about);
        }
        text_printf(out, "\n");
    }
    text_printf(out, "  RLE: %s%.0f runs per mask, 4 bytes each; ~ estimated in proportion to the image's side%s\n",
                c->estimated ? "~" : "", c->runs, c->estimated ? ", from 345 runs at 2000x1500 in SA-1B" : "");
    if (c->annotations > 0) print_sample(c, out);
    char largest[32];
    if (c->most > 0)
        text_printf(out, "  the largest sample takes %s as float32 at full size\n",
                    size_print((uint64_t)(4 * c->most), largest));
}

static void mask_memory_json(const struct mask_memory *c, struct text *out)
{
    text_printf(out, "{\"width\": %.2f, \"height\": %.2f, \"masks\": %.3f, \"runs_per_mask\": %.2f", c->w, c->h,
                c->masks, c->runs);
    for (int f = 0; f < ENCODINGS; f++) {
        text_printf(out, ", \"%s\": {", encoding_keys[f]);
        for (int s = 0; s < SIZES; s++) text_printf(out, "%s\"%s\": %.0f", s ? ", " : "", size_keys[s], c->bytes[f][s]);
        text_printf(out, "}");
    }
    for (size_t i = 0; i < COUNT(sample_rows) && c->annotations > 0; i++) {
        text_printf(out, ", \"%s\": {", sample_rows[i].key);
        for (int s = 0; s < SIZES; s++)
            text_printf(out, "%s\"%s\": %.0f", s ? ", " : "", size_keys[s], sample_bytes(c, sample_rows[i].kind, s));
        text_printf(out, "}");
    }
    text_printf(out, "}");
}

/* --- statistics ------------------------------------------------------------------------------- */

static void print_row(struct text *out, const char *name, const numbers *v, double unit, int digits)
{
    if (!v->n) return;
    text_printf(out, "  %-22s %10.*f %10.*f %10.*f %10.*f %10.*f %10.*f\n", name, digits, facts_quantile(v, 0) * unit,
                digits, facts_quantile(v, 0.1) * unit, digits, facts_quantile(v, 0.5) * unit, digits,
                facts_quantile(v, 0.9) * unit, digits, facts_quantile(v, 1) * unit, digits, facts_mean(v) * unit);
}

static void print_areas(const struct dataset_facts *f, struct text *out)
{
    uint64_t n[AREAS];
    facts_areas(&f->area, n);
    text_printf(out, "\nArea of the masks, as a share of the image\n");
    for (size_t k = 0; k < AREAS; k++) {
        double share = f->area.n ? (double)n[k] / f->area.n : 0;
        text_printf(out, "  %-14s %9llu  %5.1f %%  %.*s\n", area_names[k], (unsigned long long)n[k], 100 * share,
                    (int)(40 * share + 0.5), "########################################");
    }
}

static void print_sizes(const struct dataset_facts *f, struct text *out)
{
    text_printf(out, "\nSizes of the images: %u different %s\n", f->sizes.n, f->sizes.n == 1 ? "size" : "sizes");
    for (uint32_t i = 0; i < f->sizes.n && i < 8; i++)
        text_printf(out, "  %5ux%-5u %9llu  %5.1f %%\n", f->sizes.at[i].w, f->sizes.at[i].h,
                    (unsigned long long)f->sizes.at[i].n, 100.0 * (double)f->sizes.at[i].n / f->masks.n);
}

/* Prints what is decided over the dataset, and what is left out of it. */
static void print_choices(const struct samples *all, const struct dataset_facts *f, struct text *out)
{
    bool (*const each[])(const struct dataset *, struct text *) = {survey_print_labels, survey_print_range};
    struct text line = {0};
    if (dataset_print_left(all->set, false, &line)) text_printf(out, "  %s\n", line.at);
    else if (f->crowds)
        text_printf(out, "  left out: %llu crowds (data.crowds: true uses them)\n", (unsigned long long)f->crowds);
    text_free(&line);
    if (f->small)
        text_printf(out,
                    "  left out: %llu %s too small to be trained on or scored (on no cell of a grid of %u x %u: "
                    "--masks-size; 256 for SAM at 1024)\n",
                    (unsigned long long)f->small, f->small == 1 ? "mask" : "masks", f->cells, f->cells);
    for (size_t i = 0; i < COUNT(each); i++) {
        if (each[i](all->set, &line)) text_printf(out, "  %s\n", line.at);
        text_free(&line);
    }
    for (int k = 0; survey_next_warning(all->set, &k, &line); text_free(&line))
        text_printf(out, "  warning: %s\n", line.at);
}

static void print_categories(const struct samples *all, const struct dataset_facts *f, struct text *out)
{
    enum { SHOWN = 20 };
    if (!f->categories.n) return;
    text_printf(out, "\nCategories of the masks: %u, by name or number for data.categories\n", f->categories.n);
    for (uint32_t i = 0; i < f->categories.n && i < SHOWN; i++) {
        const struct category_count *c = &f->categories.at[i];
        const char *name = dataset_category(all->set, c->number);
        text_printf(out, "  %5d %-22s %9llu  %5.1f %%\n", c->number, name ? name : "", (unsigned long long)c->n,
                    100.0 * (double)c->n / f->area.n);
    }
    if (f->categories.n > SHOWN) text_printf(out, "  and %u more\n", f->categories.n - SHOWN);
}

/* Reports whether the files rate their masks: those without ratings have 1 everywhere. */
static bool is_rated(const numbers *v) { return facts_quantile(v, 0) != 1 || facts_quantile(v, 1) != 1; }

void dataset_facts_print(const struct samples *all, const struct dataset_facts *f, const struct mask_memory *c,
                          struct text *out)
{
    const struct shard_report *r = dataset_report(all->set);
    const struct packed_embeddings *x = dataset_embeddings(all->set);
    text_printf(out, "%s: %u %s, %llu sample%s, %llu mask%s\n", all->format, all->files.n,
                all->files.n == 1 ? "file" : "files", (unsigned long long)all->n, all->n == 1 ? "" : "s",
                (unsigned long long)f->area.n, f->area.n == 1 ? "" : "s");
    text_printf(out, "  images without annotations %llu, annotations without an image %llu, duplicates %llu\n",
                (unsigned long long)r->no_text, (unsigned long long)r->no_image, (unsigned long long)r->duplicates);
    text_printf(out, "  damaged headers %llu (%llu bytes lost), truncated shards %llu, other files %llu\n",
                (unsigned long long)r->damaged, (unsigned long long)r->lost, (unsigned long long)r->partial,
                (unsigned long long)r->others);
    if (x) text_printf(out, "  embeddings %s, computed with %s\n", embed_print(x, (char[64]){0}), x->model);
    text_printf(out, "  unusable samples %llu, empty masks %llu\n", (unsigned long long)f->bad,
                (unsigned long long)f->empty);
    print_choices(all, f, out);
    if (f->bad) text_printf(out, "  first unusable sample: %s\n", f->first_bad);
    text_printf(out, "\n  %-22s %10s %10s %10s %10s %10s %10s\n", "", "min", "10 %", "median", "90 %", "max", "mean");
    print_row(out, "masks per image", &f->masks, 1, 1);
    print_row(out, "area, % of the image", &f->area, 100, 3);
    print_row(out, "runs per mask", &f->runs, 1, 1);
    print_row(out, "RLE chars per mask", &f->counts, 1, 1);
    if (is_rated(&f->iou)) print_row(out, "predicted_iou", &f->iou, 1, 3);
    if (is_rated(&f->stability)) print_row(out, "stability_score", &f->stability, 1, 3);
    print_row(out, "image, KiB", &f->image_bytes, 1.0 / 1024, 1);
    print_areas(f, out);
    print_categories(all, f, out);
    print_sizes(f, out);
    text_printf(out, "\n");
    mask_memory_print(c, out);
}

static void json_quantiles(struct text *out, const char *name, const numbers *v)
{
    text_printf(out,
                ", \"%s\": {\"min\": %.9g, \"p10\": %.9g, \"p50\": %.9g, \"p90\": %.9g, \"max\": %.9g, \"mean\": %.9g}",
                name, facts_quantile(v, 0), facts_quantile(v, 0.1), facts_quantile(v, 0.5), facts_quantile(v, 0.9),
                facts_quantile(v, 1), facts_mean(v));
}

static void json_choices(const struct samples *all, const struct dataset_facts *f, struct text *out)
{
    static const char *const labels[] = {"auto", "binary", "classes", "instances"}, *const ranges[] = {"auto", "full",
                                                                                                       "percentiles",
                                                                                                       "window"};
    const struct dataset *d = all->set;
    const struct dataset_survey *s = dataset_survey(d);
    text_printf(out, ", \"crowd_masks\": %llu, \"one_part_crowds\": %llu, \"too_small_masks\": %llu",
                (unsigned long long)f->crowds, (unsigned long long)d->left.one_part, (unsigned long long)f->small);
    if (d->format->label)
        text_printf(out,
                    ", \"labels\": {\"kind\": \"%s\", \"values\": %u, \"ignore\": %d, \"threshold\": %u, \"soft\": %s, "
                    "\"mask_images\": %llu, \"looked_at\": %llu}",
                    labels[d->labels.kind], s->values, d->labels.ignore, d->labels.threshold,
                    s->soft ? "true" : "false", (unsigned long long)s->labels, (unsigned long long)s->labels_seen);
    text_printf(out,
                ", \"range\": {\"kind\": \"%s\", \"low\": %.10g, \"high\": %.10g, \"images_of_16_bits\": %llu, "
                "\"looked_at\": %llu, \"brightness\": %d}",
                ranges[d->range.kind], d->range.window[0], d->range.window[1], (unsigned long long)s->deep,
                (unsigned long long)s->images_seen, s->bright);
}

static void json_categories(const struct samples *all, const struct dataset_facts *f, struct text *out)
{
    struct json_writer w = {.out = out};
    json_begin_list(&w, NULL);
    for (uint32_t i = 0; i < f->categories.n; i++) {
        const char *name = dataset_category(all->set, f->categories.at[i].number);
        json_begin_map(&w, NULL);
        json_put_int(&w, "number", f->categories.at[i].number);
        if (name) json_put_string(&w, "name", name);
        json_put_uint(&w, "masks", f->categories.at[i].n);
        json_end(&w);
    }
    json_end(&w);
}

void dataset_facts_json(const struct samples *all, const struct dataset_facts *f, const struct mask_memory *c,
                         struct text *out)
{
    const struct shard_report *r = dataset_report(all->set);
    uint64_t n[AREAS];
    facts_areas(&f->area, n);
    text_printf(out,
                "{\"format\": \"%s\", \"files\": %u, \"samples\": %llu, \"masks\": %llu, \"bad\": %llu, "
                "\"empty_masks\": %llu, \"no_text\": %llu, \"no_image\": %llu, \"duplicates\": %llu, "
                "\"damaged\": %llu, \"partial\": %llu",
                all->format, all->files.n, (unsigned long long)all->n, (unsigned long long)f->area.n,
                (unsigned long long)f->bad, (unsigned long long)f->empty, (unsigned long long)r->no_text,
                (unsigned long long)r->no_image, (unsigned long long)r->duplicates, (unsigned long long)r->damaged,
                (unsigned long long)r->partial);
    json_choices(all, f, out);
    json_quantiles(out, "masks_per_image", &f->masks);
    json_quantiles(out, "area_share", &f->area);
    json_quantiles(out, "runs_per_mask", &f->runs);
    json_quantiles(out, "predicted_iou", &f->iou);
    json_quantiles(out, "stability_score", &f->stability);
    json_quantiles(out, "image_bytes", &f->image_bytes);
    text_printf(out, ", \"area_histogram\": [");
    for (size_t k = 0; k < AREAS; k++) text_printf(out, "%s%llu", k ? ", " : "", (unsigned long long)n[k]);
    text_printf(out, "], \"sizes\": [");
    for (uint32_t i = 0; i < f->sizes.n; i++)
        text_printf(out, "%s{\"width\": %u, \"height\": %u, \"count\": %llu}", i ? ", " : "", f->sizes.at[i].w,
                    f->sizes.at[i].h, (unsigned long long)f->sizes.at[i].n);
    text_printf(out, "], \"categories\": ");
    json_categories(all, f, out);
    text_printf(out, ", \"memory\": ");
    mask_memory_json(c, out);
    text_printf(out, "}\n");
}

/* --- inspecting ------------------------------------------------------------------------------- */

int inspect_samples(struct samples_options *o, const struct names *paths, uint32_t cells, const char *sheet, bool json,
                    struct error *e)
{
    struct samples all;
    struct dataset_facts f = {.cells = cells};
    struct text tables = {0}, out = {0};
    TRY(samples_options_read(o, e));
    TRY(samples_open(&all, &o->set, paths, e));
    facts_count(&f, &all);
    struct mask_memory c = mask_memory_measured(&f);
    dataset_facts_print(&all, &f, &c, &tables);
    if (json) dataset_facts_json(&all, &f, &c, &out);
    fputs(json ? out.at : tables.at, stdout);
    int rc = dataset_intact(all.set, e);
    if (!rc && sheet) rc = samples_sheet(sheet, &all, &f, &c, tables.at, e);
    text_free(&tables);
    text_free(&out);
    facts_free(&f);
    samples_close(&all);
    return rc;
}

int inspect_given(const char *given, bool json, struct error *e)
{
    char size[64], *end;
    uint32_t wh[2];
    const char *comma = strchr(given, ',');
    double masks = comma ? strtod(comma + 1, &end) : 0;
    if (!comma || end == comma + 1 || *end || !(masks > 0 && masks <= 1e6) || (size_t)(comma - given) >= sizeof size)
        return error_set(e, PL_USAGE, "--given %s: expected WIDTHxHEIGHT,MASKS, such as 2250x1500,100", given);
    snprintf(size, sizeof size, "%.*s", (int)(comma - given), given);
    if (!extent_parse(size, wh))
        return error_set(e, PL_USAGE, "--given %s: expected WIDTHxHEIGHT,MASKS, such as 2250x1500,100", given);
    struct mask_memory c = mask_memory_of(wh[0], wh[1], masks);
    struct text out = {0};
    if (json) mask_memory_json(&c, &out), text_printf(&out, "\n");
    else mask_memory_print(&c, &out);
    fputs(out.at, stdout);
    text_free(&out);
    return PL_OK;
}

