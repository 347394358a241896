/*
 * foreign_run.c: facts of other programs about the run: the batch, its length, the schedule, evaluation, checkpoints.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/foreign_rows.h"

enum { MOST = 1 << 20, KEEP_ALL = 1000000 };

/* --- the batch ------------------------------------------------------------------------------------------- */

struct batch {
    const struct foreign_entry *micro, *accumulation, *total, *ranks, *nodes;
    int64_t m, a, t, r;
    int64_t here; /* ranks of this run */
};

/* What the numbers say about each other; 0 is not given. False: they contradict each other. */
static bool complete_batch(struct batch *b)
{
    if (!b->t) {
        if (!b->a) b->a = 1;
        return b->m > 0;
    }
    if (b->m && b->a) return b->m * b->a * b->r == b->t;
    const int64_t part = (b->m ? b->m : b->a ? b->a : 1) * b->r;
    if (b->t % part) return false;
    if (b->m) b->a = b->t / part;
    else b->m = b->t / part, b->a = b->a ? b->a : 1;
    return true;
}

/* With how many ranks the numbers would agree; 0: with none. */
static int64_t agreeing_ranks(const struct batch *b)
{
    const int64_t one = (b->m ? b->m : 1) * (b->a ? b->a : 1);
    return b->t % one ? 0 : b->t / one;
}

static void refuse_batch(struct foreign_work *w, const struct batch *b)
{
    struct text product = {0};
    const int64_t ranks = agreeing_ranks(b);
    if (b->m) text_printf(&product, "%s %lld x ", b->micro->key, (long long)b->m);
    if (b->a) text_printf(&product, "%s %lld x ", b->accumulation->key, (long long)b->a);
    text_printf(&product, "%lld rank%s", (long long)b->r, b->r == 1 ? "" : "s");
    if (ranks > 1)
        foreign_refuse(w, b->total, "it is %lld, but %s is %lld; it is right for %lld ranks: run it on them (--ranks %lld), add a file with the launcher's line, such as `torchrun --nproc_per_node=%lld train.py`, to --config-from, or remove %s",
                       (long long)b->t, product.at, (long long)((b->m ? b->m : 1) * (b->a ? b->a : 1) * b->r), (long long)ranks, (long long)ranks, (long long)ranks, b->accumulation && b->micro ? b->accumulation->key : b->total->key);
    else
        foreign_refuse(w, b->total, "it is %lld, but %s is %lld; change one of them", (long long)b->t, product.at, (long long)((b->m ? b->m : 1) * (b->a ? b->a : 1) * b->r));
    text_free(&product);
}

static void put_batch(struct foreign_work *w, const struct batch *b)
{
    struct text from = {0};
    struct bump *memory = &w->f->memory;
    const struct foreign_entry *entry = b->total ? b->total : b->micro;
    if (b->total) text_printf(&from, "%s", b->total->key);
    else {
        text_printf(&from, "%s %lld x %s %lld", b->micro->key, (long long)b->m, b->accumulation ? b->accumulation->key : "accumulation", (long long)b->a);
        if (b->r > 1) text_printf(&from, " x %lld ranks", (long long)b->r);
        if (b->r != b->here && b->here > 1) text_printf(&from, ", on %lld", (long long)b->here);
        else if (b->r > 1 && b->here == 1) text_printf(&from, ", on one rank");
    }
    foreign_put(w, "train.effective_batch", value_int(memory, b->m * b->a * b->r), entry, bump_string(memory, from.at));
    text_free(&from);
}

