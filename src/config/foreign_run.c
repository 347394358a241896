/*
 * foreign_run.c: facts of other programs about the run: the batch, its length, evaluation, checkpoints.
 */
#include <math.h>
#include <string.h>

#include "config/foreign_rows.h"

enum { MOST = 1 << 20, KEEP_ALL = 1000000 };

/* --- the batch ------------------------------------------------------------------------------- */

struct batch {
    const struct foreign_entry *micro, *accumulation, *total;
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
    struct batch b = {.micro = foreign_pick(w, HOW_MICRO),
                      .accumulation = foreign_pick(w, HOW_ACCUMULATION),
                      .total = foreign_pick(w, HOW_BATCH),
                      .r = foreign_ranks(w)};
    const struct foreign_entry *find = foreign_given(w, HOW_FIND_BATCH);
    if (b.total && b.micro && !b.micro->given) b.micro = NULL;
    if (b.total && b.accumulation && !b.accumulation->given) b.accumulation = NULL;
    b.m = b.micro ? foreign_whole(w, b.micro, 1, MOST) : 0;
    b.a = b.accumulation ? foreign_whole(w, b.accumulation, 1, MOST) : 0;
    b.t = b.total ? foreign_whole(w, b.total, 1, MOST) : 0;
    b.here = max_i64(1, w->f->ranks);
    if (foreign_failed(w)) return;
    if (!b.accumulation && !b.total && b.m && foreign_has(w, PROGRAM_swift))
        b.a = max_i64(1, (16 + b.m * b.r - 1) / (b.m * b.r)); /* its default: a batch of 16 */
    if (!b.micro && !b.total) {
        foreign_leave(w, b.accumulation, "no micro-batch is given, so train.effective_batch stays as it is");
        foreign_leave(w, foreign_pick(w, HOW_RANKS),
                      "no micro-batch is given, so train.effective_batch stays as it is");
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

/* --- its length ------------------------------------------------------------------------------ */

/* max_steps above 0 comes before epochs. Returns the steps, 0 if they are not known. */
static int64_t run_length(struct foreign_work *w)
{
    const struct foreign_entry *steps = foreign_pick(w, HOW_STEPS), *epochs = foreign_pick(w, HOW_EPOCHS);
    if (steps && foreign_number(w, steps) > 0) {
        foreign_put(w, "train.steps", value_copy(&w->f->memory, steps->value), steps, NULL);
        foreign_leave(w, epochs, bump_format(&w->f->memory, "%s is given, and comes first", steps->key));
        return foreign_whole(w, steps, 1, INT32_MAX);
    }
    if (epochs) foreign_put(w, "train.epochs", value_number(&w->f->memory, foreign_number(w, epochs)), epochs, NULL);
    return 0;
}

/* --- evaluation and checkpoints -------------------------------------------------------------- */

static bool is_word(const struct foreign_entry *entry, const char *word) { return !strcmp(foreign_text(entry), word); }

/* A number of steps; below 1 a fraction of the run, if its length is known. */
static int64_t every(struct foreign_work *w, const struct foreign_entry *entry, int64_t total)
{
    const double x = foreign_number(w, entry);
    if (x > 0 && x < 1 && total) return max_i64(1, (int64_t)ceil(x * (double)total));
    if (x > 0 && x < 1) foreign_leave(w, entry, "a fraction of the run needs max_steps");
    return x > 0 && x < 1 ? 0 : foreign_whole(w, entry, 0, INT32_MAX);
}

/* Axolotl and ms-swift count in steps where a number of steps is given, whatever the strategy is. */
static bool implies_steps(const struct foreign_entry *steps)
{
    return steps && steps->given && (steps->program == PROGRAM_axolotl || steps->program == PROGRAM_swift);
}

static void run_evaluation(struct foreign_work *w, int64_t total)
{
    const struct foreign_entry *strategy = foreign_pick(w, HOW_EVAL_STRATEGY), *steps = foreign_given(w, HOW_EVAL_STEPS);
    const bool counted = is_word(strategy, "steps") || implies_steps(steps);
    if (!steps) steps = foreign_pick(w, HOW_LOGGING_STEPS);
    if (is_word(strategy, "epoch")) foreign_leave(w, strategy, "evaluation and checkpoints are counted in steps: train.eval_every, train.save_every; both also come at the end");
    if (counted && steps) {
        const int64_t n = every(w, steps, total);
        if (n) foreign_put(w, "train.eval_every", value_int(&w->f->memory, n), steps, NULL);
    } else foreign_leave(w, foreign_given(w, HOW_EVAL_STEPS), "eval_strategy is not steps");
}

static void run_checkpoints(struct foreign_work *w, int64_t total)
{
    const struct foreign_entry *strategy = foreign_pick(w, HOW_SAVE_STRATEGY), *steps = foreign_pick(w, HOW_SAVE_STEPS), *keep = foreign_pick(w, HOW_KEEP);
    const bool counted = is_word(strategy, "steps") || implies_steps(steps);
    if (counted && steps) {
        const int64_t n = every(w, steps, total);
        if (n) foreign_put(w, "train.save_every", value_int(&w->f->memory, n), steps, NULL);
    } else if (is_word(strategy, "epoch") || is_word(strategy, "best"))
        foreign_leave(w, strategy, "evaluation and checkpoints are counted in steps: train.eval_every, train.save_every; both also come at the end");
    if (!counted) foreign_leave(w, steps, "save_strategy is not steps");
    const bool number = keep && keep->value->kind == VALUE_NUMBER && keep->value->number > 0;
    if (keep && (number || (keep->given && keep->value->kind != VALUE_NUMBER)))
        foreign_put(w, "train.keep", value_copy(&w->f->memory, keep->value), keep, NULL);
    else if (keep)
        foreign_put(w, "train.keep", value_int(&w->f->memory, KEEP_ALL), keep,
                    keep->given ? "save_total_limit: all are kept" : "default of save_total_limit: all are kept");
}

/* As transformers, which refuses it too. */
static void run_best(struct foreign_work *w)
{
    const struct foreign_entry *best = foreign_given(w, HOW_BEST), *evaluation = foreign_pick(w, HOW_EVAL_STRATEGY), *save = foreign_pick(w, HOW_SAVE_STRATEGY);
    if (!foreign_true(w, best)) return;
    if (!is_word(save, "best") && !foreign_has(w, PROGRAM_axolotl) &&
        strcmp(foreign_text(evaluation), foreign_text(save)))
        foreign_refuse(w, best, "it needs the same eval_strategy and save_strategy; they are %s and %s", foreign_text(evaluation), foreign_text(save));
    foreign_put(w, "train.keep_best", value_bool(&w->f->memory, true), best, NULL);
}

void foreign_run(struct foreign_work *w)
{
    run_batch(w);
    const int64_t total = run_length(w);
    run_evaluation(w, total);
    run_checkpoints(w, total);
    run_best(w);
    foreign_leave(w, foreign_given(w, HOW_LOGGING_STEPS), "every step is logged in metrics.jsonl of the run's folder");
}
