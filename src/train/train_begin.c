/*
 * train_begin.c: opens a trainer, starts or resumes a run, and closes everything.
 *
 *     configuration, against the stored one  ->  plan  ->  data files  ->  folder, tokens of text
 *     ->  memory and weights
 *       ->  the newest checkpoint, or an empty state  ->  loaders  ->  space on disk  ->
 *       metrics.jsonl cut, config.yaml, plan.json
 *
 * Errors that need no side effects are found first: the folder is created after plan and data are
 * checked, and memory is allocated after that. Everything that a step needs is allocated here or at
 * the start of the loop, nothing later.
 */
#include "train/trainer.h"

#include <math.h>

#include "base/caller.h"
#include "data/dataset.h"
#include "planning/planned.h"
#include "io/file.h"

/* --- resuming ------------------------------------------------------------------------------- */

/* Reports whether a resumed run may change the key; a change of memory and device keys, and of
 * those that decide whether and how long answers are, needs a new plan. */
static bool may_change(enum config_key k)
{
    return k == KEY_train_out || k == KEY_train_steps || k == KEY_train_epochs || k == KEY_train_eval_every ||
           k == KEY_train_save_every || k == KEY_train_monitor_every || k == KEY_train_keep ||
           k == KEY_train_keep_best || k == KEY_train_best || k == KEY_train_worst || k == KEY_data_validation ||
           k == KEY_data_threads || k == KEY_data_prefetch || k == KEY_data_max_bad || k == KEY_data_store;
}

static int refuse_change(const struct config *c, const struct config *stored, enum config_key k, const char *dir,
                         struct error *e)
{
    struct text now = {0}, then = {0};
    config_show(c, k, &now);
    config_show(stored, k, &then);
    int rc = error_set(e, PL_USAGE, "--resume: %s differs from the run in %s: it is %.200s, there %.200s; restore it, "
                       "or start a new run in another train.out", config_key_name(k), dir, now.at, then.at);
    text_free(&now);
    text_free(&then);
    return rc;
}

/* Keeps the shares of a run that is resumed, unless they are given, or n ranks cannot have the same
 * number of them. */
static void adopt_shares(int64_t *now, int64_t stored, int64_t n, const char *what)
{
    if (*now > 0 || stored <= 0) return;
    if (stored % n == 0) *now = stored;
    else
        log_note("resume: the %lld %s of the run cannot be divided among %lld ranks; it continues with %lld, which is "
                 "another order of the same sums",
                 (long long)stored, what, (long long)n, (long long)n);
}

/* Adopts what was decided for data keys that are auto (feed_resolve): a resumed run keeps the
 * decision. */
static void adopt_decisions(struct config *c, const struct config *stored, const struct ranks *ranks)
{
    const int64_t n = ranks ? ranks->n : 1;
    if (c->parallel_tensor <= 0 && stored->parallel_tensor > 0 && n % stored->parallel_tensor == 0)
        c->parallel_tensor = stored->parallel_tensor;
    const int64_t tensor = max_i64(1, c->parallel_tensor);
    adopt_shares(&c->parallel_shares, stored->parallel_shares, max_i64(1, n / tensor), "shares");
    adopt_shares(&c->parallel_tensor_shares, stored->parallel_tensor_shares, tensor, "parts of products");
    if (c->data_labels == LABELS_AUTO && stored->data_labels != LABELS_AUTO) {
        c->data_labels = stored->data_labels;
        if (!config_given(c, KEY_data_ignore)) c->data_ignore = stored->data_ignore;
        if (!config_given(c, KEY_data_threshold)) c->data_threshold = stored->data_threshold;
    }
    if (c->data_range != RANGE_AUTO || stored->data_range == RANGE_AUTO || config_given(c, KEY_data_window)) return;
    c->data_range = stored->data_range;
    c->data_window = stored->data_window;
    c->origin[KEY_data_window] = stored->origin[KEY_data_window];
}

/* Compares with the stored configuration; *plan_again if memory or device keys changed. Sets *group
 * to its planned_usual_group. */
