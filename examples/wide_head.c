/*
 * wide_head.c: a model with many classes. The logits are by far its largest tensor; PL_ROWS lets
 * the planner run the head over chunks of its rows, so that they exist for a chunk at a time.
 *
 *     make examples && build/examples/wide_head
 *
 * A sample is a word of 8 letters, and its class is one of 8192 groups of words. The program plans
 * a step without a budget and with the smallest one, and trains a few steps with each: the losses
 * agree.
 */
#include <math.h>
#include <plimsoll.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 128, LETTERS = 8, ALPHABET = 26, WIDTH = 32, CLASSES = 8192, STEPS = 5 };

static void classifier(struct pl_builder *b, int64_t batch, void *user)
{
    (void)user;
    pl_tensor words = pl_input(b, "words", PL_I32, PL_SHAPE(batch, LETTERS));
    pl_tensor groups = pl_input(b, "groups", PL_I32, PL_SHAPE(batch));
    pl_tensor letters = pl_param(b, "letters.weight", PL_SHAPE(ALPHABET, WIDTH), PL_NORMAL, 0.5f);
    pl_tensor w = pl_param(b, "mix.weight", PL_SHAPE(WIDTH, LETTERS * WIDTH), PL_NORMAL, 0.1f);
    pl_tensor x = pl_reshape(b, pl_embedding(b, words, letters), PL_SHAPE(batch, LETTERS * WIDTH));
    x = pl_activate(b, pl_linear(b, x, w, 0), PL_GELU);
    w = pl_param(b, "head.weight", PL_SHAPE(CLASSES, WIDTH), PL_NORMAL, 0.1f);
    pl_scope_begin(b, "head", PL_ROWS); /* each word is a row of its own, and the loss is a sum over them */
    pl_tensor logits = pl_linear(b, x, w, 0);
    pl_tensor loss = pl_cross_entropy(b, logits, groups);
    pl_scope_end(b);
    pl_output(b, "loss", loss);
}

static void make_words(int32_t words[BATCH][LETTERS], int32_t groups[BATCH])
{
    for (int i = 0; i < BATCH; i++) {
        unsigned hash = 7;
        for (int k = 0; k < LETTERS; k++) words[i][k] = rand() % ALPHABET, hash = 31 * hash + (unsigned)words[i][k];
        groups[i] = (int32_t)(hash % CLASSES);
    }
}

/* Ends the program if a call failed. */
static void check(struct pl_session *s, int code)
{
    if (!code) return;
    fprintf(stderr, "wide_head: %s\n", pl_message(s));
    exit(code);
}

/* The loss of the last step; `budget` NULL: none. *smallest: the smallest budget. */
static double train(const char *budget, uint64_t *smallest)
{
    static int32_t words[BATCH][LETTERS], groups[BATCH];
    struct pl_plan_info plan = PL_INIT(pl_plan_info);
    double loss = 0;
    struct pl_session *s = pl_open();
    check(s, pl_define(s, classifier, NULL, NULL));
    check(s, pl_set(s, "train.effective_batch", "128"));
    check(s, pl_set(s, "memory.micro_batch", "128"));
    check(s, pl_set(s, "memory.precision", "f32"));
    check(s, pl_set(s, "memory.offload", "none"));
    check(s, pl_set(s, "device.threads", "1"));
    if (budget) check(s, pl_set_memory(s, budget));
    check(s, pl_plan(s, &plan));
    *smallest = plan.smallest_budget_bytes;
    printf("%s: %.1f MiB, head in %s chunks\n", budget ? "smallest budget" : "no budget",
           (double)plan.arena_bytes / (1 << 20), pl_technique_value(&plan, "head_chunks"));
    check(s, pl_start(s));
    srand(1);
    for (int step = 1; step <= STEPS; step++) {
        make_words(words, groups);
        check(s, pl_write_input(s, "words", words, sizeof words));
        check(s, pl_write_input(s, "groups", groups, sizeof groups));
        check(s, pl_step(s, &loss, NULL));
    }
    pl_close(s);
    return loss;
}

int main(void)
{
    uint64_t smallest = 0;
    char budget[32];
    const double whole = train(NULL, &smallest);
    snprintf(budget, sizeof budget, "%llu", (unsigned long long)smallest);
    const double chunked = train(budget, &smallest);
    printf("loss after %d steps: %.6f and %.6f\n", STEPS, whole, chunked);
    return fabs(whole - chunked) < 1e-5 * whole ? 0 : 1;
}
