/*
 * run_facts.c: facts of other programs about the run: the batch, its length, evaluation,
 * checkpoints.
 */
#include <math.h>

#include "import/import_rows.h"

enum { MOST = 1 << 20, KEEP_ALL = 1000000 };

/* --- the batch ------------------------------------------------------------------------------- */

struct batch_facts {
    const struct import_entry *micro, *accumulation, *total;
    int64_t m, a, t, r;
    int64_t here; /* ranks of this run */
};

/* Completes the numbers by each other; 0 is not given. False: they contradict each other. */
static bool complete_batch(struct batch_facts *b)
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

static void refuse_batch(struct import_work *w, const struct batch_facts *b)
{
    struct text product = {0};
    const int64_t one = (b->m ? b->m : 1) * (b->a ? b->a : 1), ranks = b->t % one ? 0 : b->t / one; /* to agree */
    if (b->m) text_printf(&product, "%s %lld x ", b->micro->key, (long long)b->m);
    if (b->a) text_printf(&product, "%s %lld x ", b->accumulation->key, (long long)b->a);
    text_printf(&product, "%lld rank%s", (long long)b->r, b->r == 1 ? "" : "s");
    if (ranks > 1)
        import_refuse(
            w, b->total,
            "it is %lld, but %s is %lld; it is right for %lld ranks: run it on them (--ranks %lld), add a file with "
            "the launcher's line, such as `torchrun --nproc_per_node=%lld train.py`, to --config-from, or remove %s",
            (long long)b->t, product.at, (long long)((b->m ? b->m : 1) * (b->a ? b->a : 1) * b->r), (long long)ranks,
            (long long)ranks, (long long)ranks, b->accumulation && b->micro ? b->accumulation->key : b->total->key);
    else
        import_refuse(w, b->total, "it is %lld, but %s is %lld; change one of them", (long long)b->t, product.at,
                      (long long)((b->m ? b->m : 1) * (b->a ? b->a : 1) * b->r));
    text_free(&product);
}

static void put_batch(struct import_work *w, const struct batch_facts *b)
{
    struct text from = {0};
    struct bump *memory = w->b;
    const struct import_entry *entry = b->total ? b->total : b->micro;
    if (b->total) text_printf(&from, "%s", b->total->key);
    else {
        text_printf(&from, "%s %lld x %s %lld", b->micro->key, (long long)b->m,
                    b->accumulation ? b->accumulation->key : "accumulation", (long long)b->a);
        if (b->r > 1) text_printf(&from, " x %lld ranks", (long long)b->r);
        if (b->r != b->here && b->here > 1) text_printf(&from, ", on %lld", (long long)b->here);
        else if (b->r > 1 && b->here == 1) text_printf(&from, ", on one rank");
    }
    import_put(w, "train.effective_batch", value_int(memory, b->m * b->a * b->r), entry, bump_string(memory, from.at));
    text_free(&from);
}

static void run_batch(struct import_work *w)
{
    struct batch_facts b = {.micro = import_pick(w, HOW_MICRO), .accumulation = import_pick(w, HOW_ACCUMULATION),
                      .total = import_pick(w, HOW_BATCH), .r = import_ranks(w)};
    const struct import_entry *find = import_given(w, HOW_FIND_BATCH);
    if (b.total && b.micro && !b.micro->given) b.micro = NULL;
    if (b.total && b.accumulation && !b.accumulation->given) b.accumulation = NULL;
    b.m = b.micro ? import_whole(w, b.micro, 1, MOST) : 0;
    b.a = b.accumulation ? import_whole(w, b.accumulation, 1, MOST) : 0;
    b.t = b.total ? import_whole(w, b.total, 1, MOST) : 0;
    b.here = max_i64(1, w->f->ranks);
    if (import_failed(w)) return;
    if (!b.accumulation && !b.total && b.m && import_has(w, BIT(swift)))
        b.a = max_i64(1, (16 + b.m * b.r - 1) / (b.m * b.r)); /* its default: a batch of 16 */
    if (!b.micro && !b.total) {
        import_leave(w, b.accumulation, "no micro-batch is given, so train.effective_batch stays as it is");
        import_leave(w, import_pick(w, HOW_RANKS), "no micro-batch is given, so train.effective_batch stays as it is");
        return;
    }
    if (!complete_batch(&b)) {
        refuse_batch(w, &b);
        return;
    }
    put_batch(w, &b);
    if (import_true(w, find)) import_put(w, "memory.micro_batch", value_string(w->b, "auto"), find, NULL);
    else if (b.micro && b.micro->given) import_put(w, "memory.micro_batch", value_int(w->b, b.m), b.micro, NULL);
}

/* --- its length ------------------------------------------------------------------------------ */

/* Puts max_steps, which comes first if it is above 0, or the epochs. Returns the steps, 0 if they
 * are not known. */
