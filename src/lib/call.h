/*
 * call.h: a call of the library: what holds from its first line to its return.
 *
 *     int pl_x(struct pl_session *s, ...)
 *     {
 *         ENTER(s);                              the lock, a cleared error, the session's log and cancel
 *         ...                                    CHECK or exhausted memory: a return from ENTER with PL_FAIL
 *     }                                          all of it ends with the function
 *
 * Calls on all sessions run one after the other, so that what a process has once (progress, the
 * memory pool of a run, the CUDA plug-in) serves one of them. A callback may call functions of
 * other sessions.
 */
#pragma once

#include <setjmp.h>

#include "base/caller.h"
#include "plimsoll.h"

struct call {
    struct pl_session *s;        /* NULL: it did not begin */
    struct caller caller;
    const struct caller *before;
    jmp_buf escape;
};

/* Begins a call. False: the session is NULL or broken, or the call comes from one of its own
 * callbacks; its error says which. call_end follows in any case. */
bool call_begin(struct call *c, struct pl_session *s);
void call_end(struct call *c);
/* Locks out calls of other threads. */
void call_lock(void);
void call_unlock(void);

#define ENTER_OR(s, failed)                                 \
    struct call this_call __attribute__((cleanup(call_end)));    \
    if (!call_begin(&this_call, s)) return (failed);             \
    if (setjmp(this_call.escape)) return (failed)
#define ENTER(s) ENTER_OR(s, pl_code(s))