static void run_batch(struct foreign_work *w)
{
    struct batch b = {.micro = foreign_pick(w, HOW_MICRO), .accumulation = foreign_pick(w, HOW_ACCUMULATION), .total = foreign_pick(w, HOW_BATCH),
                      .ranks = foreign_pick(w, HOW_RANKS), .nodes = foreign_pick(w, HOW_NODES)};
    const struct foreign_entry *find = foreign_given(w, HOW_FIND_BATCH);
    if (b.total && b.micro && !b.micro->given) b.micro = NULL;
    if (b.total && b.accumulation && !b.accumulation->given) b.accumulation = NULL;
    b.m = b.micro ? foreign_whole(w, b.micro, 1, MOST) : 0;
    b.a = b.accumulation ? foreign_whole(w, b.accumulation, 1, MOST) : 0;
    b.t = b.total ? foreign_whole(w, b.total, 1, MOST) : 0;
    b.here = w->f->ranks > 0 ? w->f->ranks : 1;
    b.r = b.ranks || b.nodes ? foreign_whole(w, b.ranks, 1, 4096) * foreign_whole(w, b.nodes, 1, 4096) : b.here;
    if (foreign_failed(w)) return;
    if (!b.micro && !b.total) {
        foreign_leave(w, b.accumulation, "no micro-batch is given, so train.effective_batch stays as it is");
        foreign_leave(w, b.ranks, "no micro-batch is given, so train.effective_batch stays as it is");
        return;
    }
    if (!complete_batch(&b)) {
        refuse_batch(w, &b);
        return;
    }
    put_batch(w, &b);
    if (foreign_true(w, find)) foreign_put(w, "memory.micro_batch", value_string(&w->f->memory, "auto"), find, NULL);
    else if (b.micro && b.micro->given) foreign_put(w, "memory.micro_batch", value_int(&w->f->memory, b.m), b.micro, NULL);
}

/* --- its length and schedule --------------------------------------------------------------------------------- */

/* max_steps above 0 comes before epochs. Returns the steps, 0 if they are not known. */
static int64_t run_length(struct foreign_work *w)
{
    const struct foreign_entry *steps = foreign_pick(w, HOW_STEPS), *epochs = foreign_pick(w, HOW_EPOCHS);
    if (steps && foreign_number(w, steps) > 0) {
        foreign_put(w, "train.steps", value_copy(&w->f->memory, steps->value), steps, NULL);
        foreign_leave(w, epochs, bump_format(&w->f->memory, "%s is given, and comes first", steps->key));
        return foreign_whole(w, steps, 1, INT32_MAX);
    }
    const double n = foreign_number(w, epochs);
    if (epochs && n != floor(n)) foreign_refuse(w, epochs, "it is %g, and a run has whole epochs: set train.steps, such as --set train.steps=1000", n);
    if (epochs) foreign_put(w, "train.epochs", value_number(&w->f->memory, n), epochs, NULL);
    return 0;
}

static const char *schedule_word(struct foreign_work *w, const struct foreign_entry *entry)
{
    static const char *const words[][2] = {{"linear", "linear"}, {"cosine", "cosine"}, {"constant", "constant"}, {"constant_with_warmup", "constant"}, {"cosine_with_min_lr", "cosine"},
                                           {"WarmupLR", "constant"}, {"WarmupDecayLR", "linear"}, {"WarmupCosineLR", "cosine"}};
    const char *word = foreign_text(entry);
    if (!strncmp(word, "SchedulerType.", 14)) word += 14;
    for (size_t i = 0; i < COUNT(words); i++)
        if (!strcasecmp(words[i][0], word)) return words[i][1];
    foreign_refuse(w, entry, "found %.100s, and Plimsoll has only linear, cosine (also with min_lr), constant and constant_with_warmup", word);
    return "constant";
}

/* cosine_with_min_lr: its least rate, as a fraction. Other options change a curve in ways that do not exist here. */
static void run_floor(struct foreign_work *w, const struct foreign_entry *schedule)
{
    const struct foreign_entry *options = foreign_given(w, HOW_SCHEDULE_OPTIONS);
    if (!options || foreign_off(options->value)) return;
    const struct value *rate = value_get(options->value, "min_lr_rate"), *least = value_get(options->value, "min_lr");
    if (options->value->kind != VALUE_MAP || options->value->count != 1 || !(rate || least) || strcmp(foreign_text(schedule), "cosine_with_min_lr"))
        foreign_refuse(w, options, "only min_lr_rate or min_lr of cosine_with_min_lr is known");
    else if (rate && rate->kind == VALUE_NUMBER) foreign_put(w, "train.min_lr_rate", value_copy(&w->f->memory, rate), options, NULL);
    else if (least && least->kind == VALUE_NUMBER && w->c->train_learning_rate > 0) foreign_put(w, "train.min_lr_rate", value_number(&w->f->memory, least->number / w->c->train_learning_rate), options, NULL);
    else foreign_refuse(w, options, "min_lr_rate or min_lr is no number");
}

