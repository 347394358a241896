/*
 * progress.c: see progress.h.
 */
#include "train/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void progress_begin(struct progress *p, int64_t step, int64_t total, uint64_t arena, const char *unit)
{
    *p = (struct progress){.first = step, .total = total, .begun = clock_seconds(), .arena = arena, .unit = unit, .terminal = isatty(2)};
}

static void print_left(double seconds, char out[32])
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s < 3600) snprintf(out, 32, "%d:%02d", (int)(s / 60), (int)(s % 60));
    else snprintf(out, 32, "%d:%02d:%02d", (int)(s / 3600 % 100000), (int)(s / 60 % 60), (int)(s % 60));
}

void progress_step(struct progress *p, int64_t step, double loss, double rate, double norm, double units, double seconds)
{
    double now = clock_seconds(), pause = p->terminal ? 0.1 : 1;
    p->units += units;
    p->seconds += seconds;
    bool edge = step == p->first + 1 || step == p->total;
    if (!edge && now - p->shown < pause) return;
    p->shown = now;
    char left[32], memory[32];
    double each = (now - p->begun) / (double)(step - p->first);
    double speed = p->units / p->seconds;
    bool tokens = !strcmp(p->unit, "tokens");
    print_left(each * (double)(p->total - step), left);
    fprintf(stderr, "%sstep %" PRId64 "/%" PRId64 "  loss %.4f  lr %.3g  grad %.3g  %.*f %s/s  %s  %s left%s", p->terminal ? "\r\033[K" : "",
            step, p->total, loss, rate, norm, speed < 100 && !tokens ? 2 : 0, speed, tokens ? "tok" : p->unit, size_print(p->arena, memory), left, p->terminal ? "" : "\n");
    p->open = p->terminal;
}

void progress_break(struct progress *p)
{
    if (p->open) fputc('\n', stderr);
    p->open = false;
}