static int compare_config(struct config *c, const char *dir, const struct ranks *ranks, bool *plan_again,
                          int64_t *group, struct error *e)
{
    char path[FOLDER_PATH];
    struct config stored;
    snprintf(path, sizeof path, "%s/config.yaml", dir);
    if (!file_exists(path))
        return error_set(e, PL_USAGE, "--resume: there is no run to resume in %s: %s; leave --resume out to start one",
                         dir, dir_exists(dir) ? "it has no config.yaml" : "no such folder");
    config_init(&stored);
    int rc = config_read(&stored, path, e);
    if (!rc) adopt_decisions(c, &stored, ranks);
    if (!rc) *group = planned_usual_group(&stored, max_i64(1, stored.parallel_shares));
    for (int k = 0; k < CONFIG_KEYS && !rc; k++) {
        if (config_same(c, &stored, k) || may_change(k)) continue;
        const char *name = config_key_name(k);
        const bool answers = k == KEY_train_eval_max_new || k == KEY_train_eval_batch ||
                             (k == KEY_train_eval_samples && (!c->train_eval_samples || !stored.train_eval_samples));
        if (k == KEY_train_eval_samples && !answers) continue; /* another number of prompts needs the same memory */
        if (k == KEY_data_train) {
            log_warn("resume: data.train changed; the run continues with the new files from its position");
        } else if (k == KEY_parallel_timeout || k == KEY_parallel_per_host || k == KEY_parallel_crowd) {
            continue;
        } else if (!strncmp(name, "parallel.", 9) || !strncmp(name, "memory.", 7) || !strncmp(name, "device.", 7) ||
                   answers) {
            log_note("resume: %s changed, so the plan is searched again", name);
            *plan_again = true;
        } else {
            rc = refuse_change(c, &stored, k, dir, e);
        }
    }
    config_free(&stored);
    return rc;
}

/* Returns PL_USAGE if another split of the batch would change what groups of samples compute. */
static int check_group(const struct trainer *t, int64_t group, struct error *e)
{
    const struct batch *b = &t->run.planned.batch;
    const int64_t now = planned_group(&t->run.planned);
    const bool given = b->bn_group ? t->c->model_bn_group || !t->c->model_path : t->c->model_router_group;
    if (!t->resumes || !now || given || now == group) return PL_OK;
    return error_set(e, PL_USAGE, "--resume: %lld %s in this run, and with this memory.micro_batch and number of ranks "
                     "%lld would; restore these", (long long)group,
                     b->bn_group ? "images share batch normalization statistics" : "samples share a loss of experts",
                     (long long)now);
}

/* --- the parts of starting ------------------------------------------------------------------ */

/* Returns the steps of the warmup; a fraction of the run is rounded up, as in transformers. */
static int64_t warmup_steps(const struct config *c, int64_t total)
{
    return c->train_warmup_ratio > 0 ? (int64_t)ceil((double)total * c->train_warmup_ratio) : c->train_warmup_steps;
}

static struct schedule make_schedule(const struct config *c, int64_t total)
{
    return (struct schedule){.kind = (enum schedule_kind)c->train_schedule, .warmup = warmup_steps(c, total),
                             .start = c->train_warmup_start, .log = c->train_warmup_shape == WARMUP_LOG,
                             .deepspeed = c->train_schedule_as == SCHEDULE_AS_DEEPSPEED, .total = total,
                             .floor = c->train_min_lr_rate, .gamma = c->train_step_gamma, .every = c->train_step_size,
                             .milestones = c->train_milestones.at, .n_milestones = c->train_milestones.n};
}

/* Sets the number of steps: it is given, or follows from the samples after the position. A run
 * whose last step was a short one and that gets more epochs continues after it. With groups of
 * samples there is no short step: its padding would change what they compute. */
static void measure_run(struct trainer *t)
{
    uint64_t E = (uint64_t)t->run.planned.effective_batch, *end = &t->steps.end;
    if (t->c->train_steps || !t->data.ops) {
        t->total = (uint64_t)t->c->train_steps;
        *end = UINT64_MAX;
    } else {
        *end = (uint64_t)ceil((double)t->data.samples * t->c->train_epochs);
        if (planned_group(&t->run.planned) && *end >= E) *end -= *end % E;
        uint64_t left = *end - min_u64(*end, t->state.position);
        t->total = t->state.step + (left + E - 1) / E;
    }
    t->schedule = make_schedule(t->c, (int64_t)t->total);
}

static bool interrupted(void) { return signals_received() || caller_stops(); }

/* Tokenizes text, which may take long. */
static int prepare_data(struct trainer *t, struct error *e)
{
    t->data.interrupted = t->validation.interrupted = interrupted;
    int rc = feed_prepare(&t->data, &t->run, t->c->train_out, e);
    return rc ? rc : feed_prepare(&t->validation, &t->run, t->c->train_out, e);
}

