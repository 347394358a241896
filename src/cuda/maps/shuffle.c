/*
 * shuffle.c: the running half of shuffle.cu and maps.cu.
 */
#include "cuda/maps/launch_shuffle.h"

#include "cuda/rows/operand_loops.h"

enum { IGNORED_LABEL = -100 };

/* --- copies ------------------------------------------------------------------------ */

/* Moves between operands of one dtype and shape, in either space: the GPU reads pinned memory
 * too. */
static int move_strided(const struct launch *l, const struct operand *to, const struct operand *from, struct error *e)
{
    if (operand_elements(to) == 0 || to->data == from->data) return PL_OK;
    TRY_CUDA(cuda_move(to->data, from->data, loop_nest_of(to, from, NULL), (int)dtype_size(to->dtype), l->access,
                       (enum move_form)l->form, l->stream));
    return PL_OK;
}

static int launch_copy_strided(const struct launch *l, struct error *e)
{
    return move_strided(l, &l->out[0], &l->in[0], e);
}

/* Copies by the copy engine. */
static int launch_copy(const struct launch *l, struct error *e)
{
    const struct operand *to = &l->out[0], *from = &l->in[0];
    const int64_t bytes = operand_elements(to) * dtype_size(to->dtype);
    if (bytes && to->data != from->data)
        TRY_CUDA(cudaMemcpyAsync(to->data, from->data, (size_t)bytes, cudaMemcpyDefault, l->stream));
    return PL_OK;
}

/* Returns the slice of x from `start` on along an axis. */
static struct operand part_of(const struct operand *x, int axis, int64_t start, int64_t length)
{
    struct operand part = *x;
    part.data = (char *)x->data + start * x->stride[axis] * dtype_size(x->dtype);
    part.dim[axis] = length;
    return part;
}

static int launch_concat(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0];
    const int axis = l->attr->concat.axis;
    int64_t outer = 1, inner = (int64_t)dtype_size(y->dtype);
    struct join j = {.count = l->nin};
    for (int d = 0; d < axis; d++) outer *= y->dim[d];
    for (int d = axis + 1; d < y->rank; d++) inner *= y->dim[d];
    for (int i = 0; i < l->nin; i++) {
        j.x[i] = l->in[i].data;
        j.row[i] = l->in[i].dim[axis] * inner;
    }
    TRY_CUDA(cuda_join(y->data, j, outer, l->access, l->stream));
    return PL_OK;
}

static int launch_concat_strided(const struct launch *l, struct error *e)
{
    const int axis = l->attr->concat.axis;
    int64_t at = 0;
    for (int i = 0; i < l->nin; at += l->in[i].dim[axis], i++) {
        const struct operand part = part_of(&l->out[0], axis, at, l->in[i].dim[axis]);
        TRY(move_strided(l, &part, &l->in[i], e));
    }
    return PL_OK;
}

/* Returns the part of PAD's result that is its input. */
static struct operand middle_of(const struct launch *l)
{
    struct operand middle = l->out[0];
    for (int d = 0; d < middle.rank; d++) middle = part_of(&middle, d, l->attr->pad.before[d], l->in[0].dim[d]);
    return middle;
}

static int launch_pad(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0], *x = &l->in[0], middle = middle_of(l);
    const int64_t size = (int64_t)dtype_size(y->dtype);
    TRY_CUDA(cuda_pad(y->data, x->data, (char *)middle.data - (char *)y->data, operand_elements(x) * size,
                      operand_elements(y) * size, l->stream));
    return PL_OK;
}

/* Pads with all-zero bits, the zero of every dtype. */
static int launch_pad_strided(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0], middle = middle_of(l);
    TRY_CUDA(cudaMemsetAsync(y->data, 0, (size_t)(operand_elements(y) * dtype_size(y->dtype)), l->stream));
    return move_strided(l, &middle, &l->in[0], e);
}

/* --- rows ---------------------------------------------------------------------------- */

