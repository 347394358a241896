/*
 * masks.c: the rules of the segmentation ops: windows of a map, Fourier features of points, and the
 * mask loss.
 */
#include "graph/infer.h"
#include "graph/ops.h"
#include "graph/sizes.h"

static id emit_first(struct graph *g, enum op op, const union attr *attr, const id *in, int nin)
{
    id n = graph_emit(g, op, attr, in, nin);
    return n ? node_at(g, n)->out[0] : 0;
}

/* --- windows ---------------------------------------------------------------------------- */

static int64_t windows_along(int64_t n, int64_t size) { return (n + size - 1) / size; }

id op_window(struct graph *g, id x, int size)
{
    union attr a = {.window = {size, 0, 0}};
    return emit_first(g, OP_WINDOW, &a, &x, 1);
}

id op_unwindow(struct graph *g, id x, int64_t H, int64_t W)
{
    union attr a = {.window = {x ? (int32_t)tensor_at(g, x)->dim[1] : 0, H, W}};
    return emit_first(g, OP_UNWINDOW, &a, &x, 1);
}

void infer_window(struct infer *f)
{
    const struct tensor *x = f->in[0];
    const int64_t size = f->attr->window.size;
    REQUIRE(x->rank == 4, "x must be [B,H,W,C]");
    REQUIRE(size > 0, "windows of %lld", (long long)size);
    int64_t n = x->dim[0] * windows_along(x->dim[1], size) * windows_along(x->dim[2], size);
    set(&f->out[0], x->dtype, 4, (int64_t[]){n, size, size, x->dim[3]});
}

void infer_unwindow(struct infer *f)
{
    const struct tensor *x = f->in[0];
    const int64_t size = f->attr->window.size, H = f->attr->window.H, W = f->attr->window.W;
    REQUIRE(x->rank == 4 && size > 0 && x->dim[1] == size && x->dim[2] == size, "x must be [windows,size,size,C]");
    REQUIRE(H > 0 && W > 0, "to %lld x %lld", (long long)H, (long long)W);
    int64_t each = windows_along(H, size) * windows_along(W, size);
    REQUIRE(x->dim[0] % each == 0, "%lld windows, but a map of %lld x %lld has %lld", (long long)x->dim[0],
            (long long)H, (long long)W, (long long)each);
    set(&f->out[0], x->dtype, 4, (int64_t[]){x->dim[0] / each, H, W, x->dim[3]});
}

/* Each element moves to one position; the rest is zero padding or cropped. So each op is the
 * transpose of the other. */
void vjp_window(struct vjp *v)
{
    const struct tensor *x = tensor_at(v->g, v->in[0]);
    v->din[0] = op_unwindow(v->g, v->dout[0], x->dim[1], x->dim[2]);
}

void vjp_unwindow(struct vjp *v) { v->din[0] = op_window(v->g, v->dout[0], v->attr->window.size); }

/* --- Fourier features of points ----------------------------------------------------------- */

id op_fourier(struct graph *g, id coords, id gauss)
{
    union attr a = {.fourier = {coords ? tensor_at(g, coords)->dtype : DT_F32}};
    return emit_first(g, OP_FOURIER, &a, (id[]){coords, gauss}, 2);
}

void infer_fourier(struct infer *f)
{
    const struct tensor *coords = f->in[0], *gauss = f->in[1];
    REQUIRE(coords->rank >= 1 && tensor_last(coords) == 2, "coordinates must be [...,2]");
    REQUIRE(gauss->rank == 2 && gauss->dim[0] == 2, "the frequencies must be [2,F]");
    set(&f->out[0], f->attr->fourier.dtype, coords->rank, coords->dim);
    f->out[0].dim[coords->rank - 1] = 2 * gauss->dim[1];
}

/* `columns` of x from `first` on, dense. */
static id columns_of(struct graph *g, id x, int64_t first, int64_t columns)
{
    return op_dense(g, op_slice(g, x, tensor_at(g, x)->rank - 1, first, columns));
}

/* y = [sin t, cos t] with t = 2 pi (2 c - 1) G:
 *   dt = dsin cos t - dcos sin t,   dc = 4 pi dt G^T,
 *   dG = 4 pi c^T dt - 2 pi (sum of dt's rows, twice). */
