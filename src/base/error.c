/*
 * error.c: error values, failed checks, and log lines, on stderr or to the caller (caller.h).
 *
 * Invariant: a message is one line without control codes, always terminated and never longer than
 * its buffer. An overlong
 * message is cut at its end: the prepended context, which names the location, survives, and the
 * least specific tail is lost.
 */
#include <stdarg.h>
#include <stdatomic.h>

#include "base/base.h"
#include "base/caller.h"
#include "base/progress.h"

/* Formats the message into a local buffer first: an argument may be e->text itself. */
int error_set(struct error *e, int code, const char *fmt, ...)
{
    char text[sizeof e->text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    e->code = code;
    e->no_descriptors = false;
    text_escape(e->text, sizeof e->text, text);
    return code;
}

int error_prepend(struct error *e, const char *fmt, ...)
{
    char text[sizeof e->text];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0) n = 0;
    if ((size_t)n < sizeof text) {
        size_t room = sizeof text - (size_t)n;
        snprintf(text + n, room, ": %.*s", (int)room, e->text);
    }
    text_escape(e->text, sizeof e->text, text);
    return e->code;
}

_Noreturn void check_failed(const char *file, int line, const char *expr, const char *fmt, ...)
{
    char found[1024] = "", message[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(found, sizeof found, fmt, args);
    va_end(args);
    snprintf(message, sizeof message, "%s:%d: check failed: %s%s%s: this is a bug in Plimsoll", file, line, expr,
             found[0] ? ": " : "", found);
    caller_end(message);
    fflush(stdout);
    progress_clear();
    fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, expr, found[0] ? "\n  " : "", found);
    fputs("This is a bug in Plimsoll; please report it with the command and its input.\n", stderr);
    abort();
}

static atomic_bool quiet_notes, silent;

void log_silence(void)
{
    atomic_store(&silent, true);
    atomic_store(&quiet_notes, true);
}

void log_quiet(bool quiet)
{
    atomic_store(&quiet_notes, quiet);
}

bool log_is_quiet(void) { return caller_is() ? !caller_listens() : atomic_load(&quiet_notes); }

/* Writes each line with one call, which keeps the lines of several threads apart. */
static void log_line(enum log_level level, const char *fmt, va_list args)
{
    char raw[4096], line[4096];
    int n = snprintf(raw, sizeof raw, "%s", level == LOG_WARNING && !caller_is() ? "warning: " : "");
    vsnprintf(raw + n, sizeof raw - (size_t)n, fmt, args);
    text_escape(line, sizeof line - 1, raw);
    if (caller_is()) {
        caller_log(level, line);
        return;
    }
    size_t end = strlen(line);
    line[end] = '\n';
    progress_clear();
    fwrite(line, 1, end + 1, stderr);
}

void log_note(const char *fmt, ...)
{
    if (log_is_quiet()) return;
    va_list args;
    va_start(args, fmt);
    log_line(LOG_NOTE, fmt, args);
    va_end(args);
}

void log_warn(const char *fmt, ...)
{
    if (atomic_load(&silent) && !caller_is()) return;
    va_list args;
    va_start(args, fmt);
    log_line(LOG_WARNING, fmt, args);
    va_end(args);
}