static int open_data(struct trainer *t, struct error *e)
{
    TRY(feed_open(&t->data, t->c, &t->run, FEED_TRAIN, e));
    feed_resolve(&t->data, &t->resolved);
    return config_validates(t->c) ? feed_open(&t->validation, t->c, &t->run, FEED_VALIDATION, e) : PL_OK;
}

/* Plans the run. A resume uses the stored plan; if that is not possible, it logs the reason and
 * plans again. */
static int make_plan(struct trainer *t, const struct train_options *o, bool plan_again, struct error *e)
{
    char stored[FOLDER_PATH];
    struct run_options ro = {.plan = o->plan, .train = true, .describe = feed_describe, .define = o->define,
                             .ranks = o->ranks, .whole = t->whole};
    snprintf(stored, sizeof stored, "%s/plan.json", t->c->train_out);
    bool follow = t->resumes && !plan_again && !o->plan && file_exists(stored);
    if (follow) ro.plan = stored;
    t->has_run = true;
    int rc = run_plan(&t->run, t->c, &ro, e);
    if (!rc || !follow) return rc;
    const char *remedy = strrchr(e->text, ';'); /* for users of --plan */
    log_note("resume: the stored plan cannot be used (%.*s); planning again, which does not change what is trained",
             remedy ? (int)(remedy - e->text) : (int)strlen(e->text), e->text);
    run_close(&t->run);
    ro.plan = o->plan;
    return run_plan(&t->run, t->c, &ro, e);
}

static int write_run_files(struct trainer *t, struct error *e)
{
    struct text text = {0};
    config_write(t->c, &text);
    int rc = folder_write(&t->folder, "config.yaml", text.at, text.n, e);
    text_free(&text);
    struct plan_note note = planned_note(&t->run.planned, true);
    note.storages = true;
    plan_write(&t->run.planned.plan, &t->run.planned.graph, &note, &text);
    if (!rc) rc = folder_write(&t->folder, "plan.json", text.at, text.n, e);
    text_free(&text);
    return rc;
}

static int open_events(struct trainer *t, struct error *e)
{
    char path[FOLDER_PATH + 8];
    snprintf(path, sizeof path, "%s/tb", t->folder.dir);
    return events_open(&t->events, path, (int64_t)t->state.step, e);
}

static int reset_state(struct trainer *t, struct error *e)
{
    struct run *r = &t->run;
    t->state = (struct train_state){.seed = (uint64_t)t->c->train_seed};
    return state_reset(&r->planned.graph, &r->device, &r->tape, run_staging(r), PLAN_STAGING, e);
}

/* Finds the outputs that a step reads, and sets the initial loss scale. */
static void find_outputs(struct trainer *t)
{
    struct train_state *s = &t->state;
    t->steps = (struct stepper){.run = &t->run, .data = &t->data, .end = t->steps.end};
    tickets_begin(&t->steps.tickets, &t->run);
    if (!t->steps.tickets.scaled) s->scale = 0, s->good_steps = s->in_a_row = 0;
    else if (!(s->scale > 0)) s->scale = config_first_scale(t->c); /* a new run, or a checkpoint without one */
    t->eval_loss = graph_find_output(&t->run.planned.graph, PROGRAM_EVAL, "loss");
    trainer_open_answers(t);
}

/* Starts the feeds, the training feed last: its loader prefetches for the first step. */
static int start_data(struct trainer *t, struct error *e)
{
    t->state.data = t->data.fingerprint;
    t->state.model = t->run.weights.fingerprint;
    int rc = t->validation.ops ? feed_start(&t->validation, &t->run, 0, 0, e) : PL_OK;
    if (!rc) rc = feed_start(&t->data, &t->run, t->state.position, t->state.broken, e);
    t->seen = feed_seen(&t->data);
    t->broken = t->state.broken;
    return rc;
}

/* --- with other ranks ----------------------------------------------------------------------- */

static uint64_t hash_config(const struct config *c)
{
    struct text text = {0};
    config_write(c, &text);
    const uint64_t h = hash_bytes(text.at, text.n, 0);
    text_free(&text);
    return h;
}

