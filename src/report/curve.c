/*
 * curve.c: see curve.h.
 *
 *     top    |  .--.
 *     middle |-'    '--.___      the frame is WIDTH x HEIGHT, the ticks are round numbers
 *     bottom +--------------
 *             0    100   200
 */
#include "report/curve.h"

#include <math.h>

enum { WIDTH = 460, HEIGHT = 220, LEFT = 62, BOTTOM = 28, TOP = 26, RIGHT = 12, TICKS = 4 };

static const char *const colours[] = {"#1b6ca8", "#d1495b"};

struct range {
    double low, high;
};

static void widen(struct range *r, double v)
{
    if (!isfinite(v)) return;
    if (v < r->low) r->low = v;
    if (v > r->high) r->high = v;
}

/* The step between about TICKS ticks: 1, 2 or 5 times a power of ten. */
static double tick_step(const struct range *r)
{
    double raw = (r->high - r->low) / TICKS, base = pow(10, floor(log10(raw)));
    return base * (raw / base < 1.5 ? 1 : raw / base < 3.5 ? 2 : raw / base < 7.5 ? 5 : 10);
}

static double x_pixel(const struct range *r, double x) { return LEFT + (x - r->low) / (r->high - r->low) * (WIDTH - LEFT - RIGHT); }
static double y_pixel(const struct range *r, double y) { return HEIGHT - BOTTOM - (y - r->low) / (r->high - r->low) * (HEIGHT - BOTTOM - TOP); }

static void draw_ticks(struct text *out, const struct range *x, const struct range *y)
{
    enum { MOST = 4 * TICKS }; /* bounds the loop: in a range as narrow as the last digit of its ends, adding a step changes nothing */
    double step = tick_step(y), from = ceil(y->low / step) * step;
    for (int i = 0; i < MOST && from + i * step <= y->high + step * 1e-9; i++) {
        const double v = from + i * step, at = y_pixel(y, v);
        text_printf(out, "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='#ddd'/><text x='%d' y='%.1f' text-anchor='end'>%.4g</text>\n",
                    LEFT, WIDTH - RIGHT, at, at, LEFT - 6, at + 4, fabs(v) < step * 1e-6 ? 0 : v);
    }
    step = tick_step(x), from = ceil(x->low / step) * step;
    for (int i = 0; i < MOST && from + i * step <= x->high + step * 1e-9; i++)
        text_printf(out, "<text x='%.1f' y='%d' text-anchor='middle'>%.6g</text>\n", x_pixel(x, from + i * step), HEIGHT - BOTTOM + 16, from + i * step);
}

/* Draws a polyline for each run of finite values, and a dot for a single point. */
static void draw_line(struct text *out, const struct series *s, const struct range *x, const struct range *y, const char *colour)
{
    bool open = false;
    for (uint32_t i = 0; i < s->y.n; i++) {
        bool here = isfinite(s->y.at[i]), next = i + 1 < s->y.n && isfinite(s->y.at[i + 1]);
        double px = x_pixel(x, s->x.at[i]), py = y_pixel(y, s->y.at[i]);
        if (here && !open && !next) text_printf(out, "<circle cx='%.1f' cy='%.1f' r='2.5' fill='%s'/>\n", px, py, colour);
        if (here && !open && next) text_printf(out, "<polyline fill='none' stroke='%s' stroke-width='1.5' points='", colour);
        if (here && (open || next)) text_printf(out, "%.1f,%.1f ", px, py);
        if (here && open && !next) text_printf(out, "'/>\n");
        open = here && next;
    }
}

void curve_draw(struct text *out, const char *title, const struct series *const *series, int n)
{
    struct range x = {INFINITY, -INFINITY}, y = {INFINITY, -INFINITY};
    for (int k = 0; k < n; k++)
        for (uint32_t i = 0; i < series[k]->y.n; i++) {
            if (!isfinite(series[k]->y.at[i])) continue;
            widen(&x, series[k]->x.at[i]);
            widen(&y, series[k]->y.at[i]);
        }
    if (!(x.low <= x.high)) return;
    if (x.low == x.high) x.high = x.low + 1;
    double margin = y.low == y.high ? fabs(y.low) * 0.1 + 1e-9 : (y.high - y.low) * 0.05;
    y.low -= margin;
    y.high += margin;
    text_printf(out, "<figure><svg viewBox='0 0 %d %d' width='%d' height='%d'>\n<text x='%d' y='15' class='title'>%s</text>\n", WIDTH, HEIGHT, WIDTH,
                HEIGHT, LEFT, title);
    draw_ticks(out, &x, &y);
    for (int k = 0; k < n; k++) draw_line(out, series[k], &x, &y, colours[k % 2]);
    for (int k = 0; k < n && n > 1; k++)
        text_printf(out, "<text x='%d' y='15' text-anchor='end' style='fill:%s'>%s</text>\n", WIDTH - RIGHT - 90 * (n - 1 - k), colours[k % 2], series[k]->name);
    text_printf(out, "</svg></figure>\n");
}
