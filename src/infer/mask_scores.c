/*
 * mask_scores.c: see mask_scores.h.
 */
#include "infer/mask_scores.h"

#include "data/dataset.h"
#include "graph/sizes.h"
#include "models/contents.h"

enum { CATEGORIES = 4096, CHOSEN = 0, IOU = 3 }; /* columns of MASK_LOSS's statistics; CHOSEN < 0: no mask */

static const char *category_name(const void *of, int32_t category) { return dataset_category(of, category); }

bool mask_scores_open(struct mask_scores *m, const struct run *r, const struct feed *f, enum program p, uint32_t worst)
{
    memset(m, 0, sizeof *m);
    m->first = graph_find_output(&r->planned.graph, p, "first_picks");
    m->last = graph_find_output(&r->planned.graph, p, "last_statistics");
    if (!m->first || !feed_dataset(f)) return false;
    m->passes = (uint32_t)feed_passes(f);
    const uint32_t n = m->passes * (m->last ? 2 : 1);
    m->names = mem_alloc(n * sizeof *m->names);
    m->prompts = mem_alloc(n * sizeof *m->prompts);
    for (uint32_t i = 0; i < n; i++) {
        const char *pass = feed_pass_name(f, (int)(i % m->passes));
        if (i < m->passes) snprintf(m->names[i], sizeof m->names[i], "%s", pass);
        else
            snprintf(m->names[i], sizeof m->names[i], "%s, round %lld", pass,
                     (long long)contents_of(&r->planned.batch)->prompts.rounds);
        m->prompts[i] = m->names[i];
    }
    struct planned_input x;
    if (planned_input(&r->planned, "input_points", &x)) {
        m->prompts_at = x.storage;
        m->slots = contents_of(&r->planned.batch)->prompts.points;
        m->coords = mem_alloc(x.sample * (uint64_t)planned_samples(&r->planned));
    }
    m->statistics = mem_alloc(tensor_bytes(tensor_at(&r->planned.graph, m->first)));
    m->most_records =
        (uint32_t)(tensor_elements(tensor_at(&r->planned.graph, m->first)) / MASK_STATS) * (m->last ? 2 : 1);
    m->records = mem_alloc(m->most_records * sizeof *m->records);
    scores_open(&m->scores, m->prompts, n, CATEGORIES, worst);
    scores_names(&m->scores, category_name, feed_dataset(f));
    return true;
}

void mask_scores_close(struct mask_scores *m)
{
    scores_close(&m->scores);
    mem_free(m->statistics);
    mem_free(m->records);
    mem_free(m->coords);
    mem_free(m->names);
    mem_free(m->prompts);
    memset(m, 0, sizeof *m);
}

/* Reads the prompt coordinates that the feed wrote, for the rows that the program read. */
static int read_coords(struct mask_scores *m, struct run *r, int64_t masks, struct error *e)
{
    const char *from = r->device.arena[SPACE_DEVICE] + r->planned.plan.placement.offset[m->prompts_at];
    return r->device.ops->read(&r->device, m->coords, from, (uint64_t)(masks * m->slots * 2) * sizeof *m->coords, e);
}

static int list(struct mask_scores *m, struct run *r, const struct feed *f, id statistics, bool last, struct error *e)
{
    const int64_t n = tensor_elements(tensor_at(&r->planned.graph, statistics)) / MASK_STATS;
    int rc = run_read(r, statistics, m->statistics, e);
    if (!rc && !last && m->slots) rc = read_coords(m, r, n, e);
    for (int64_t i = 0; i < n && !rc; i++) {
        const float *s = m->statistics + i * MASK_STATS;
        const struct feed_mask *x = &f->masks[i];
        if (!x->area || s[CHOSEN] < 0) continue;
        struct mask_record *to = &m->records[m->n_records++];
        *to = (struct mask_record){{.sample = x->sample, .mask = x->id},
                                   (double)s[IOU],
                                   (uint32_t)f->pass + (last ? m->passes : 0),
                                   x->category,
                                   !last};
        if (m->slots) memcpy(to->where.coords, m->coords + i * m->slots * 2, sizeof to->where.coords);
    }
    return rc;
}

int mask_scores_list(struct mask_scores *m, struct run *r, const struct feed *f, struct error *e)
{
    m->n_records = 0;
    int rc = list(m, r, f, m->first, false, e);
    return rc || !m->last ? rc : list(m, r, f, m->last, true, e);
}

void mask_scores_take(struct mask_scores *m, const struct mask_record *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        scores_add(&m->scores, x[i].row, x[i].category, x[i].iou, dice_of_iou(x[i].iou),
                   x[i].first ? &x[i].where : NULL);
}

int mask_scores_add(struct mask_scores *m, struct run *r, const struct feed *f, struct error *e)
{
    int rc = mask_scores_list(m, r, f, e);
    if (!rc) mask_scores_take(m, m->records, m->n_records);
    return rc;
}

struct score mask_scores_of(const struct mask_scores *m, bool last)
{
    struct score sum = {0};
    for (uint32_t p = 0; p < m->passes; p++) {
        struct score x = scores_of(&m->scores, p + (last && m->last ? m->passes : 0));
        sum.masks += x.masks;
        sum.above_half += x.above_half;
        sum.above_most += x.above_most;
        sum.iou += x.iou;
        sum.dice += x.dice;
    }
    return sum;
}
