/*
 * planned.c: planning a run, with remedies if nothing fits, and what is said about its plan (see
 * planned.h).
 */
#include "planning/stages.h"

int planned_open(struct planned *r, const struct config *c, const struct run_options *o, struct error *e)
{
    int rc = planned_make(r, c, o, e);
    if (rc == PL_NOFIT && !o->plan && !o->generate) planned_add_remedies(r, o, e);
    if (!o->several) planned_close_space(r);
    return rc;
}

struct plan_note planned_note(const struct planned *r, bool fits)
{
    const bool host = !fits && planned_exceeds_host(r),
               stated = host || r->config->memory_host_budget.kind == BUDGET_BYTES;
    return (struct plan_note){.fits = fits,
                              .refused_by = fits   ? NULL
                                            : host ? "memory.host_budget"
                                                   : "memory.budget",
                              .budget = r->budget,
                              .host_budget = stated ? r->host_budget : 0,
                              .effective_batch = r->effective_batch,
                              .profile = &r->profile,
                              .adapter = r->adapted,
                              .remedy = r->remedy,
                              .n_remedies = r->n_remedies,
                              .warning = r->warning,
                              .n_warnings = r->n_warnings};
}

bool planned_print_order(const struct planned *r, struct text *out)
{
    char value[SETTING_ROOM];
    for (enum technique_id id = 0; id < TECHNIQUES; id++) {
        const struct technique *t = &techniques[id];
        if (!t->orders_sums || config_technique(r->config, id)->chosen ||
            (t->models && technique_is_off(id, &r->plan.settings)))
            continue;
        text_printf(out, "%s%s.%s: %s", out->n ? ", " : "", t->section, t->name,
                    technique_print(id, &r->plan.settings, value));
    }
    return out->n;
}

bool planned_print_batch(const struct planned *r, struct text *out)
{
    enum { USUAL_LEAST = 8, USUAL_MOST = 32 };
    const int ranks = (int)max_i64(1, r->plan.settings.ranks), most = USUAL_MOST * ranks;
    if (!r->config->model_path || r->config->data_format < FORMAT_CONVERSATIONS ||
        (r->effective_batch >= USUAL_LEAST && r->effective_batch <= most))
        return false;
    text_printf(out, "train.effective_batch is %d: recipes for fine-tuning have %d to %d samples a step",
                r->effective_batch, USUAL_LEAST, most);
    if (ranks > 1) text_printf(out, " on %d ranks", ranks);
    return true;
}
