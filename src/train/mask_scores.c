/*
 * mask_scores.c: see mask_scores.h.
 */
#include "train/mask_scores.h"

#include <stdio.h>
#include <string.h>

#include "data/dataset.h"

enum { CATEGORIES = 4096, CHOSEN = 0, IOU = 3 }; /* columns of MASK_LOSS's statistics: CHOSEN below 0 is no mask */

static const char *category_name(const void *of, int32_t category) { return dataset_category(of, category); }

bool mask_scores_open(struct mask_scores *m, const struct run *r, const struct feed *f, enum program p, uint32_t worst)
{
    memset(m, 0, sizeof *m);
    m->first = graph_find_output(&r->graph, p, "first_picks");
    m->last = graph_find_output(&r->graph, p, "last_statistics");
    if (!m->first || !feed_dataset(f)) return false;
    m->passes = (uint32_t)feed_passes(f);
    const uint32_t n = m->passes * (m->last ? 2 : 1);
    m->names = mem_alloc(n * sizeof *m->names);
    m->prompts = mem_alloc(n * sizeof *m->prompts);
    for (uint32_t i = 0; i < n; i++) {
        const char *pass = feed_pass_name(f, (int)(i % m->passes));
        if (i < m->passes) snprintf(m->names[i], sizeof m->names[i], "%s", pass);
        else snprintf(m->names[i], sizeof m->names[i], "%s, round %lld", pass, (long long)r->batch.prompts.rounds);
        m->prompts[i] = m->names[i];
    }
    m->statistics = mem_alloc(tensor_bytes(tensor_at(&r->graph, m->first)));
    scores_open(&m->scores, m->prompts, n, CATEGORIES, worst);
    scores_names(&m->scores, category_name, feed_dataset(f));
    return true;
}

void mask_scores_close(struct mask_scores *m)
{
    scores_close(&m->scores);
    mem_free(m->statistics);
    mem_free(m->names);
    mem_free(m->prompts);
    memset(m, 0, sizeof *m);
}

static int add(struct mask_scores *m, struct run *r, const struct feed *f, id statistics, uint32_t prompt, struct error *e)
{
    const int64_t n = tensor_elements(tensor_at(&r->graph, statistics)) / MASK_STATS;
    int rc = run_read(r, statistics, m->statistics, e);
    for (int64_t i = 0; i < n && !rc; i++) {
        const float *s = m->statistics + i * MASK_STATS;
        const struct feed_mask *x = &f->masks[i];
        if (x->area && s[CHOSEN] >= 0) scores_add(&m->scores, prompt, x->category, (double)s[IOU], dice_of_iou((double)s[IOU]), x->sample, x->id);
    }
    return rc;
}

int mask_scores_add(struct mask_scores *m, struct run *r, const struct feed *f, struct error *e)
{
    int rc = add(m, r, f, m->first, (uint32_t)f->pass, e);
    return rc || !m->last ? rc : add(m, r, f, m->last, m->passes + (uint32_t)f->pass, e);
}