void vjp_fourier(struct vjp *v)
{
    struct graph *g = v->g;
    id y = v->out[0], dy = v->dout[0], coords = v->in[0], gauss = v->in[1];
    const int64_t F = tensor_at(g, gauss)->dim[1];
    const enum dtype t = tensor_at(g, coords)->dtype;
    const double pi = 3.14159265358979323846;
    /* One statement each: compilers differ in the evaluation order of arguments. */
    id dsin = columns_of(g, dy, 0, F), cosine = columns_of(g, y, F, F);
    id dcos = columns_of(g, dy, F, F), sine = columns_of(g, y, 0, F);
    id rise = op_mul(g, dsin, cosine), fall = op_mul(g, dcos, sine);
    id angle = op_add(g, rise, op_scale(g, fall, -1));
    if (angle && tensor_at(g, angle)->dtype != t) angle = op_cast(g, angle, t);
    if (v->need[0]) v->din[0] = op_scale(g, op_matmul(g, angle, gauss, false, true, t), 4 * pi);
    if (!v->need[1]) return;
    union attr a = {.sum_to = {.dtype = t, .rank = 1, .dim = {F}}};
    id sum = emit_first(g, OP_SUM_TO, &a, &angle, 1);
    id product = op_matmul(g, coords, angle, true, false, t);
    id left = op_scale(g, product, 4 * pi), right = op_scale(g, sum, -2 * pi);
    v->din[1] = op_add(g, left, right);
}

/* --- the mask loss -------------------------------------------------------------------------- */

struct mask_loss op_mask_loss(struct graph *g, id logits, id iou, id bits, id valid, struct mask_loss_options o,
                              const char *count)
{
    union attr a = {.mask_loss = {o.focal, o.dice, o.iou, o.alpha, o.gamma, o.smooth, o.alpha_both}};
    const struct outputs y =
        op_outputs(g, OP_MASK_LOSS, &a, (id[]){logits, iou, bits, valid, graph_count(g, count)}, 5);
    return (struct mask_loss){y.at[0], y.at[1]};
}

/* Logits, and from input `at` on the target, the valid area and 1 / count. */
static void check_targets(struct infer *f, int at)
{
    const struct tensor *logits = f->in[0], *bits = f->in[at], *valid = f->in[at + 1], *count = f->in[at + 2];
    REQUIRE(logits->rank == 4 && dtype_is_float(logits->dtype), "logits must be [N,K,h,w]");
    const int64_t N = logits->dim[0], h = logits->dim[2], row = mask_row_bytes(logits->dim[3]);
    REQUIRE(bits->dtype == DT_U8 && bits->rank == 3 && bits->dim[0] == N && bits->dim[1] == h && bits->dim[2] == row,
            "the target must be u8 [%lld,%lld,%lld]: bits, rows padded to 8 bytes", (long long)N, (long long)h,
            (long long)row);
    REQUIRE(valid->dtype == DT_I32 && valid->rank == 2 && valid->dim[0] == N && valid->dim[1] == 2,
            "the valid area must be i32 [%lld,2]", (long long)N);
    REQUIRE(is_scalar(count) && count->dtype == DT_F32, "input %d must be 1 / count, an f32 scalar", at + 3);
}

static void check_masks(struct infer *f)
{
    const struct tensor *logits = f->in[0], *iou = f->in[1];
    check_targets(f, 2);
    if (f->error[0]) return;
    const int64_t N = logits->dim[0], K = logits->dim[1];
    REQUIRE(iou->rank == 2 && iou->dim[0] == N && iou->dim[1] == K && dtype_is_float(iou->dtype),
            "the predicted IoU must be [%lld,%lld]", (long long)N, (long long)K);
}

void infer_mask_loss(struct infer *f)
{
    const struct tensor *logits = f->in[0];
    check_masks(f);
    if (f->error[0]) return;
    REQUIRE(f->attr->mask_loss.gamma >= 0 && f->attr->mask_loss.smooth >= 0, "gamma and smooth must not be negative");
    set(&f->out[0], statistic(logits), 0, logits->dim);
    set(&f->out[1], statistic(logits), 2, (int64_t[]){logits->dim[0], MASK_STATS});
}

void infer_mask_loss_bwd(struct infer *f)
{
    const struct tensor *stats = f->in[5];
    check_masks(f);
    if (f->error[0]) return;
    REQUIRE(stats->rank == 2 && stats->dim[0] == f->in[0]->dim[0] && stats->dim[1] == MASK_STATS && is_scalar(f->in[6]),
            "not the statistics and the gradient of a mask loss");
    like(&f->out[0], f->in[0]);
    like(&f->out[1], f->in[1]);
}

