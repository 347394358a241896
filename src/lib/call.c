/*
 * call.c: see call.h.
 *
 * A failed check leaves its session as it was in the middle of a call. It is broken: later calls
 * return the same error, and pl_close does not free what it holds.
 */
#include "plimsoll.h"

#include <pthread.h>

#include "base/progress.h"
#include "lib/call.h"
#include "lib/session.h"

static pthread_mutex_t lock;
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make_lock(void)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &a);
    pthread_mutexattr_destroy(&a);
    log_silence(); /* what is logged between two calls, by threads that read data, goes nowhere */
}

void call_lock(void)
{
    pthread_once(&made, make_lock);
    pthread_mutex_lock(&lock);
}

void call_unlock(void) { pthread_mutex_unlock(&lock); }

static void take_line(void *call, enum log_level level, const char *line)
{
    const struct pl_session *s = ((struct call *)call)->s;
    s->on_log((enum pl_log)level, line, s->on_log_user);
}

static bool is_cancelled(void *call) { return atomic_load(&((struct call *)call)->s->cancelled); }

static void escape(void *call, const char *message)
{
    struct call *c = call;
    struct pl_session *s = c->s;
    s->broken = true;
    error_set(&s->error, PL_FAIL, "%s", message);
    longjmp(c->escape, 1);
}

bool call_begin(struct call *c, struct pl_session *s)
{
    c->s = NULL;
    if (!s) return false;
    call_lock();
    if (s->broken) {
        call_unlock();
        return false;
    }
    s->error.code = PL_OK;
    s->error.text[0] = '\0';
    if (s->busy) {
        error_set(&s->error, PL_USAGE, "a callback cannot call functions on its session");
        call_unlock();
        return false;
    }
    c->s = s;
    c->caller = (struct caller){.log = s->on_log ? take_line : NULL, .end = escape, .stops = is_cancelled, .user = c};
    c->before = caller_enter(&c->caller);
    return true;
}

void call_end(struct call *c)
{
    if (!c->s) return;
    if (c->s->error.code == PL_STOPPED) atomic_store(&c->s->cancelled, false);
    caller_enter(c->before);
    call_unlock();
}

/* --- log and cancel ------------------------------------------------------------------------- */

int pl_on_log(struct pl_session *s, pl_log_callback callback, void *user)
{
    ENTER(s);
    s->on_log = callback;
    s->on_log_user = user;
    return PL_OK;
}

void pl_log_stderr(enum pl_log level, const char *line, void *user)
{
    (void)user;
    fprintf(stderr, "%s%s\n", level == PL_LOG_WARNING ? "warning: " : "", line);
}

void pl_cancel(struct pl_session *s, int on)
{
    if (s) atomic_store(&s->cancelled, on != 0);
}