static void run_warmup(struct foreign_work *w)
{
    const struct foreign_entry *steps = foreign_pick(w, HOW_WARMUP), *ratio = foreign_pick(w, HOW_WARMUP_RATIO);
    const double n = foreign_number(w, steps);
    if (n >= 1) {
        foreign_put(w, "train.warmup_steps", value_copy(&w->f->memory, steps->value), steps, NULL);
        if (ratio && foreign_number(w, ratio) > 0) foreign_leave(w, ratio, bump_format(&w->f->memory, "%s is given, and comes first", steps->key));
    } else if (n > 0) foreign_put(w, "train.warmup_ratio", value_copy(&w->f->memory, steps->value), steps, NULL);
    else if (ratio && foreign_number(w, ratio) != 0) foreign_put(w, "train.warmup_ratio", value_copy(&w->f->memory, ratio->value), ratio, NULL);
}

static void run_schedule(struct foreign_work *w)
{
    const struct foreign_entry *plain = foreign_pick(w, HOW_SCHEDULE), *ds = foreign_given(w, HOW_DS_SCHEDULE), *schedule = ds ? ds : plain;
    if (ds) foreign_leave(w, plain, bump_format(&w->f->memory, "the scheduler of %s comes first", ds->file));
    if (schedule) foreign_put(w, "train.schedule", value_string(&w->f->memory, schedule_word(w, schedule)), schedule, NULL);
    if (plain) run_floor(w, plain);
    if (schedule == plain && !strcmp(foreign_text(plain), "constant")) { /* without warmup, unlike constant_with_warmup */
        foreign_leave(w, foreign_given(w, HOW_WARMUP), "the schedule constant has no warmup; constant_with_warmup has");
        foreign_leave(w, foreign_given(w, HOW_WARMUP_RATIO), "the schedule constant has no warmup; constant_with_warmup has");
        return;
    }
    run_warmup(w);
}

/* --- the optimizer's numbers ------------------------------------------------------------------------------------ */

/* transformers' Trainer leaves biases and norms without decay; other programs decay what they are given. */
static void run_decay(struct foreign_work *w)
{
    const struct foreign_entry *decay = foreign_pick(w, HOW_DECAY);
    if (!decay) return;
    foreign_put(w, "train.weight_decay", value_copy(&w->f->memory, decay->value), decay, NULL);
    if (!foreign_is_hf(w) || foreign_number(w, decay) == 0) return;
    struct value *patterns = value_new(&w->f->memory, VALUE_LIST);
    value_append(&w->f->memory, patterns, value_string(&w->f->memory, "*bias*"));
    value_append(&w->f->memory, patterns, value_string(&w->f->memory, "*norm*"));
    foreign_put(w, "train.no_decay", patterns, decay, "as Trainer does: biases and norms do not decay");
}

static void run_optimizer(struct foreign_work *w)
{
    const struct foreign_entry *betas = foreign_given(w, HOW_BETAS), *type = foreign_given(w, HOW_DS_OPTIMIZER);
    const char *word = foreign_text(type);
    run_decay(w);
    if (betas && betas->value->kind == VALUE_LIST && betas->value->count == 2) {
        foreign_put(w, "train.beta1", value_copy(&w->f->memory, betas->value->items[0]), betas, NULL);
        foreign_put(w, "train.beta2", value_copy(&w->f->memory, betas->value->items[1]), betas, NULL);
    } else if (betas) foreign_refuse(w, betas, "expected a list of two numbers");
    if (!type) return;
    if (!strcasecmp(word, "adam") || !strcasecmp(word, "adamw")) foreign_put(w, "memory.optimizer", value_string(&w->f->memory, "adamw"), type, NULL);
    else if (!strcasecmp(word, "sgd")) foreign_put(w, "memory.optimizer", value_string(&w->f->memory, "sgd"), type, NULL);
    else foreign_refuse(w, type, "found %.100s, and Plimsoll has only Adam, AdamW and SGD of DeepSpeed's optimizers", word);
}

