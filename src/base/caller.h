/*
 * caller.h: what a call of the library replaces: where lines of the log go, how a failure ends that
 * cannot be returned, and whether the call is to stop. The program has no caller: it writes to
 * stderr, and ends.
 *
 *     library call   caller_enter(&c) ──► any code: log_note, CHECK, caller_stops ──► caller_enter(before)
 *
 * One thread at a time is within a call of the library (lib/call.c). Others, which read data for
 * it, log to its caller too, but only the thread of the call is ended.
 */
#pragma once

#include "base/base.h"

enum log_level { LOG_NOTE, LOG_WARNING, LOG_PROGRESS };

struct caller {
    /* takes a line without newline, on any thread; NULL: lines are dropped */
    void (*log)(void *user, enum log_level level, const char *line);
    /* takes the message of a failed check or allocation, and does not return */
    void (*end)(void *user, const char *message);
    bool (*stops)(void *user); /* on any thread */
    void *user;
};

/* Sets the caller of what follows, on this thread, and returns the one before; NULL: none. */
const struct caller *caller_enter(const struct caller *c);
/* Reports whether there is a caller, which takes log lines or drops them. */
bool caller_is(void);
/* Reports whether the caller takes lines. */
bool caller_listens(void);
/* Passes a line to the caller, which there is. */
void caller_log(enum log_level level, const char *line);
/* Ends the call with a message. Returns where there is no caller, on another thread than the
 * call's, and within a parallel region, which cannot be left. */
void caller_end(const char *message);
/* Reports whether the caller wants the call to stop. It is cheap. */
bool caller_stops(void);

/* Returns PL_STOPPED if the caller wants the call to stop. */
static inline int caller_check(struct error *e)
{
    return caller_stops() ? error_set(e, PL_STOPPED, "stopped by pl_cancel") : PL_OK;
}

/* The variable that holds the caller. A plug-in has its own copy of caller.c, and is given the
 * one of the program. */
struct caller_slot;
struct caller_slot *caller_slot(void);
void caller_share(struct caller_slot *slot);