static int launch_gather(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    TRY_CUDA(cuda_gather(l->out[0].data, x->data, l->in[1].data, x->dim[0], x->dim[1], l->out[0].dim[1],
                         x->dim[2] * dtype_size(x->dtype), l->access, l->stream));
    return PL_OK;
}

static int launch_scatter_add(const struct launch *l, struct error *e)
{
    const struct operand *y = &l->out[0], *x = &l->in[0];
    CHECK(!has(l, 2) || l->in[2].data == y->data, "the accumulator is updated in place");
    TRY_CUDA(cuda_scatter_add(y->data, x->data, l->in[1].data, store_of(y->dtype), store_of(x->dtype), y->dim[0],
                              y->dim[1], l->in[1].dim[1], y->dim[2], has(l, 2), l->stream));
    return PL_OK;
}

static int launch_repeat(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    const int64_t rows = x->dim[0], row = operand_elements(x) / rows * dtype_size(x->dtype);
    TRY_CUDA(cuda_repeat(l->out[0].data, x->data, rows, l->out[0].dim[0] / rows, row, l->access, l->stream));
    return PL_OK;
}

static int launch_windows(const struct launch *l, bool back, struct error *e)
{
    const struct operand *map = back ? &l->out[0] : &l->in[0], *windows = back ? &l->in[0] : &l->out[0];
    TRY_CUDA(cuda_window(l->out[0].data, l->in[0].data, map->dim[0], map->dim[1], map->dim[2],
                         map->dim[3] * dtype_size(map->dtype), windows->dim[1], back, l->access,
                         (enum window_form)l->form, l->stream));
    return PL_OK;
}

static int launch_window(const struct launch *l, struct error *e) { return launch_windows(l, false, e); }
static int launch_unwindow(const struct launch *l, struct error *e) { return launch_windows(l, true, e); }

static int launch_shift_labels(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_shift_labels(l->out[0].data, l->in[0].data, operand_rows(&l->in[0]), operand_last(&l->in[0]),
                               IGNORED_LABEL, l->stream));
    return PL_OK;
}

static int launch_labelled_first(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_labelled_first(l->out[0].data, l->out[1].data, l->out[2].data, l->in[0].data,
                                 operand_elements(&l->in[0]), IGNORED_LABEL, l->stream));
    return PL_OK;
}

static int launch_used_first(const struct launch *l, struct error *e)
{
    const struct attr_used_first *a = &l->attr->used_first;
    TRY_CUDA(cuda_used_first(l->out[0].data, l->in[0].data, operand_rows(&l->in[0]), operand_last(&l->in[0]), a->blocks,
                             (struct feature_blocks){a->rows, a->first, a->first_rows}, a->room, l->stream));
    return PL_OK;
}

/* --- maps ------------------------------------------------------------------------------- */

static int launch_image(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0];
    struct image_scale s;
    for (int c = 0; c < 3; c++) {
        s.mean[c] = l->attr->image.mean[c];
        s.std[c] = l->attr->image.std[c];
    }
    TRY_CUDA(cuda_image(l->out[0].data, x->data, l->in[1].data, store_of(l->out[0].dtype), x->dim[0], x->dim[1],
                        x->dim[2], s, l->stream));
    return PL_OK;
}

static int launch_pixels(const struct launch *l, struct error *e)
{
    TRY_CUDA(cuda_pixels(l->out[0].data, l->in[0].data, l->in[1].data, store_of(l->out[0].dtype),
                         l->attr->pixels.plane, l->in[1].dim[0], operand_elements(&l->in[0]), l->stream));
    return PL_OK;
}

static int launch_fourier(const struct launch *l, struct error *e)
{
    const struct any_types types = {any_of(l->out[0].dtype), any_of(l->in[0].dtype), any_of(l->in[1].dtype)};
    TRY_CUDA(cuda_fourier(l->out[0].data, l->in[0].data, l->in[1].data, types, operand_rows(&l->in[0]), l->in[1].dim[1],
                          l->stream));
    return PL_OK;
}

/* Returns the sizes of the forward's input and its result, in both directions. */
static struct map_sizes sizes_of(const struct operand *in, const struct operand *out)
{
    return (struct map_sizes){in->dim[0], in->dim[1], in->dim[2], in->dim[3], out->dim[1], out->dim[2]};
}

