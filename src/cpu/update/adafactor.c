/*
 * adafactor.c: ADAFACTOR (Shazeer and Stern, 2018), with a given learning rate, without a first
 * moment and without scaling by the weight's size.
 *
 *     q = g^2 + eps                          beta = 1 - t^-0.8
 *     r = beta r + (1-beta) mean of q over columns      [...,R]
 *     c = beta c + (1-beta) mean of q over rows         [...,C]
 *     u = g / sqrt(r c / mean of r)          not factored: u = g / sqrt(v), v by the same beta
 *     u /= max(1, root mean square of u)
 *     p = p (1 - lr wd) - lr u
 *
 * u is never stored: it is computed from its factors when its size is summed, and recomputed when p
 * is updated. Sums are by rows and tiles, added in order: threads change no bit.
 *
 *     workspace   a double per row (or tile): its sum of u^2 | a float per row | a float per column
 */
#include "cpu/update/update.h"


struct factor {
    const struct launch *l;
    struct matrices x;
    bool factored;
    int64_t rows;            /* N R; not factored: tiles */
    float beta, clip;
    double *sums;            /* by row: sum of u^2 */
    float *row, *column;     /* factors of u */
};

static bool adafactor_match(const struct query *q)
{
    const struct tensor *c = query_in(q, ADAFACTOR_COLUMNS);
    return tensor_is(q->in[ADAFACTOR_ROWS], DT_F32) && (!c || tensor_is(c, DT_F32)) && update_match(q, adafactor_at);
}

static uint64_t adafactor_workspace(const struct query *q)
{
    const struct matrices x = matrices_of(q->in[0]->rank, q->in[0]->dim);
    if (!query_in(q, ADAFACTOR_COLUMNS)) return (uint64_t)row_tiles(tensor_elements(q->in[0])) * sizeof(double);
    return (uint64_t)(x.N * x.R) * (sizeof(double) + sizeof(float)) + (uint64_t)(x.N * x.C) * sizeof(float);
}

/* --- the second moment ---------------------------------------------------------------- */

/* Means over columns: one value per row. */
static void average_rows(const struct factor *f)
{
    float *r = f->l->in[ADAFACTOR_ROWS].data;
#pragma omp parallel for num_threads(f->l->threads) schedule(static) if (f->rows * f->x.C > 16384)
    for (int64_t row = 0; row < f->rows; row++) {
        double sum = 0;
        for (int64_t at = 0; at < f->x.C; at += TILE) {
            float scratch[TILE];
            const int n = row_tile(f->x.C - at);
            const float *g = row_view(&f->l->in[1], row * f->x.C + at, n, scratch);
            for (int i = 0; i < n; i++) {
                float d = g[i] * f->clip;
                sum += (double)(d * d) + ADAFACTOR_EPS;
            }
        }
        r[row] = adafactor_moment(r[row], (float)(sum / (double)f->x.C), f->beta);
    }
}

/* Means over rows: a tile of columns at a time. */
static void average_columns(const struct factor *f)
{
    const int64_t tiles = row_tiles(f->x.C);
    float *c = f->l->in[ADAFACTOR_COLUMNS].data;
#pragma omp parallel for num_threads(f->l->threads) schedule(static) if (f->rows * f->x.C > 16384)
    for (int64_t k = 0; k < f->x.N * tiles; k++) {
        const int64_t matrix = k / tiles, at = k % tiles * TILE;
        const int n = row_tile(f->x.C - at);
        float scratch[TILE], *column = c + matrix * f->x.C + at;
        double sum[TILE] = {0};
        for (int64_t row = 0; row < f->x.R; row++) {
            const float *g = row_view(&f->l->in[1], (matrix * f->x.R + row) * f->x.C + at, n, scratch);
            for (int i = 0; i < n; i++) {
                float d = g[i] * f->clip;
                sum[i] += (double)(d * d) + ADAFACTOR_EPS;
            }
        }
        for (int i = 0; i < n; i++) {
            column[i] = adafactor_moment(column[i], (float)(sum[i] / (double)f->x.R), f->beta);
            f->column[matrix * f->x.C + at + i] = 1 / sqrtf(column[i]);
        }
    }
}

static void make_row_factors(const struct factor *f)
{
    const float *r = f->l->in[ADAFACTOR_ROWS].data;
    for (int64_t matrix = 0; matrix < f->x.N; matrix++) {
        double mean = 0;
        for (int64_t row = matrix * f->x.R; row < (matrix + 1) * f->x.R; row++) mean += r[row];
        mean /= (double)f->x.R;
        for (int64_t row = matrix * f->x.R; row < (matrix + 1) * f->x.R; row++)
            f->row[row] = (float)(1 / sqrt(r[row] / mean));
    }
}

