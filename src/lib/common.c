/*
 * common.c: what the files of the library share: codes, stages, structs with a size, dtypes, and
 * who has a session's memory.
 */
#include "plimsoll.h"

#include "lib/session.h"

int pl_code(const struct pl_session *s) { return s ? s->error.code : PL_USAGE; }
const char *pl_message(const struct pl_session *s) { return s ? s->error.text : "there is no session: it is NULL"; }

int session_require(struct pl_session *s, enum stage stage, const char *call)
{
    if (s->stage >= stage) return PL_OK;
    return error_set(&s->error, PL_USAGE, "%s: %s", call,
                     stage == STAGE_STARTED ? "the session is not started; call pl_start first"
                                            : "there is no plan; call pl_plan first");
}

struct run *session_run(const struct pl_session *s) { return trainer_run(s->trainer); }

void session_evict(struct pl_session *s)
{
    void (*evict)(struct pl_session *) = s->evict;
    s->evict = NULL;
    if (evict) evict(s);
}

/* --- structs with a size ----------------------------------------------------------------- */

enum { STRUCT_MOST = 1 << 16 };

int session_sized(struct pl_session *s, const char *call, const void *of, size_t own)
{
    size_t size;
    if (!of) return error_set(&s->error, PL_USAGE, "%s: the struct is NULL", call);
    memcpy(&size, of, sizeof size);
    if (size > sizeof size && size <= STRUCT_MOST) return PL_OK;
    return error_set(&s->error, PL_USAGE,
                     "%s: the size of the struct is %zu, here it has %zu; initialise it with PL_INIT(its type)", call,
                     size, own);
}

void session_give(void *to, const void *from, size_t own)
{
    size_t size;
    memcpy(&size, to, sizeof size);
    memset((char *)to + sizeof size, 0, size - sizeof size);
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size, (size_t)min_u64(size, own) - sizeof size);
}

void session_take(void *to, const void *from, size_t own)
{
    size_t size;
    memcpy(&size, from, sizeof size);
    memset(to, 0, own);
    memcpy(to, from, (size_t)min_u64(size, own));
}

/* --- dtypes -------------------------------------------------------------------------------- */

static const enum dtype dtypes[] = {[PL_F32] = DT_F32, [PL_I32] = DT_I32, [PL_F64] = DT_F64,   [PL_U8] = DT_U8,
                                    [PL_I64] = DT_I64, [PL_F16] = DT_F16, [PL_BF16] = DT_BF16};

enum dtype session_dtype_of(int type)
{
    return type > 0 && type < (int)COUNT(dtypes) ? dtypes[type] : DT_NONE;
}

int session_dtype(enum dtype t)
{
    for (int i = 1; i < (int)COUNT(dtypes); i++)
        if (dtypes[i] == t) return i;
    return 0;
}