/* torch.optim.SGD has no momentum unless it is given. */
static void run_momentum(struct foreign_work *w)
{
    if (w->c->origin[KEY_memory_optimizer].source != SOURCE_FOREIGN || strcmp(w->c->memory_optimizer.value, "sgd") || config_given(w->c, KEY_train_momentum)) return;
    foreign_put(w, "train.momentum", value_int(&w->f->memory, 0), &(struct foreign_entry){.file = w->c->origin[KEY_memory_optimizer].file, .key = "momentum"}, "default of torch.optim.SGD");
}

/* --- evaluation and checkpoints ----------------------------------------------------------------------------------- */

static bool is_word(const struct foreign_entry *entry, const char *word) { return !strcmp(foreign_text(entry), word); }

/* A number of steps; below 1 a fraction of the run, if its length is known. */
static int64_t every(struct foreign_work *w, const struct foreign_entry *entry, int64_t total)
{
    const double x = foreign_number(w, entry);
    if (x > 0 && x < 1 && total) return max_i64(1, (int64_t)ceil(x * (double)total));
    if (x > 0 && x < 1) foreign_leave(w, entry, "a fraction of the run needs max_steps");
    return x > 0 && x < 1 ? 0 : foreign_whole(w, entry, 0, INT32_MAX);
}

static void run_evaluation(struct foreign_work *w, int64_t total)
{
    const struct foreign_entry *strategy = foreign_pick(w, HOW_EVAL_STRATEGY), *steps = foreign_given(w, HOW_EVAL_STEPS);
    if (!steps) steps = foreign_pick(w, HOW_LOGGING_STEPS);
    if (is_word(strategy, "epoch")) foreign_leave(w, strategy, "evaluation and checkpoints are counted in steps: train.eval_every, train.save_every; both also come at the end");
    if (is_word(strategy, "steps") && steps) {
        const int64_t n = every(w, steps, total);
        if (n) foreign_put(w, "train.eval_every", value_int(&w->f->memory, n), steps, NULL);
    } else foreign_leave(w, foreign_given(w, HOW_EVAL_STEPS), "eval_strategy is not steps");
}

static void run_checkpoints(struct foreign_work *w, int64_t total)
{
    const struct foreign_entry *strategy = foreign_pick(w, HOW_SAVE_STRATEGY), *steps = foreign_pick(w, HOW_SAVE_STEPS), *keep = foreign_pick(w, HOW_KEEP);
    if (is_word(strategy, "steps") && steps) {
        const int64_t n = every(w, steps, total);
        if (n) foreign_put(w, "train.save_every", value_int(&w->f->memory, n), steps, NULL);
    } else if (is_word(strategy, "epoch") || is_word(strategy, "best"))
        foreign_leave(w, strategy, "evaluation and checkpoints are counted in steps: train.eval_every, train.save_every; both also come at the end");
    if (!is_word(strategy, "steps")) foreign_leave(w, steps, "save_strategy is not steps");
    if (keep && keep->given) foreign_put(w, "train.keep", value_copy(&w->f->memory, keep->value), keep, NULL);
    else if (keep) foreign_put(w, "train.keep", value_int(&w->f->memory, KEEP_ALL), keep, "default of save_total_limit: all are kept");
}

/* As transformers, which refuses it too. */
static void run_best(struct foreign_work *w)
{
    const struct foreign_entry *best = foreign_given(w, HOW_BEST), *evaluation = foreign_pick(w, HOW_EVAL_STRATEGY), *save = foreign_pick(w, HOW_SAVE_STRATEGY);
    if (!foreign_true(w, best)) return;
    if (!is_word(save, "best") && strcmp(foreign_text(evaluation), foreign_text(save)))
        foreign_refuse(w, best, "it needs the same eval_strategy and save_strategy; they are %s and %s", foreign_text(evaluation), foreign_text(save));
    foreign_put(w, "train.keep_best", value_bool(&w->f->memory, true), best, NULL);
}

void foreign_run(struct foreign_work *w)
{
    run_batch(w);
    const int64_t total = run_length(w);
    run_schedule(w);
    run_optimizer(w);
    run_momentum(w);
    run_evaluation(w, total);
    run_checkpoints(w, total);
    run_best(w);
    foreign_leave(w, foreign_given(w, HOW_LOGGING_STEPS), "every step is logged in metrics.jsonl of the run's folder");
}
