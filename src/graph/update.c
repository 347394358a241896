/*
 * update.c: shape rules and costs of the optimizer updates: ADAMW, ADAMW_8BIT, SGD, ADAFACTOR.
 *
 * All of them update a weight p in place from a gradient g of any float dtype, and write a
 * lower-precision copy w. p is f32, or bf16 if there are no f32 master weights.
 */
#include "graph/infer.h"
#include "graph/rules.h"
#include "graph/sizes.h"

/* The checks that all updates share; each rule checks its own optimizer state. */
static void infer_update(struct infer *f, const struct tensor *step, const struct tensor *clip, const struct tensor *w)
{
    const struct tensor *p = f->in[0], *g = f->in[1];
    REQUIRE(p->dtype == DT_F32 || p->dtype == DT_BF16, "p must be f32 or bf16");
    REQUIRE(same(p, g) && dtype_is_float(g->dtype), "p and g differ in shape, or g is not floating-point");
    REQUIRE(is_step(step), "the step block is missing");
    REQUIRE(!clip || is_vector(clip, 2), "clip must have two elements");
    REQUIRE(!w || same(p, w), "w differs from p in shape");
    like(&f->out[0], p);
}

void infer_adamw(struct infer *f)
{
    const struct tensor *m = f->in[2], *v = f->in[3];
    infer_update(f, f->in[4], f->in[5], f->in[6]);
    REQUIRE(same(f->in[0], m) && same(m, v), "p, m and v differ in shape");
    REQUIRE(m->dtype == v->dtype && (m->dtype == DT_F32 || m->dtype == DT_BF16),
            "m and v must both be f32, or both bf16");
    like(&f->out[1], m);
    like(&f->out[2], v);
    if (f->in[6]) like(&f->out[3], f->in[6]);
}

void infer_adamw_8bit(struct infer *f)
{
    const struct tensor *absmax = f->in[4];
    infer_update(f, f->in[5], f->in[6], f->in[7]);
    for (int i = 2; i < 4; i++)
        REQUIRE(same(f->in[0], f->in[i]) && f->in[i]->dtype == DT_U8, "m and v must be u8 of p's shape");
    REQUIRE(absmax->dtype == DT_F32 && absmax->rank == 2 && absmax->dim[0] == state_blocks(tensor_elements(f->in[0])) &&
                absmax->dim[1] == 2,
            "absmax must be f32 [blocks,2]");
    for (int i = 2; i < 5; i++) like(&f->out[i - 1], f->in[i]);
    if (f->in[7]) like(&f->out[4], f->in[7]);
}

void infer_sgd(struct infer *f)
{
    const struct tensor *m = f->in[5];
    infer_update(f, f->in[2], f->in[3], f->in[4]);
    REQUIRE(!m || (same(f->in[0], m) && m->dtype == DT_F32), "m must be f32 of p's shape");
    if (f->in[4]) like(&f->out[1], f->in[4]);
    if (m) like(&f->out[2], m);
}

void infer_adafactor(struct infer *f)
{
    const struct tensor *p = f->in[0], *r = f->in[2], *c = f->in[6];
    infer_update(f, f->in[3], f->in[4], f->in[5]);
    REQUIRE(r->dtype == DT_F32 && (!c || c->dtype == DT_F32), "r and c must be f32");
    if (c) {
        const int n = p->rank;
        REQUIRE(n >= 2 && r->rank == n - 1 && c->rank == n - 1, "for p [...,R,C], r must be [...,R] and c [...,C]");
        for (int i = 0; i < n - 1; i++)
            REQUIRE(r->dim[i] == p->dim[i] && c->dim[i] == p->dim[i == n - 2 ? n - 1 : i], "r or c does not fit p");
        like(&f->out[3], c);
    } else {
        REQUIRE(same(p, r), "without c, r must have p's shape");
    }
    like(&f->out[1], r);
    if (f->in[5]) like(&f->out[2], f->in[5]);
}

/* Bytes as in cost_stream. Codes are looked up one by one, without vector instructions: at the
 * matrix rate a code costs as much as OPERATIONS flops (an estimate, which calibration
 * corrects). */
struct cost cost_adamw_8bit(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    enum { OPERATIONS = 160 };
    struct cost c = cost_stream(in, out, attr);
    c.flops = OPERATIONS * (double)tensor_elements(in[0]);
    return c;
}