/* For one pixel, with z = x inside the mask and -x outside, q = sigmoid(-z) = 1 - p_t and S = -log
 * p_t = log(1 + e^-z):
 *   focal = a q^gamma S,   dq/dz = -q (1-q),  dS/dz = -q,  so
 *   dfocal/dz = -a q^gamma (gamma (1-q) S + q).
 * dice = 1 - A/B with A = 2 sum(pg) + smooth, B = sum(p) + sum(g) + smooth:
 *   ddice/dp = (A - 2 g B) / B^2,  dp/dx = p (1-p).
 * The choice of a candidate and the true IoU are constants: they are step functions of x. */
void vjp_mask_loss(struct vjp *v)
{
    id in[7] = {v->in[0], v->in[1], v->in[2], v->in[3], v->in[4], v->out[1], v->dout[0]};
    id n = graph_emit(v->g, OP_MASK_LOSS_BWD, v->attr, in, 7);
    for (int i = 0; n && i < 2; i++) v->din[i] = node_at(v->g, n)->out[i];
}

/* --- the structure loss ----------------------------------------------------------------------- */

struct mask_loss op_structure_loss(struct graph *g, id logits, id bits, id valid, struct structure_loss_options o,
                                   const char *count)
{
    union attr a = {.structure_loss = {o.edge, o.bce_edge, o.smooth, o.size}};
    const struct outputs y =
        op_outputs(g, OP_STRUCTURE_LOSS, &a, (id[]){logits, bits, valid, graph_count(g, count)}, 4);
    return (struct mask_loss){y.at[0], y.at[1]};
}

static void check_structure(struct infer *f)
{
    const int32_t size = f->attr->structure_loss.size;
    check_targets(f, 1);
    if (f->error[0]) return;
    REQUIRE(f->in[0]->dim[1] == 1, "one mask each, [N,1,h,w]");
    REQUIRE(size % 2 == 1 && size > 0 && size < 64, "a window of %d; expected an odd number of at most 63", size);
    REQUIRE(f->attr->structure_loss.edge >= 0 && f->attr->structure_loss.bce_edge >= 0 &&
                f->attr->structure_loss.smooth >= 0,
            "edge, bce_edge and smooth must not be negative");
}

void infer_structure_loss(struct infer *f)
{
    const struct tensor *logits = f->in[0];
    check_structure(f);
    if (f->error[0]) return;
    set(&f->out[0], statistic(logits), 0, logits->dim);
    set(&f->out[1], statistic(logits), 2, (int64_t[]){logits->dim[0], MASK_STATS});
    set(&f->out[2], statistic(logits), 1, logits->dim);
}

void infer_structure_loss_bwd(struct infer *f)
{
    const int64_t N = f->in[0]->dim[0];
    check_structure(f);
    if (f->error[0]) return;
    REQUIRE(f->in[4]->rank == 2 && f->in[4]->dim[0] == N && f->in[4]->dim[1] == MASK_STATS && f->in[5]->rank == 1 &&
                f->in[5]->dim[0] == N && is_scalar(f->in[6]),
            "not the statistics and the gradient of a structure loss");
    like(&f->out[0], f->in[0]);
}

/* With W the sum of the weights w of the cross-entropy, A = I + smooth and B = U - I + smooth:
 *   dbce/dx = w (p - g) / W,
 *   diou/dp = v (A (1 - g) - B g) / B^2, because dA/dp = v g and dB/dp = v (1 - g);  dp/dx = p
 *   (1-p). The weights depend on the target alone. */
void vjp_structure_loss(struct vjp *v)
{
    id in[7] = {v->in[0], v->in[1], v->in[2], v->in[3], v->out[1], v->out[2], v->dout[0]};
    id n = graph_emit(v->g, OP_STRUCTURE_LOSS_BWD, v->attr, in, 7);
    if (n) v->din[0] = node_at(v->g, n)->out[0];
}

/* An exponential and a logarithm for each pixel. */
struct cost cost_masks(const struct tensor *const *in, const struct tensor *const *out, const union attr *attr)
{
    struct cost c = cost_stream(in, out, attr);
    c.flops *= 10;
    return c;
}
