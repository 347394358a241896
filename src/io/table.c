/*
 * table.c: see table.h.
 */
#include "io/table.h"

#include <inttypes.h>

/* --- JSON --------------------------------------------------------------------------------- */

static void put_numbers(struct json_writer *w, const char *key, const struct cell *c)
{
    json_begin_list(w, key);
    for (size_t i = 0; i < c->n; i++)
        if (c->kind == CELL_INTS) json_put_int(w, NULL, ((const int64_t *)c->of)[i]);
        else json_put_number(w, NULL, ((const double *)c->of)[i]);
    json_end(w);
}

static void put_cell(struct json_writer *w, const char *key, const struct cell *c)
{
    switch (c->kind) {
    case CELL_NONE: return;
    case CELL_NULL: json_put_null(w, key); return;
    case CELL_TEXT: json_put_string(w, key, c->text); return;
    case CELL_INT: json_put_int(w, key, c->i); return;
    case CELL_UINT: json_put_uint(w, key, c->u); return;
    case CELL_NUMBER: json_put_number(w, key, c->x); return;
    case CELL_BOOL: json_put_bool(w, key, c->b); return;
    case CELL_TABLE: table_json(c->of, w, key); return;
    case CELL_CALL: c->call(w, c->of); return;
    case CELL_INTS: case CELL_NUMBERS: put_numbers(w, key, c); return;
    case CELL_MAP:
        json_begin_map(w, key);
        facts_put(w, c->of, c->n);
        json_end(w);
    }
}

void facts_put(struct json_writer *w, const struct fact *facts, size_t n)
{
    for (size_t i = 0; i < n; i++) put_cell(w, facts[i].key, &facts[i].value);
}

void facts_print(int indent, const struct fact *facts, size_t n)
{
    struct text out = {0};
    struct json_writer w = {.out = &out, .indent = indent};
    put_cell(&w, NULL, &(struct cell){CELL_MAP, .of = facts, .n = n});
    printf("%s\n", out.at);
    text_free(&out);
}

void table_json(const struct report_table *t, struct json_writer *w, const char *key)
{
    json_begin_list(w, key);
    for (uint32_t i = 0; i < t->rows.n; i++) {
        if (t->rows.at[i].text_only) continue;
        json_begin_map(w, NULL);
        for (uint32_t k = 0; k < t->n_columns; k++) {
            const struct cell *c = &t->rows.at[i].cells[k];
            if (t->columns[k].key || c->kind == CELL_CALL) put_cell(w, t->columns[k].key, c);
        }
        json_end(w);
    }
    json_end(w);
}

/* --- rows --------------------------------------------------------------------------------- */

struct report_row *table_add(struct report_table *t, const struct cell *cells, size_t n)
{
    CHECK(n <= t->n_columns, "%zu cells, %u columns", n, t->n_columns);
    struct report_row row = {.cells = bump_alloc(&t->memory, t->n_columns * sizeof *row.cells)};
    for (uint32_t k = 0; k < t->n_columns; k++) {
        row.cells[k] = k < n ? cells[k] : (struct cell){0};
        if (row.cells[k].kind == CELL_TEXT) row.cells[k].text = bump_format(&t->memory, "%s", row.cells[k].text);
    }
    vec_push(&t->rows, row);
    return &t->rows.at[t->rows.n - 1];
}

void table_note(struct report_table *t, struct report_row *r, const char *note)
{
    r->note = bump_format(&t->memory, "%s", note);
}

void table_free(struct report_table *t)
{
    vec_free(&t->rows);
    bump_free(&t->memory);
}

/* --- text and HTML -------------------------------------------------------------------------- */

static double cell_value(const struct cell *c)
{
    return c->kind == CELL_INT ? (double)c->i : c->kind == CELL_UINT ? (double)c->u : c->x;
}

/* Returns a value as text, in `room` or where it lies. */
static const char *cell_print(const struct report_column *column, const struct cell *c, char room[64])
{
    const char *format = column->format ? column->format : "";
    char short_room[32];
    room[0] = 0;
    if (c->kind == CELL_TEXT) return c->text;
    if (c->kind == CELL_BOOL) return c->b ? "yes" : "no";
    if (c->kind != CELL_INT && c->kind != CELL_UINT && c->kind != CELL_NUMBER) return room;
    const double x = cell_value(c);
    if (!strcmp(format, "bytes")) {
        const uint64_t bytes = c->kind == CELL_INT ? (uint64_t)llabs(c->i) : c->kind == CELL_UINT ? c->u : (uint64_t)x;
        snprintf(room, 64, "%s%s", x < 0 ? "-" : "", size_print(bytes, short_room));
    } else if (!strcmp(format, "time")) return duration_print(x, room);
    else if (!strcmp(format, "count")) return count_print((uint64_t)x, room);
    else if (*format) snprintf(room, 64, format, x * (column->scale != 0 ? column->scale : 1));
    else if (c->kind == CELL_INT) snprintf(room, 64, "%" PRId64, c->i);
    else if (c->kind == CELL_UINT) snprintf(room, 64, "%" PRIu64, c->u);
    else snprintf(room, 64, "%g", x);
    return room;
}