/* Prints how many ranks compute together, and the parts of products; "": none do. */
static const char *mesh_words(const struct trainer *t, char *out, size_t room)
{
    const struct settings *s = &t->run.planned.plan.settings;
    out[0] = 0;
    if (s->tensor > 1)
        snprintf(out, room, ", products in %d parts on %d ranks each", settings_tensor_parts(s), s->tensor);
    return out;
}

/* Checks, before memory is taken, that all ranks are to run the same. */
static int agree_to_start(struct trainer *t, int rc, struct error *e)
{
    char words[128];
    struct ranks *r = t->o->ranks;
    rc = agree_on(r, rc, e);
    if (rc || !r) return rc;
    const struct agree_same same[] =
        {{"the configuration", hash_config(t->c)},
         {"the number of ranks of its host", (uint64_t)t->run.planned.profile.per_host},
         {"the plan", plan_digest(&t->run.planned.plan, &t->run.planned.graph)},
         {"the data: its number of samples", t->data.samples},
         {"the data", t->data.fingerprint},
         {"the list of prompts of train.eval_samples, without those whose images cannot be read,", trainer_prompts(t)}};
    rc = agree_same(r, same, COUNT(same), e);
    if (!rc)
        log_note("%d ranks, %d on this host, %d shares of a step's batch%s%s", r->n, r->local, t->run.planned.shares,
                 mesh_words(t, words, sizeof words),
                 t->run.planned.plan.settings.group == GROUP_HOST ? "; a copy of what is divided on each host" : "");
    struct text keys = {0};
    if (!rc && planned_print_order(&t->run.planned, &keys))
        log_note("the order of sums depends on %s, which the planner chose: set them to compare bits with other ranks "
                 "or another parallel.shard", keys.at);
    text_free(&keys);
    return rc;
}

/* Shares what rank 0 read in the checkpoint besides weights and optimizer state. */
static void share_state(struct trainer *t)
{
    struct ranks *ranks = t->o->ranks;
    if (!ranks || !t->resumes) return;
    ranks->where = "loading the checkpoint";
    agree_broadcast(ranks, &t->state, sizeof t->state);
    agree_broadcast(ranks, &t->saved, sizeof t->saved);
    ranks->where = NULL;
}

/* Decides whether the run continues from a checkpoint. Rank 0 looks for one: it may be the only
 * rank that sees the folder's newest state. */
static void agree_to_resume(struct trainer *t)
{
    struct ranks *ranks = t->o->ranks;
    t->resumes = t->o->resume;
    if (!t->o->resume_auto) return;
    if (trainer_leads(t)) {
        t->resumes = folder_resumes(t->c->train_out);
        if (!t->resumes) log_note("resume auto: %s has no checkpoint; the run begins", t->c->train_out);
    }
    if (ranks) agree_broadcast(ranks, &t->resumes, sizeof t->resumes);
}

/* Makes the files of the run, on rank 0 at the end of starting. */
static int begin_files(struct trainer *t, struct error *e)
{
    struct text note = {0};
    trainer_find_best(t);
    int rc = trainer_require_space(t, e);
    if (!rc && !t->resumes && t->data.ops && planned_print_batch(&t->run.planned, &note)) log_note("%s", note.at);
    text_free(&note);
    if (!rc && t->run.planned.adapted) log_note("%s", t->run.planned.adapted);
    if (!rc && t->run.planned.adapted && !t->c->model_path)
        log_warn("the frozen weights are fresh ones (no model.path), and train.out will hold only the adapter; to use "
                 "it later, give the model a folder");
    /* Everything is checked by now: a resume that is refused changes nothing. The evaluation before
     * the first step is repeated. */
    if (!rc) rc = folder_metrics_cut(&t->folder, t->state.step ? (int64_t)t->state.step : -1, e);
    if (!rc) rc = write_run_files(t, e);
    return rc ? rc : open_events(t, e);
}

/* Measures, before memory is taken, how long a step takes if the run will be long, which is then
 * said. A run that is surely short is not worth the measurement. */
static void expect_time(struct trainer *t)
{
    enum { SLOWEST = 30 }; /* times slower than predicted */
    const struct config *c = t->c;
    const double steps = c->train_steps
                             ? (double)c->train_steps
                             : ceil((double)t->data.samples * c->train_epochs / t->run.planned.effective_batch);
    if (t->o->time_scale && t->data.ops && progress_says(SLOWEST * t->run.planned.plan.seconds * steps))
        t->scale = t->o->time_scale(&t->run.planned);
}

