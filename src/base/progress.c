/*
 * progress.c: see progress.h.
 */
#include "base/caller.h"
#include "base/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* between two updates of a terminal, and between two lines of a log */
static const double REWRITE_SECONDS = 0.1, LINE_SECONDS = 5;
/* a log gets at most one line in 1/SHARE of the time so far */
enum { SHARE = 20 };

static atomic_bool open_line; /* the line on the screen has no newline yet */

/* Returns the seconds between two lines of a log; 0: no progress at all. */
static double line_seconds(void)
{
    const char *given = getenv("PLIMSOLL_PROGRESS");
    char *end;
    const double x = given ? strtod(given, &end) : LINE_SECONDS;
    return given && (end == given || *end || !(x >= 0)) ? LINE_SECONDS : x;
}

/* --- lines -------------------------------------------------------------------------- */

bool progress_due(struct progress *p, bool edge)
{
    const double now = clock_seconds(), every = line_seconds(),
                 pause = isatty(2) ? REWRITE_SECONDS : fmax(every, (now - p->begun) / SHARE);
    if (every <= 0 || log_is_quiet() || (!edge && now - p->shown < pause)) return false;
    p->shown = now;
    return true;
}

/* Cuts a line that is wider than the screen: it would wrap, and only its end could be rewritten. */
static void cut_to_screen(char *line, size_t room)
{
    struct winsize screen;
    if (!ioctl(2, TIOCGWINSZ, &screen) && screen.ws_col > 1 && screen.ws_col <= room) line[screen.ws_col - 1] = 0;
}

void progress_line(const char *fmt, ...)
{
    char line[512] = "";
    const bool terminal = isatty(2);
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (caller_is()) {
        caller_log(LOG_PROGRESS, line);
        return;
    }
    if (terminal) cut_to_screen(line, sizeof line);
    fprintf(stderr, terminal ? "\r\033[K%s" : "%s\n", line);
    atomic_store(&open_line, terminal);
}

void progress_clear(void)
{
    if (atomic_exchange(&open_line, false)) fputs("\r\033[K", stderr);
}

void progress_keep(void)
{
    if (atomic_exchange(&open_line, false)) fputc('\n', stderr);
}

/* --- counting ----------------------------------------------------------------------- */

/* Prints a time rounded up to whole seconds: nobody knows it better. */
static char *about(double seconds, char out[32]) { return duration_print(ceil(seconds), out); }

char *progress_left(const struct progress *p, char out[48])
{
    const double each = (clock_seconds() - p->begun) / (double)(p->done - p->first);
    char left[32];
    snprintf(out, 48, "%s left", about(each * (double)(p->total - p->done), left));
    return out;
}

void progress_begin(struct progress *p, const char *what, const char *unit, uint64_t total)
{
    *p = (struct progress){.what = what, .unit = unit, .total = total, .begun = clock_seconds()};
    p->shown = p->begun;
    if (isatty(2) && !atomic_load(&open_line) && progress_due(p, true)) progress_line("%s ...", what);
}

bool progress_says(double seconds) { return line_seconds() > 0 && !log_is_quiet() && seconds > line_seconds(); }

void progress_expect(struct progress *p, double seconds)
{
    char time[32];
    if (progress_says(seconds) && progress_due(p, true))
        progress_line("%s %" PRIu64 "/%" PRIu64 " %s  about %s", p->what, p->first, p->total, p->unit,
                      about(seconds, time));
}

void progress_add(struct progress *p, uint64_t n)
{
    char speed[64] = "", time[32], left[48];
    p->done += n;
    if (!p->done || p->done == p->total || !progress_due(p, false)) return; /* the result follows the last one */
    const double seconds = clock_seconds() - p->begun, each = (double)p->done / seconds;
    if (each > 0.2)
        snprintf(speed, sizeof speed, "  %.*f %.30s/s", each < 9.995 ? 2 : each < 99.95 ? 1 : 0, each, p->unit);
    if (p->total)
        progress_line("%s %" PRIu64 "/%" PRIu64 " %s%s  %s", p->what, p->done, p->total, p->unit, speed,
                      progress_left(p, left));
    else progress_line("%s: %" PRIu64 " %s, %s so far", p->what, p->done, p->unit, about(seconds, time));
}