static void average_elements(const struct factor *f, float *v, const float *g, int n)
{
#pragma omp simd
    for (int i = 0; i < n; i++) {
        v[i] = adafactor_moment(v[i], adafactor_square(g[i] * f->clip), f->beta);
    }
}

/* --- the update -------------------------------------------------------------------------- */

/* Computes u of elements at .. at+n, all in one row. */
static void make_update(const struct factor *f, int64_t row, int64_t at, int n, float *u)
{
    float scratch[TILE];
    const float *g = row_view(&f->l->in[1], at, n, scratch);
    if (!f->factored) {
        const float *v = (const float *)f->l->in[ADAFACTOR_ROWS].data + at;
#pragma omp simd
        for (int i = 0; i < n; i++) u[i] = adafactor_whole(v[i], g[i], f->clip);
        return;
    }
    const float *column = f->column + row / f->x.R * f->x.C + (at - row * f->x.C), by = f->row[row];
#pragma omp simd
    for (int i = 0; i < n; i++) u[i] = adafactor_factored(by, column[i], g[i], f->clip);
}

/* Returns the elements of a row; not factored: of a tile. */
static int64_t row_width(const struct factor *f, int64_t row)
{
    return f->factored ? f->x.C : min_i64(TILE, operand_elements(&f->l->in[0]) - row * TILE);
}
static int64_t row_begin(const struct factor *f, int64_t row) { return row * (f->factored ? f->x.C : TILE); }

/* Returns the divisor of u. If the moments are not factored, they are updated first. */
static double size_of_update(const struct factor *f)
{
    const int64_t elements = operand_elements(&f->l->in[0]);
#pragma omp parallel for num_threads(f->l->threads) schedule(static) if (elements > 16384)
    for (int64_t row = 0; row < f->rows; row++) {
        double sum = 0;
        for (int64_t at = 0, width = row_width(f, row); at < width; at += TILE) {
            float u[TILE], scratch[TILE];
            const int n = row_tile(width - at);
            const int64_t from = row_begin(f, row) + at;
            if (!f->factored)
                average_elements(f, (float *)f->l->in[ADAFACTOR_ROWS].data + from,
                                 row_view(&f->l->in[1], from, n, scratch), n);
            make_update(f, row, from, n, u);
            for (int i = 0; i < n; i++) sum += (double)u[i] * u[i];
        }
        f->sums[row] = sum;
    }
    double sum = 0;
    for (int64_t row = 0; row < f->rows; row++) sum += f->sums[row];
    return fmax(1, sqrt(sum / (double)elements) / ADAFACTOR_CLIP);
}

static void apply(const struct factor *f, float keep, float rate)
{
#pragma omp parallel for num_threads(f->l->threads) schedule(static) if (operand_elements(&f->l->in[0]) > 16384)
    for (int64_t row = 0; row < f->rows; row++)
        for (int64_t at = 0, width = row_width(f, row); at < width; at += TILE) {
            float u[TILE], scratch[TILE];
            const int n = row_tile(width - at);
            const int64_t from = row_begin(f, row) + at;
            make_update(f, row, from, n, u);
            float *p = update_view(&f->l->in[0], from, n, scratch);
#pragma omp simd
            for (int i = 0; i < n; i++) p[i] = adafactor_weight(p[i], u[i], keep, rate);
            update_store(f->l, adafactor_at, from, n, p);
        }
}

static void adafactor_run(const struct launch *l)
{
    if (update_is_off(l, adafactor_at)) return;
    struct factor f = {.l = l, .x = matrices_of(l->in[0].rank, l->in[0].dim),
                       .factored = launch_has(l, ADAFACTOR_COLUMNS),
                       .beta =
                           (float)adafactor_beta(((const struct step_block *)l->in[adafactor_at.step].data)->adam_t),
                       .clip = update_clip(l, adafactor_at),
                       .sums = l->work};
    f.rows = f.factored ? f.x.N * f.x.R : row_tiles(operand_elements(&l->in[0]));
    f.row = (float *)(f.sums + f.rows);
    f.column = f.row + f.rows;
    if (f.factored) {
        average_rows(&f);
        average_columns(&f);
        make_row_factors(&f);
    }
    const double lr = update_rate(l, adafactor_at), size = size_of_update(&f);
    apply(&f, decay_keep(lr, l->attr->adamw.weight_decay), (float)(lr / size));
}

CPU_KERNEL_WORK(ADAFACTOR, adafactor);
