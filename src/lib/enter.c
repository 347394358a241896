/*
 * enter.c: how calls on a session begin.
 */
#include "plimsoll.h"

#include "lib/session.h"

bool session_enter(struct pl_session *s)
{
    if (!s) return false;
    s->error.code = PL_OK;
    s->error.text[0] = '\0';
    if (s->busy) error_set(&s->error, PL_USAGE, "a callback cannot call functions on its session");
    return !s->busy;
}

int session_require(struct pl_session *s, enum stage stage, const char *call)
{
    if (s->stage >= stage) return PL_OK;
    return error_set(&s->error, PL_USAGE, "%s: %s", call,
                     stage == STAGE_STARTED ? "the session is not started; call pl_start first"
                                            : "there is no plan; call pl_plan first");
}
