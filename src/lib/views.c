/*
 * views.c: tensors of a started session as DLPack, without a copy, and inputs from it.
 *
 * A view points into the arena. The session counts its views, and is freed when it is closed and
 * the last of them is.
 */
#include "plimsoll.h"

#include <string.h>

#include "graph/stored.h"
#include "lib/session.h"
#include "run/tape.h"

/* --- the layout of DLPack, version 0 -------------------------------------------------------- */

enum { DL_CPU = 1, DL_CUDA = 2 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4 };

struct dl_device {
    int32_t type, index;
};
struct dl_type {
    uint8_t code, bits;
    uint16_t lanes;
};
struct dl_tensor {
    void *data;
    struct dl_device device;
    int32_t rank;
    struct dl_type type;
    int64_t *dim, *stride; /* stride in elements; NULL: dense */
    uint64_t offset;       /* bytes */
};
struct DLManagedTensor {
    struct dl_tensor tensor;
    void *context;
    void (*deleter)(struct DLManagedTensor *self);
};

static const struct {
    enum dtype dtype;
    struct dl_type type;
} types[] = {{DT_F64, {DL_FLOAT, 64, 1}}, {DT_F32, {DL_FLOAT, 32, 1}}, {DT_F16, {DL_FLOAT, 16, 1}},
             {DT_BF16, {DL_BFLOAT, 16, 1}}, {DT_I64, {DL_INT, 64, 1}}, {DT_I32, {DL_INT, 32, 1}},
             {DT_U8, {DL_UINT, 8, 1}}};

/* --- out ------------------------------------------------------------------------------------ */

struct view {
    struct DLManagedTensor managed;
    struct pl_session *session;
    int64_t dim[MAX_RANK], stride[MAX_RANK];
};

static void free_view(struct DLManagedTensor *self)
{
    struct view *v = self->context;
    struct pl_session *s = v->session;
    call_lock();
    const bool last = !--s->views && s->closing;
    free(v);
    call_unlock();
    if (last) pl_close(s);
}

static int make_view(struct pl_session *s, const char *call, id tensor, struct DLManagedTensor **out)
{
    const struct run *r = session_run(s);
    const struct tensor *t = tensor_at(&r->planned.graph, tensor);
    size_t k = 0;
    while (k < COUNT(types) && types[k].dtype != t->dtype) k++;
    if (k == COUNT(types) || tensor_form(&r->planned.graph, t)->n_parts > 1)
        return error_set(&s->error, PL_USAGE, "%s: the tensor is stored in a packed form, which has no view", call);
    struct view *v = calloc(1, sizeof *v);
    if (!v) return error_set(&s->error, PL_FAIL, "%s: out of host memory", call);
    v->session = s;
    memcpy(v->dim, t->dim, sizeof v->dim);
    memcpy(v->stride, t->stride, sizeof v->stride);
    v->managed = (struct DLManagedTensor){
        .tensor = {.data = tape_address(&r->tape, tensor),
                   .device = {r->device.kind == DEVICE_CUDA ? DL_CUDA : DL_CPU, 0},
                   .rank = t->rank,
                   .type = types[k].type,
                   .dim = v->dim,
                   .stride = v->stride},
        .context = v,
        .deleter = free_view};
    s->views++;
    *out = &v->managed;
    return PL_OK;
}

int pl_view_parameter(struct pl_session *s, const char *name, struct DLManagedTensor **out)
{
    ENTER(s);
    const char *call = "pl_view_parameter";
    if (out) *out = NULL;
    if (!out) return error_set(&s->error, PL_USAGE, "%s: the result is NULL", call);
    if (session_settled(s, call)) return s->error.code;
    const struct param *p = session_parameter(s, call, name);
    return p ? make_view(s, call, p->master, out) : s->error.code;
}

int pl_view_gradient(struct pl_session *s, const char *name, struct DLManagedTensor **out)
{
    ENTER(s);
    const char *call = "pl_view_gradient";
    if (out) *out = NULL;
    if (!out) return error_set(&s->error, PL_USAGE, "%s: the result is NULL", call);
    if (session_settled(s, call)) return s->error.code;
    const struct param *p = session_parameter(s, call, name);
    if (!p || session_gradient(s, call, p, name)) return s->error.code;
    if (!p->grad) return error_set(&s->error, PL_USAGE, "%s: the loss does not depend on %s", call, name);
    return make_view(s, call, p->grad, out);
}

/* --- in ------------------------------------------------------------------------------------- */

static bool is_dense(const struct dl_tensor *t)
{
    int64_t stride = 1;
    for (int i = t->rank; i-- > 0 && t->stride; stride *= t->dim[i])
        if (t->dim[i] != 1 && t->stride[i] != stride) return false;
    return true;
}

int pl_write_input_view(struct pl_session *s, const char *name, const struct DLManagedTensor *from)
{
    const struct dl_tensor *t = from ? &from->tensor : NULL;
    size_t k = 0;
    uint64_t bytes = 1;
    {
        ENTER(s);
        if (!t) return error_set(&s->error, PL_USAGE, "pl_write_input_view: the tensor is NULL");
        while (k < COUNT(types) && memcmp(&types[k].type, &t->type, sizeof t->type)) k++;
        if (k == COUNT(types))
            return error_set(&s->error, PL_USAGE, "pl_write_input_view: %s: a dtype of code %d with %d bits", name,
                             t->type.code, t->type.bits);
        if (t->device.type != DL_CPU)
            return error_set(&s->error, PL_USAGE, "pl_write_input_view: %s is not in host memory: copy it there", name);
        if (!is_dense(t))
            return error_set(&s->error, PL_USAGE, "pl_write_input_view: %s is not contiguous: copy it first", name);
        bytes = dtype_size(types[k].dtype);
        for (int i = 0; i < t->rank; i++) bytes *= (uint64_t)t->dim[i];
    }
    return pl_write_input_as(s, name, (enum pl_dtype)session_dtype(types[k].dtype), (const char *)t->data + t->offset,
                             bytes);
}