static int64_t run_length(struct import_work *w)
{
    const struct import_entry *steps = import_pick(w, HOW_STEPS), *epochs = import_pick(w, HOW_EPOCHS);
    if (steps && import_number(w, steps) > 0) {
        import_put_value(w, "train.steps", steps);
        import_leave(w, epochs, bump_format(w->b, "%s is given, and comes first", steps->key));
        return import_whole(w, steps, 1, INT32_MAX);
    }
    if (epochs) import_put(w, "train.epochs", value_number(w->b, import_number(w, epochs)), epochs, NULL);
    return 0;
}

/* --- evaluation and checkpoints -------------------------------------------------------------- */

static bool is_word(const struct import_entry *entry, const char *word) { return !strcmp(import_text(entry), word); }

/* Returns a number of steps; below 1 it is a fraction of the run, if its length is known. */
static int64_t every(struct import_work *w, const struct import_entry *entry, int64_t total)
{
    const double x = import_number(w, entry);
    if (x > 0 && x < 1 && total) return max_i64(1, (int64_t)ceil(x * (double)total));
    if (x > 0 && x < 1) import_leave(w, entry, "a fraction of the run needs max_steps");
    return x > 0 && x < 1 ? 0 : import_whole(w, entry, 0, INT32_MAX);
}

/* Reports whether a number of steps is enough to count in steps, as in Axolotl and ms-swift,
 * whatever the strategy is. */
static bool implies_steps(const struct import_entry *steps)
{
    return steps && steps->given && (steps->program == PROGRAM_axolotl || steps->program == PROGRAM_swift);
}

/* Puts every how many steps something happens, by the strategy or the number of steps. Returns
 * whether steps count. */
static bool put_every(struct import_work *w, const char *ours, const struct import_entry *strategy, bool counted,
                      const struct import_entry *steps, int64_t total)
{
    const int64_t n = counted && steps ? every(w, steps, total) : 0;
    if (n) import_put(w, ours, value_int(w->b, n), steps, NULL);
    if (is_word(strategy, "epoch") || (is_word(strategy, "best") && !counted))
        import_leave(w, strategy, "evaluation and checkpoints are counted in steps: train.eval_every, "
                     "train.save_every; both also come at the end");
    return counted;
}

static void run_evaluation(struct import_work *w, int64_t total)
{
    const struct import_entry *strategy = import_pick(w, HOW_EVAL_STRATEGY), *steps = import_given(w, HOW_EVAL_STEPS),
                              *every = steps ? steps : import_pick(w, HOW_LOGGING_STEPS);
    const bool counted = is_word(strategy, "steps") || implies_steps(steps);
    if (!put_every(w, "train.eval_every", strategy, counted, every, total))
        import_leave(w, steps, "eval_strategy is not steps");
}

static void run_checkpoints(struct import_work *w, int64_t total)
{
    const struct import_entry *strategy = import_pick(w, HOW_SAVE_STRATEGY), *steps = import_pick(w, HOW_SAVE_STEPS),
                              *keep = import_pick(w, HOW_KEEP);
    const bool counted = is_word(strategy, "steps") || implies_steps(steps);
    if (!put_every(w, "train.save_every", strategy, counted, steps, total))
        import_leave(w, steps, "save_strategy is not steps");
    const bool number = keep && keep->value->kind == VALUE_NUMBER && keep->value->number > 0;
    if (keep && (number || (keep->given && keep->value->kind != VALUE_NUMBER))) import_put_value(w, "train.keep", keep);
    else if (keep)
        import_put(w, "train.keep", value_int(w->b, KEEP_ALL), keep,
                   keep->given ? "save_total_limit: all are kept" : "default of save_total_limit: all are kept");
}

/* Puts train.keep_best, and refuses the strategies that transformers refuses with it. */
static void run_best(struct import_work *w)
{
    const struct import_entry *best = import_given(w, HOW_BEST), *evaluation = import_pick(w, HOW_EVAL_STRATEGY),
                              *save = import_pick(w, HOW_SAVE_STRATEGY);
    if (!import_true(w, best)) return;
    if (!is_word(save, "best") && !import_has(w, BIT(axolotl)) && strcmp(import_text(evaluation), import_text(save)))
        import_refuse(w, best, "it needs the same eval_strategy and save_strategy; they are %s and %s",
                      import_text(evaluation), import_text(save));
    import_put(w, "train.keep_best", value_bool(w->b, true), best, NULL);
}

void import_run(struct import_work *w)
{
    run_batch(w);
    const int64_t total = run_length(w);
    run_evaluation(w, total);
    run_checkpoints(w, total);
    run_best(w);
    import_leave(w, import_given(w, HOW_LOGGING_STEPS), "every step is logged in metrics.jsonl of the run's folder");
}
