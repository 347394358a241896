/*
 * library.h: what the tests of the library share. They include plimsoll.h and no other header of
 * the project, and link with the shared library.
 */
#pragma once

#include <plimsoll.h>

#include "harness.h"

/* A batch: E samples of IN numbers in [-1, 1). */
enum { E = 12, IN = 6, WIDTH = 16, CLASSES = 5 };

/* The tests compare numbers, so the precision is fixed and does not depend on the processor. */
static inline struct pl_session *open_f32(void)
{
    struct pl_session *s = pl_open();
    assert_int_equal(pl_set(s, "memory.precision", "f32"), PL_OK);
    /* DEVICE=cuda: the same tests on a GPU */
    if (getenv("DEVICE")) assert_int_equal(pl_set(s, "device.kind", getenv("DEVICE")), PL_OK);
    return s;
}

struct batch {
    float x[E][IN], y[E];
    int32_t labels[E];
};

static inline void make_batch(struct batch *d)
{
    uint32_t r = 12345;
    for (int i = 0; i < E; i++) {
        for (int k = 0; k < IN; k++) {
            r = r * 1664525u + 1013904223u;
            d->x[i][k] = (float)(r >> 8) / (float)(1 << 23) - 1;
        }
        d->labels[i] = i % CLASSES;
        d->y[i] = 2 * d->x[i][0] - d->x[i][3];
    }
}

#define ok(s, call)                                                     \
    do {                                                                \
        if ((call) != PL_OK) fail_msg("%s: %s", #call, pl_message(s));  \
    } while (0)

/* The call fails with PL_USAGE, and its message contains `part`. */
#define refused(s, call, part)                                                                  \
    do {                                                                                        \
        int code_ = (call);                                                                     \
        if (code_ != PL_USAGE) fail_msg("%s gave %d: %s", #call, code_, pl_message(s));         \
        assert_int_equal(pl_code(s), PL_USAGE);                                                 \
        if (!strstr(pl_message(s), part)) fail_msg("%s: no '%s' in: %s", #call, part, pl_message(s)); \
    } while (0)

/* A run that was stopped after step `n` of 6; a GPU has finished the step in flight too. */
static inline void stopped_after(struct pl_session *s, int64_t n)
{
    char said[64];
    assert_true(pl_steps(s) == n || (getenv("DEVICE") && pl_steps(s) == n + 1));
    snprintf(said, sizeof said, "after step %d of 6; saved", (int)pl_steps(s));
    if (!strstr(pl_message(s), said)) fail_msg("no '%s' in: %s", said, pl_message(s));
}

static inline struct pl_session *open_with(pl_build build)
{
    struct pl_session *s = open_f32();
    ok(s, pl_define(s, build, NULL, NULL));
    ok(s, pl_set(s, "train.effective_batch", "12"));
    ok(s, pl_set(s, "train.learning_rate", "1e-2"));
    ok(s, pl_set(s, "device.threads", "1"));
    return s;
}

static inline void start_on(struct pl_session *s, const struct batch *d)
{
    ok(s, pl_start(s));
    ok(s, pl_write_input(s, "x", d->x, sizeof d->x));
    ok(s, pl_write_input(s, "labels", d->labels, sizeof d->labels));
}