static int launch_resizes(const struct launch *l, bool back, struct error *e)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    TRY_CUDA(cuda_resize(y->data, x->data, store_of(x->dtype), back ? sizes_of(y, x) : sizes_of(x, y),
                         l->attr->resize.align_corners, back, l->access, l->stream));
    return PL_OK;
}

static int launch_resize(const struct launch *l, struct error *e) { return launch_resizes(l, false, e); }
static int launch_resize_bwd(const struct launch *l, struct error *e) { return launch_resizes(l, true, e); }

static int launch_pools(const struct launch *l, bool back, struct error *e)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    const struct attr_avgpool *a = &l->attr->avgpool;
    const struct pool p = {{a->k[0], a->k[1]},
                           {a->stride[0], a->stride[1]},
                           {a->pad[0], a->pad[1]},
                           a->count_pad,
                           a->adaptive};
    TRY_CUDA(cuda_avgpool(y->data, x->data, store_of(x->dtype), back ? sizes_of(y, x) : sizes_of(x, y), p, back,
                          l->access, l->stream));
    return PL_OK;
}

static int launch_avgpool(const struct launch *l, struct error *e) { return launch_pools(l, false, e); }
static int launch_avgpool_bwd(const struct launch *l, struct error *e) { return launch_pools(l, true, e); }

static int launch_maxpool(const struct launch *l, struct error *e)
{
    const struct operand *x = &l->in[0], *y = &l->out[0];
    TRY_CUDA(cuda_maxpool(y->data, x->data, store_of(x->dtype), sizes_of(x, y), l->attr->maxpool.size, l->access,
                          l->stream));
    return PL_OK;
}

static int launch_maxpool_bwd(const struct launch *l, struct error *e)
{
    const struct operand *dy = &l->in[0], *x = &l->in[1];
    TRY_CUDA(cuda_maxpool_bwd(l->out[0].data, dy->data, x->data, store_of(x->dtype), sizes_of(x, dy),
                              l->attr->maxpool.size, l->access, l->stream));
    return PL_OK;
}

CUDA_KERNEL(cuda_copy, .launch = launch_copy);
CUDA_KERNEL(cuda_copy_strided, .launch = launch_copy_strided);
CUDA_KERNEL(cuda_concat, .launch = launch_concat);
CUDA_KERNEL(cuda_concat_strided, .launch = launch_concat_strided);
CUDA_KERNEL(cuda_pad, .launch = launch_pad);
CUDA_KERNEL(cuda_pad_strided, .launch = launch_pad_strided);
CUDA_KERNEL(cuda_gather, .launch = launch_gather);
CUDA_KERNEL(cuda_scatter_add, .launch = launch_scatter_add);
CUDA_KERNEL(cuda_repeat, .launch = launch_repeat);
CUDA_KERNEL(cuda_window, .launch = launch_window);
CUDA_KERNEL(cuda_unwindow, .launch = launch_unwindow);
CUDA_KERNEL(cuda_shift_labels, .launch = launch_shift_labels);
CUDA_KERNEL(cuda_labelled_first, .launch = launch_labelled_first);
CUDA_KERNEL(cuda_used_first, .launch = launch_used_first);
CUDA_KERNEL(cuda_image, .launch = launch_image);
CUDA_KERNEL(cuda_pixels, .launch = launch_pixels);
CUDA_KERNEL(cuda_fourier, .launch = launch_fourier);
CUDA_KERNEL(cuda_resize, .launch = launch_resize);
CUDA_KERNEL(cuda_resize_bwd, .launch = launch_resize_bwd);
CUDA_KERNEL(cuda_avgpool, .launch = launch_avgpool);
CUDA_KERNEL(cuda_avgpool_bwd, .launch = launch_avgpool_bwd);
CUDA_KERNEL(cuda_maxpool, .launch = launch_maxpool);
CUDA_KERNEL(cuda_maxpool_bwd, .launch = launch_maxpool_bwd);
