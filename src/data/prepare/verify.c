/*
 * verify.c: see prepare.h.
 */
#include "data/formats/packed.h"
#include "data/prepare/prepare.h"

#include <math.h>

#include "base/progress.h"
#include "data/fill.h"
#include "data/samples.h"

struct checking {
    const struct samples *all;
    struct loader_options o;
    struct verified *out;
};

/* What one sample has. */
struct finding {
    struct text bad, differs; /* a line each; empty: none */
    uint32_t masks, left_out; /* masks that can be used, and malformed ones, which training leaves out */
};

/* --- as training reads it ---------------------------------------------------------------- */

/* The memory of one thread. */
struct sample_reader {
    char *memory;
    struct filler *filler;
    uint8_t *image, *bits;
};

static struct sample_reader reader_new(const struct loader_options *o)
{
    struct sample_reader r = {.memory = mem_alloc(filler_size(o) + 64),
                       .image = mem_alloc((size_t)o->side * o->side * 3),
                       .bits = mem_alloc(grid_mask_bytes(o->cells, o->cells))};
    r.filler = filler_new(o, (char *)align_up((uintptr_t)r.memory, 64));
    return r;
}

static void reader_free(struct sample_reader *r)
{
    filler_free(r->filler);
    mem_free(r->memory);
    mem_free(r->image);
    mem_free(r->bits);
}

static enum data_fault read_sample(const struct checking *v, struct sample_reader *r, uint64_t i, struct finding *to,
                                   struct error *e)
{
    struct fill_facts facts;
    enum data_fault fault = fill_records(r->filler, v->all->set, i, false, &facts, e);
    if (fault) return fault;
    for (uint32_t k = 0; k < facts.n; k++) {
        fault = fill_bits(r->filler, k, r->bits, e);
        if (fault == FAULT_SIZE) return fault;
        if (fault) to->left_out++;
        else to->masks++;
    }
    return to->masks ? fill_sample_image(r->filler, v->all->set, i, r->image, e) : FAULT_MASK;
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

static void check_sample(const struct checking *v, struct sample_reader *r, uint64_t i, struct finding *to)
{
    struct error e = {0};
    char name[512];
    *to = (struct finding){0};
    enum data_fault fault = read_sample(v, r, i, to, &e);
    dataset_name(v->all->set, i, name, sizeof name);
    if (fault)
        text_printf(&to->bad, "%s: %s%s", name, e.text,
                    fault == FAULT_TOO_LARGE ? " (data.sample_memory; --sample-memory here)" : "");
    else if (to->left_out)
        text_printf(&to->differs, "%s: %u of its %u masks are left out: %s", name, to->left_out,
                    to->left_out + to->masks, e.text);
    else compare_masks(v->all, i, &to->differs);
}

static void count(struct checking *v, struct finding *f)
{
    if (f->bad.n || f->differs.n) progress_clear();
    if (f->bad.n) print_line("bad: %s", f->bad.at), v->out->bad++;
    if (f->differs.n) print_line("note: %s", f->differs.at), v->out->differ++;
    v->out->masks += f->masks;
    v->out->left_out += f->left_out;
    text_free(&f->bad);
    text_free(&f->differs);
}

/* Counts and prints the findings, in the order of the samples. */
static void check_all(struct checking *v)
{
    enum { BLOCK = 256 };
    struct finding found[BLOCK];
    struct progress progress;
    progress_begin(&progress, "verifying", "images", v->all->n);
    for (uint64_t from = 0; from < v->all->n; from += BLOCK) {
        uint64_t n = min_u64(v->all->n - from, BLOCK);
#pragma omp parallel
        {
            struct sample_reader r = reader_new(&v->o);
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

void verify_samples(const struct samples *all, uint64_t room, struct verified *out)
{
    const bool stores = !strcmp(all->format, "packed") && !text_ends_with(all->files.at[0], ".json");
    struct checking v = {.all = all, .out = out,
                         .o = {.side = 1024, .cells = 256, .masks = 1, .threads = 1, .slots = 2,
                               .polygon_runs = strcmp(all->format, "coco") ? 0 : LOADER_POLYGON_RUNS,
                               .room = room ? room : loader_default_room(all->format, stores)}};
    *out = (struct verified){.broken = check_shards(all)};
    check_all(&v);
}

/* --- stores of embeddings --------------------------------------------------------------------- */

void verify_embeddings(const struct dataset *d, bool check, struct embedding_counts *n)
{
    struct progress progress;
    progress_begin(&progress, "verifying", "images", dataset_count(d));
    for (uint64_t i = 0; i < dataset_count(d); i++) {
        struct packed_output x;
        struct error e;
        char name[2048];
        dataset_name(d, i, name, sizeof name);
        CHECK(packed_find(d, name, &x), "%s", name);
        const bool damaged = check && dataset_check(d, i, &e);
        if (check && (damaged || x.fault)) progress_clear();
        if (damaged) print_line("bad: %s: %s", name, e.text), n->damaged++;
        if (check && x.fault) print_line("note: %s", x.why);
        n->unreadable += x.fault != FAULT_NONE;
        n->embeddings += x.fault ? 0 : x.count;
        progress_add(&progress, 1);
    }
    progress_clear();
}
