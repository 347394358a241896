/*
 * fuzz_profile.c: any bytes into profile_parse. The values of an accepted profile are within their
 * ranges, so that a predicted time is a finite number; the profile survives being written and read
 * back.
 */
#include <math.h>

#include "cost/profile.h"
#include "cost/calibration.h"
#include "graph/ops.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct calibration once, again;

static void check_curve(const struct curve *x, enum op op)
{
    for (double ideal = 1e-9; x->n && ideal < 100; ideal *= 7) {
        double t = ideal * curve_factor(x, ideal);
        CHECK(isfinite(t) && t > 0, "%s: %g", op_table[op].name, t);
    }
}

static void check_curves(const struct calibration *c)
{
    for (int i = 0; i < c->classes; i++) check_curve(&c->class[i].curve, c->class[i].op);
    for (int op = 1; op < OP_COUNT; op++)
        for (int v = 0; v < OP_VARIANTS; v++)
            for (int half = 0; half < CLASS_COUNT; half++) check_curve(&c->curve[op][v][half], op);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct profile p, q;
    struct error e = {0};
    struct text t = {0};
    if (profile_parse((const char *)data, size, &p, &once, &e)) {
        CHECK(e.code == PL_USAGE && e.text[0], "a failure without a message");
        return 0;
    }
    check_curves(&once);
    profile_write(&p, &t);
    CHECK(!profile_parse(t.at, t.n, &q, &again, &e), "%s", e.text);
    CHECK(!memcmp(&once, &again, sizeof once) && p.threads == q.threads && p.flops_f32 == q.flops_f32);
    text_free(&t);
    return 0;
}
