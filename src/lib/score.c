/*
 * score.c: a model on held-out data and on given tensors, and an adapter merged into its base (the
 * contract is in plimsoll.h).
 */
#include "plimsoll.h"

#include <math.h>

#include "adapter/adapter_folder.h"
#include "batch/step_inputs.h"
#include "folder/new_folder.h"
#include "infer/validate.h"
#include "lib/session.h"

static int score_tokens(struct pl_session *s, struct pl_scores *out)
{
    struct mean_loss m = {0};
    const double begun = clock_seconds();
    TRY(validate_loss(&s->config, &m, &s->error));
    out->loss = m.loss;
    out->tokens = m.tokens;
    out->samples = m.samples;
    out->arena_bytes = m.arena;
    out->seconds = clock_seconds() - begun;
    return PL_OK;
}

static int score_masks(struct pl_session *s, struct pl_scores *out)
{
    struct mask_validation v = {0};
    int rc = mask_validation_open(&v, &s->config, 0, NULL, &s->error);
    if (!rc) rc = mask_validation_run(&v, &s->error);
    if (!rc) {
        out->loss = v.loss;
        out->seconds = v.seconds;
        out->samples = v.feed.samples;
        out->arena_bytes = plan_arena(&v.run.planned.plan);
    }
    if (!rc && !v.matches) {
        const struct score all = mask_scores_of(&v.found, true);
        out->masks = all.masks;
        out->iou = all.masks ? all.iou / (double)all.masks : NAN;
        out->dice = all.masks ? all.dice / (double)all.masks : NAN;
    }
    mask_validation_close(&v);
    return rc;
}

int pl_score(struct pl_session *s, struct pl_scores *out)
{
    ENTER(s);
    struct error *e = &s->error;
    struct pl_scores found = {.size = sizeof found, .iou = NAN, .dice = NAN};
    if (session_sized(s, "pl_score", out, sizeof *out)) return e->code;
    session_give(out, &found, sizeof found);
    if (s->stage == STAGE_STARTED)
        return error_set(e, PL_USAGE, "pl_score: the session is started, so its memory is in use; open another");
    if (s->build) return error_set(e, PL_USAGE, "pl_score: pl_define gave a model; pl_evaluate scores its batches");
    if (config_check(&s->config, CONFIG_NEEDS_MODEL, e)) return e->code;
    if (!config_validates(&s->config))
        return error_set(e, PL_USAGE, "pl_score: there is no validation data: set data.validation or data.holdout");
    session_evict(s); /* the budget is for one of them */
    if (config_tokens(&s->config) ? score_tokens(s, &found) : score_masks(s, &found))
        return error_prepend(e, "pl_score");
    session_give(out, &found, sizeof found);
    return PL_OK;
}

/* --- a step on given tensors ---------------------------------------------------------------- */

int pl_step_files(struct pl_session *s, const char *batch, const char *out)
{
    ENTER(s);
    struct error *e = &s->error;
    if (!batch || !out) return error_set(e, PL_USAGE, "pl_step_files: a path is NULL");
    if (s->stage == STAGE_STARTED)
        return error_set(e, PL_USAGE, "pl_step_files: the session is started, so its memory is in use; open another");
    if (config_check(&s->config, CONFIG_NEEDS_MODEL, e)) return e->code;
    session_evict(s); /* the budget is for one of them */
    struct config c = s->config;
    if (!c.memory_precision.chosen) c.memory_precision = (struct config_setting){true, "f32"};
    return step_run(&c, batch, out, e) ? error_prepend(e, "pl_step_files") : PL_OK;
}

/* --- merging -------------------------------------------------------------------------------- */

static int fill_merged(void *of, const char *dir, struct error *e) { return merge_write(of, dir, e); }

int pl_merge(struct pl_session *s, const char *base, const char *adapter, const char *dir)
{
    ENTER(s);
    struct error *e = &s->error;
    struct merge m;
    if (!base || !adapter || !dir) return error_set(e, PL_USAGE, "pl_merge: a folder is NULL");
    if (new_folder_check(dir, e) || merge_open(&m, base, adapter, e)) return error_prepend(e, "pl_merge");
    const int rc = new_folder_write(dir, fill_merged, &m, e);
    merge_close(&m);
    if (rc) return error_prepend(e, "pl_merge");
    snprintf(s->model, sizeof s->model, "%s", dir);
    return PL_OK;
}
