/*
 * prompts.c: the rules of the simulated prompts: images as bytes, rounds of prompt points drawn
 * from the wrong pixels of a mask, and rows repeated for the prompts of an image.
 */
#include "graph/infer.h"
#include "graph/ops.h"
#include "graph/sizes.h"

static id emit_first(struct graph *g, enum op op, const union attr *attr, const id *in, int nin)
{
    id n = graph_emit(g, op, attr, in, nin);
    return n ? node_at(g, n)->out[0] : 0;
}

/* --- images --------------------------------------------------------------------------- */

id op_image(struct graph *g, id x, id valid, const float mean[3], const float std[3])
{
    union attr a = {.image = {{mean[0], mean[1], mean[2]}, {std[0], std[1], std[2]}, DT_F32}};
    return emit_first(g, OP_IMAGE, &a, (id[]){x, valid}, 2);
}

void infer_image(struct infer *f)
{
    const struct tensor *x = f->in[0], *valid = f->in[1];
    REQUIRE(x->dtype == DT_U8 && x->rank == 4 && x->dim[3] == 3, "x must be u8 [B,H,W,3]");
    REQUIRE(valid->dtype == DT_I32 && valid->rank == 2 && valid->dim[0] == x->dim[0] && valid->dim[1] == 2,
            "the valid area must be i32 [%lld,2]", (long long)x->dim[0]);
    set(&f->out[0], f->attr->image.dtype, 4, x->dim);
}

/* --- rounds --------------------------------------------------------------------------- */

id op_mask_pick(struct graph *g, id logits, id scores, id into)
{
    return emit_first(g, OP_MASK_PICK, NULL, (id[]){logits, scores, into}, into ? 3 : 2);
}

void infer_mask_pick(struct infer *f)
{
    const struct tensor *x = f->in[0], *scores = f->in[1], *into = f->in[2];
    REQUIRE(x->rank == 4 && dtype_is_float(x->dtype), "logits must be [N,K,h,w]");
    REQUIRE(scores->rank == 2 && scores->dim[0] == x->dim[0] && scores->dim[1] == x->dim[1],
            "scores must be [%lld,%lld]", (long long)x->dim[0], (long long)x->dim[1]);
    set(&f->out[0], x->dtype, 3, (int64_t[]){x->dim[0], x->dim[2], x->dim[3]});
    REQUIRE(!into || (same(into, &f->out[0]) && into->dtype == x->dtype),
            "the destination differs from the masks in shape or dtype");
}

struct prompt_state op_prompt_next(struct graph *g, struct prompt_state s, id logits, id bits, id valid, id keys,
                                   int rounds, int first)
{
    union attr a = {.prompt_next = {rounds, first}};
    const id in[8] = {s.positions, s.kinds, s.round, logits, bits, valid, keys, graph_step(g)};
    const struct outputs y = op_outputs(g, OP_PROMPT_NEXT, &a, in, 8);
    return (struct prompt_state){y.at[0], y.at[1], y.at[2]};
}

void infer_prompt_next(struct infer *f)
{
    const struct tensor *positions = f->in[0], *kinds = f->in[1], *round = f->in[2], *logits = f->in[3],
                        *bits = f->in[4], *valid = f->in[5], *keys = f->in[6];
    REQUIRE(positions->dtype == DT_F32 && positions->rank == 3 && positions->dim[2] == 2,
            "positions must be f32 [N,P,2]");
    const int64_t N = positions->dim[0], P = positions->dim[1];
    REQUIRE(kinds->dtype == DT_I32 && kinds->rank == 2 && kinds->dim[0] == N && kinds->dim[1] == P,
            "kinds must be i32 [%lld,%lld]", (long long)N, (long long)P);
    REQUIRE(round->dtype == DT_I32 && is_vector(round, 1), "the round must be i32 [1]");
    REQUIRE(logits->rank == 3 && logits->dim[0] == N && dtype_is_float(logits->dtype), "logits must be [%lld,h,w]",
            (long long)N);
    REQUIRE(bits->dtype == DT_U8 && bits->rank == 3 && bits->dim[0] == N && bits->dim[1] == logits->dim[1] &&
                bits->dim[2] == mask_row_bytes(logits->dim[2]),
            "the target must be the bits of [%lld,%lld,%lld]", (long long)N, (long long)logits->dim[1],
            (long long)logits->dim[2]);
    REQUIRE(valid->dtype == DT_I32 && valid->rank == 2 && valid->dim[0] == N && valid->dim[1] == 2,
            "the valid area must be i32 [%lld,2]", (long long)N);
    REQUIRE(keys->dtype == DT_I32 && is_vector(keys, N), "keys must be i32 [%lld]", (long long)N);
    REQUIRE(f->attr->prompt_next.rounds > 0 && f->attr->prompt_next.first + f->attr->prompt_next.rounds <= P,
            "%d rounds from slot %d on do not fit into %lld slots", f->attr->prompt_next.rounds,
            f->attr->prompt_next.first, (long long)P);
    for (int i = 0; i < 3; i++) like(&f->out[i], f->in[i]);
}

/* --- rows ------------------------------------------------------------------------------- */

id op_repeat(struct graph *g, id x, id like)
{
    if (x && like && tensor_at(g, x)->rank && tensor_at(g, like)->rank &&
        tensor_at(g, x)->dim[0] == tensor_at(g, like)->dim[0])
        return x;
    return emit_first(g, OP_REPEAT, NULL, (id[]){x, like}, 2);
}

void infer_repeat(struct infer *f)
{
    const struct tensor *x = f->in[0], *target = f->in[1];
    REQUIRE(x->rank > 0 && target->rank > 0 && x->rank < MAX_RANK,
            "x and like need at least one dimension, and x fewer than the maximum");
    REQUIRE(target->dim[0] % x->dim[0] == 0, "%lld rows are not a multiple of %lld", (long long)target->dim[0],
            (long long)x->dim[0]);
    like(&f->out[0], x);
    f->out[0].dim[0] = target->dim[0];
}

/* The gradient of each row is the sum over its repetitions: dy seen as [R,n,...], summed over n. */
void vjp_repeat(struct vjp *v)
{
    const struct tensor x = *tensor_at(v->g, v->in[0]), y = *tensor_at(v->g, v->out[0]);
    int64_t wide[MAX_RANK] = {x.dim[0], y.dim[0] / x.dim[0]};
    union attr a = {.sum_to = {.dtype = y.dtype, .rank = (uint8_t)(x.rank + 1), .dim = {x.dim[0], 1}}};
    for (int i = 1; i < x.rank; i++) wide[i + 1] = a.sum_to.dim[i + 1] = x.dim[i];
    id dy = op_reshape(v->g, v->dout[0], x.rank + 1, wide);
    v->din[0] = op_reshape(v->g, emit_first(v->g, OP_SUM_TO, &a, &dy, 1), x.rank, x.dim);
}
