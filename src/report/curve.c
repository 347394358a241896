/*
 * curve.c: see page.h.
 *
 *     top    |  .--.
 *     middle |-'    '--.___      the frame is WIDTH x HEIGHT, the ticks are round numbers
 *     bottom +--------------
 *             0    100   200
 *                     step
 *
 * Texts and colours are the page's (page.c).
 */
#include "report/page.h"

#include <math.h>

enum { WIDTH = 460, HEIGHT = 220, LEFT = 62, BOTTOM = 42, TOP = 8, RIGHT = 14, TICKS = 4, POINTS = 1000, MARKED = 40 };

static const char *const classes[] = {"one", "two"};

struct axis {
    double low, high;
};

static void widen(struct axis *r, double v)
{
    if (!isfinite(v)) return;
    if (v < r->low) r->low = v;
    if (v > r->high) r->high = v;
}

/* Returns the step between about TICKS ticks: 1, 2 or 5 times a power of ten. */
static double tick_step(const struct axis *r)
{
    double raw = (r->high - r->low) / TICKS, base = pow(10, floor(log10(raw)));
    return base * (raw / base < 1.5 ? 1 : raw / base < 3.5 ? 2 : raw / base < 7.5 ? 5 : 10);
}

static double x_pixel(const struct axis *r, double x)
{
    return LEFT + (x - r->low) / (r->high - r->low) * (WIDTH - LEFT - RIGHT);
}
static double y_pixel(const struct axis *r, double y)
{
    return HEIGHT - BOTTOM - (y - r->low) / (r->high - r->low) * (HEIGHT - BOTTOM - TOP);
}

/* Prints the number at a tick, with the digits that tell it from its neighbours. Only very small
 * and very large numbers, such as learning rates, have an exponent. */
static char *tick_text(double v, double step, char out[32])
{
    const int digits = (int)fmax(0, -floor(log10(step) + 1e-9));
    if (fabs(v) < step * 1e-6) return strcpy(out, "0");
    if (digits > 3 || fabs(v) >= 1e6) snprintf(out, 32, "%.4g", v);
    else snprintf(out, 32, "%.*f", digits, v);
    return out;
}

static void draw_ticks(struct text *out, const struct axis *x, const struct axis *y)
{
    /* bounds the loop: in a range as narrow as the last digit of its ends, adding a step changes
     * nothing */
    enum { MOST = 4 * TICKS };
    char number[32];
    double step = tick_step(y), from = ceil(y->low / step) * step;
    for (int i = 0; i < MOST && from + i * step <= y->high + step * 1e-9; i++) {
        const double v = from + i * step, at = y_pixel(y, v);
        text_printf(out,
                    "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f'/><text x='%d' y='%.1f' text-anchor='end'>%s</text>\n",
                    LEFT, WIDTH - RIGHT, at, at, LEFT - 6, at + 4, tick_text(v, step, number));
    }
    step = tick_step(x), from = ceil(x->low / step) * step;
    for (int i = 0; i < MOST && from + i * step <= x->high + step * 1e-9; i++)
        text_printf(out, "<text x='%.1f' y='%d' text-anchor='middle'>%s</text>\n", x_pixel(x, from + i * step),
                    HEIGHT - BOTTOM + 16, tick_text(from + i * step, step, number));
}

/* Selects the points that are drawn. Above POINTS, each group of neighbours gives its lowest and
 * its highest finite one, so that a short peak stays visible; a gap within a group is lost. */
static void thin(const struct series *s, struct series *out)
{
    const uint32_t n = s->y.n, each = n <= POINTS ? 1 : (uint32_t)ceil_div(2 * (int64_t)n, POINTS);
    for (uint32_t from = 0; from < n; from += each) {
        uint32_t low = from, high = from;
        for (uint32_t i = from; i < n && i < from + each; i++) {
            if (!isfinite(s->y.at[i])) continue;
            if (!isfinite(s->y.at[low]) || s->y.at[i] < s->y.at[low]) low = i;
            if (!isfinite(s->y.at[high]) || s->y.at[i] > s->y.at[high]) high = i;
        }
        const uint32_t first = low < high ? low : high, last = low < high ? high : low;
        vec_push(&out->x, s->x.at[first]);
        vec_push(&out->y, s->y.at[first]);
        if (first == last) continue;
        vec_push(&out->x, s->x.at[last]);
        vec_push(&out->y, s->y.at[last]);
    }
}

/* Draws a polyline for each run of finite values, and dots for a single point and for a series of
 * few, such as evaluations. */
static void draw_line(struct text *out, const struct series *all, const struct axis *x, const struct axis *y)
{
    struct series s = {0};
    bool open = false;
    thin(all, &s);
    for (uint32_t i = 0; i < s.y.n; i++) {
        bool here = isfinite(s.y.at[i]), next = i + 1 < s.y.n && isfinite(s.y.at[i + 1]);
        double px = x_pixel(x, s.x.at[i]), py = y_pixel(y, s.y.at[i]);
        if (here && !open && next) text_printf(out, "<polyline points='");
        if (here && (open || next)) text_printf(out, "%.1f,%.1f ", px, py);
        if (here && open && !next) text_printf(out, "'/>\n");
        open = here && next;
    }
    for (uint32_t i = 0; i < s.y.n; i++) {
        const bool single = !(i && isfinite(s.y.at[i - 1])) && !(i + 1 < s.y.n && isfinite(s.y.at[i + 1]));
        if (isfinite(s.y.at[i]) && (single || s.y.n <= MARKED))
            text_printf(out, "<circle cx='%.1f' cy='%.1f' r='%s'/>\n", x_pixel(x, s.x.at[i]), y_pixel(y, s.y.at[i]),
                        single ? "3" : "2.5");
    }
    vec_free(&s.x);
    vec_free(&s.y);
}

void curve_draw(struct text *out, const char *title, const char *x_name, const struct series *const *series, int n)
{
    struct axis x = {INFINITY, -INFINITY}, y = {INFINITY, -INFINITY};
    for (int k = 0; k < n; k++)
        for (uint32_t i = 0; i < series[k]->y.n; i++) {
            if (!isfinite(series[k]->y.at[i])) continue;
            widen(&x, series[k]->x.at[i]);
            widen(&y, series[k]->y.at[i]);
        }
    if (!(x.low <= x.high)) return;
    if (x.low == x.high) x.high = x.low + 1;
    if (y.low == y.high && !y.low) y.high = 1; /* a constant 0 */
    double margin = y.low == y.high ? fabs(y.low) * 0.1 : (y.high - y.low) * 0.05;
    y.low -= margin;
    y.high += margin;
    text_printf(out, "<figure class='chart'><figcaption>%s", title);
    for (int k = 0; k < n && n > 1; k++) text_printf(out, "<b class='%s'>%s</b>", classes[k % 2], series[k]->name);
    text_printf(out, "</figcaption><svg viewBox='0 0 %d %d'>\n", WIDTH, HEIGHT);
    draw_ticks(out, &x, &y);
    text_printf(out, "<text x='%d' y='%d' text-anchor='middle'>%s</text>\n", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6,
                x_name);
    for (int k = 0; k < n; k++) {
        text_printf(out, "<g class='%s'>", classes[k % 2]);
        draw_line(out, series[k], &x, &y);
        text_printf(out, "</g>\n");
    }
    text_printf(out, "</svg></figure>\n");
}