/* Returns the columns that a text in UTF-8 takes. */
static int width_of(const char *s)
{
    int n = 0;
    for (; *s; s++) n += (*s & 0xc0) != 0x80;
    return n;
}

/* Reports whether a row is among the first `most`, which `shown` counts. */
static bool is_shown(const struct report_row *r, uint32_t most, uint32_t *shown)
{
    return r->text_only || !most || (*shown)++ < most;
}

/* Returns the first column that text shows. */
static uint32_t first_column(const struct report_table *t)
{
    uint32_t k = 0;
    while (k < t->n_columns && !t->columns[k].title) k++;
    return k;
}

/* Appends the cells of a row; r NULL: the titles. */
static void put_line(const struct report_table *t, const struct report_row *r, const int *width, int indent,
                     struct text *out)
{
    char room[64];
    int blanks = indent; /* before the next text: no line ends in blanks */
    for (uint32_t k = first_column(t); k < t->n_columns; k++) {
        const struct report_column *c = &t->columns[k];
        const bool note = r && r->note && k > first_column(t), left = note || !c->format;
        if (!c->title) continue;
        const char *s = note ? r->note : r ? cell_print(c, &r->cells[k], room) : c->title;
        const int pad = note ? 0 : width[k] - width_of(s);
        if (*s) text_printf(out, "%*s%s", blanks + (left ? 0 : pad), "", s);
        blanks = (*s ? 0 : blanks) + (*s && !left ? 0 : pad) + 2;
        if (note) break;
    }
    text_printf(out, "\n");
}

void table_print(const struct report_table *t, int indent, uint32_t most, struct text *out)
{
    int *width = mem_alloc((t->n_columns + 1) * sizeof *width);
    char room[64];
    bool titled = false;
    for (uint32_t k = first_column(t); k < t->n_columns; k++) {
        titled |= t->columns[k].title && *t->columns[k].title;
        if (t->columns[k].title) width[k] = width_of(t->columns[k].title);
        for (uint32_t i = 0, shown = 0; i < t->rows.n && t->columns[k].title; i++) {
            const struct report_row *r = &t->rows.at[i];
            if (is_shown(r, most, &shown) && (!r->note || k == first_column(t)))
                width[k] = (int)max_i64(width[k], width_of(cell_print(&t->columns[k], &r->cells[k], room)));
        }
    }
    if (titled) put_line(t, NULL, width, indent, out);
    for (uint32_t i = 0, shown = 0; i < t->rows.n; i++)
        if (is_shown(&t->rows.at[i], most, &shown)) put_line(t, &t->rows.at[i], width, indent, out);
    mem_free(width);
}

void html_escape(struct text *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '<') text_printf(out, "&lt;");
        else if (*s == '>') text_printf(out, "&gt;");
        else if (*s == '&') text_printf(out, "&amp;");
        else if (*s == '\'') text_printf(out, "&#39;");
        else text_append(out, s, 1);
    }
}

void table_html(const struct report_table *t, const char *class, uint32_t most, struct text *out)
{
    char room[64];
    text_printf(out, "<div class='wide'><table%s%s%s>", *class ? " class='" : "", class, *class ? "'" : "");
    for (uint32_t i = 0, shown = 0; i <= t->rows.n; i++) {
        const struct report_row *r = i ? &t->rows.at[i - 1] : NULL;
        if (r && !is_shown(r, most, &shown)) continue;
        text_printf(out, "<tr>");
        for (uint32_t k = 0; k < t->n_columns; k++) {
            if (!t->columns[k].title) continue;
            text_printf(out, r ? "<td>" : "<th>");
            html_escape(out, r ? cell_print(&t->columns[k], &r->cells[k], room) : t->columns[k].title);
            text_printf(out, r ? "</td>" : "</th>");
        }
        text_printf(out, "</tr>\n");
    }
    text_printf(out, "</table></div>\n");
}