/* --- starting ------------------------------------------------------------------------------- */

int trainer_begin(struct trainer *t, const struct train_options *o, struct error *e)
{
    struct ranks *ranks = o->ranks;
    const bool leads = trainer_leads(t);
    bool plan_again = false;
    int64_t group = 0;
    if (ranks) ranks->patient = true; /* loading takes as long as it takes */
    TRY(agree_free(ranks, offload_folder(t->c->train_out), e));
    t->resolved = *t->c;
    t->c = &t->resolved;
    int rc = config_check(t->c, (o->define ? 0 : CONFIG_NEEDS_MODEL) | CONFIG_NEEDS_DATA | CONFIG_NEEDS_TRAIN, e);
    if (!rc) agree_to_resume(t);
    if (!rc && t->resumes) rc = compare_config(&t->resolved, t->c->train_out, o->ranks, &plan_again, &group, e);
    if (!rc) rc = make_plan(t, o, plan_again, e);
    if (!rc) rc = check_group(t, group, e);
    if (!rc) rc = open_data(t, e);
    if (!rc) rc = text_files_open(&t->text, t->c, e);
    if (!rc) rc = trainer_read_prompts(t, e);
    /* a resumed run keeps them */
    if (!rc && t->run.planned.shares > 1) t->resolved.parallel_shares = t->run.planned.shares;
    if (!rc && settings_tensor_parts(&t->run.planned.plan.settings) > 1)
        t->resolved.parallel_tensor_shares = settings_tensor_parts(&t->run.planned.plan.settings);
    if (!rc) t->resolved.parallel_tensor = t->run.planned.tensor;
    rc = agree_to_start(t, rc, e);
    if (!rc && leads)
        rc = folder_open(&t->folder, t->c->train_out,
                         t->resumes  ? FOLDER_RESUME
                         : o->resume ? FOLDER_AGAIN
                                     : FOLDER_NEW,
                         e);
    if ((rc = agree_on(ranks, rc, e))) return rc;
    t->has_folder = leads;
    expect_time(t);
    if (leads) rc = prepare_data(t, e); /* the others read what rank 0 has stored */
    rc = agree_on(ranks, rc, e);
    if (!rc && !leads) rc = prepare_data(t, e);
    /* Weights are always loaded first: a checkpoint holds neither constants nor frozen weights. */
    if (!rc) rc = run_start(&t->run, t->c->train_out, true, e);
    rc = agree_on(ranks, rc, e);
    if (!rc) rc = t->resumes ? trainer_load(t, e) : reset_state(t, e);
    rc = agree_on(ranks, rc, e);
    if (!rc) share_state(t);
    if (!rc) rc = start_data(t, e);
    if (!rc) measure_run(t);
    if (!rc && leads) rc = begin_files(t, e);
    if (!rc) find_outputs(t);
    return agree_on(ranks, rc, e);
}

/* --- a trainer, for the loop and for a program with its own batches ------------------------- */

struct trainer *trainer_open(const struct config *c, const struct train_options *o)
{
    struct trainer *t = mem_alloc(sizeof *t);
    t->c = c;
    t->o = o;
    t->eval = NAN;
    t->saved = -1;
    return t;
}

int trainer_plan(struct trainer *t, struct error *e)
{
    if (t->has_run) run_close(&t->run);
    t->has_run = false;
    t->whole = true;
    return make_plan(t, t->o, false, e);
}

int trainer_start(struct trainer *t, struct error *e)
{
    TRY(run_start(&t->run, NULL, true, e));
    TRY(reset_state(t, e));
    measure_run(t);
    TRY(run_fill_ragged(&t->run, e));
    find_outputs(t);
    return PL_OK;
}

struct run *trainer_run(struct trainer *t) { return &t->run; }

void trainer_close(struct trainer *t)
{
    if (!t) return;
    feed_close(&t->data);
    feed_close(&t->validation);
    text_files_close(&t->text);
    if (t->has_scores) mask_scores_close(&t->scores);
    if (t->has_retrieval) retrieval_close(&t->retrieval);
    trainer_close_answers(t);
    mem_free(t->parts);
    if (t->has_run) run_close(&t->run);
    events_close(&t->events);
    if (t->has_folder) folder_close(&t->folder);
    if (t->has_pool) mem_pool_destroy();
    mem_free(t);
}
