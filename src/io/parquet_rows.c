/*
 * parquet_rows.c: see parquet_rows.h.
 *
 * A node is written by looking at the next entry of the first leaf below it: its definition level
 * says whether the node is there, and after an item of a list its repetition level says whether
 * another one follows. Each way through a node takes at least one entry of every leaf below it.
 * That all leaves are at the beginning of a row is checked once a row.
 */
#include "io/parquet_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"

struct writing {
    const struct parquet *p;
    struct parquet_cursor **cursors;
    uint64_t row, most;
    struct json_writer w;
    struct error *e;
};

static int write_node(struct writing *x, uint32_t node, const char *key);

/* Takes the one entry that each leaf below a node has where the node, or an item of it, is not
 * there. */
static int drop(struct writing *x, uint32_t node)
{
    const struct parquet_node *n = &x->p->nodes[node];
    bool there;
    for (uint32_t i = node; i < n->end; i++)
        if (x->p->nodes[i].leaf && cursor_take(x->cursors[x->p->nodes[i].column], &there, x->e)) return x->e->code;
    return PL_OK;
}

static int write_value(struct writing *x, const struct parquet_node *n, const char *key)
{
    struct parquet_cursor *c = x->cursors[n->column];
    bool there;
    if (cursor_take(c, &there, x->e)) return x->e->code;
    if (x->w.out->n > x->most || (there && c->values && n->type == PARQUET_BYTES &&
                                  json_quoted_bytes(c->bytes.at, c->bytes.n) > x->most - x->w.out->n))
        return error_set(x->e, PL_USAGE, "the row has more than %llu MiB of text (data.sample_memory)",
                         (unsigned long long)(x->most >> 20));
    if (!there || !c->values) json_put_null(&x->w, key);
    else if (n->type == PARQUET_BYTES) json_put_bytes(&x->w, key, c->bytes.n ? c->bytes.at : "", c->bytes.n);
    else if (n->type == PARQUET_BOOLEAN) json_put_bool(&x->w, key, c->whole);
    else if (n->type == PARQUET_INT32 || n->type == PARQUET_INT64) json_put_int(&x->w, key, c->whole);
    else json_put_number(&x->w, key, c->number);
    return PL_OK;
}

/* The reference to an image; *done: the node has one, and its entries are taken. */
static int write_image(struct writing *x, uint32_t node, const char *key, bool *done)
{
    const struct parquet_node *n = &x->p->nodes[node];
    bool many;
    const int64_t leaf = n->list ? -1 : parquet_image_leaf(x->p, node, &many);
    *done = false;
    if (leaf < 0) return PL_OK;
    struct parquet_cursor *c = x->cursors[leaf];
    if (cursor_peek(c, x->e)) return x->e->code;
    *done = !c->ended && c->def == c->node->def;
    if (!*done) return PL_OK;
    json_put_format(&x->w, key, PARQUET_REFERENCE "%s/%llu/%lld/%u", x->p->path, (unsigned long long)x->row + 1,
                    (long long)leaf, c->item + 1);
    return drop(x, node);
}

/* A node that is there, without what its repetition says. */
static int write_one(struct writing *x, uint32_t node, const char *key)
{
    const struct parquet_node *n = &x->p->nodes[node];
    bool done;
    if (write_image(x, node, key, &done)) return x->e->code;
    if (done) return PL_OK;
    if (n->leaf) return write_value(x, n, key);
    json_begin_map(&x->w, key);
    for (uint32_t i = node + 1; i < n->end; i = x->p->nodes[i].end)
        if (write_node(x, i, x->p->nodes[i].name)) return x->e->code;
    json_end(&x->w);
    return PL_OK;
}

/* The items of a repeated node. In a list that is annotated, a repeated group of one child is a
 * wrapper around the item. */
static int write_items(struct writing *x, uint32_t node, bool annotated, const char *key)
{
    const struct parquet_node *n = &x->p->nodes[node];
    struct parquet_cursor *first = x->cursors[n->column];
    const bool wrapped = annotated && !n->leaf && n->end > node + 1 && x->p->nodes[node + 1].end == n->end;
    json_begin_list(&x->w, key);
    if (cursor_peek(first, x->e)) return x->e->code;
    if (first->def < n->def) {
        if (drop(x, node)) return x->e->code;
    } else {
        do {
            if (wrapped ? write_node(x, node + 1, NULL) : write_one(x, node, NULL)) return x->e->code;
            if (cursor_peek(first, x->e)) return x->e->code;
        } while (!first->ended && first->rep == n->rep);
    }
    json_end(&x->w);
    return PL_OK;
}

static int write_node(struct writing *x, uint32_t node, const char *key)
{
    const struct parquet_node *n = &x->p->nodes[node];
    struct parquet_cursor *first = x->cursors[n->column];
    if (cursor_peek(first, x->e)) return x->e->code;
    if (n->optional && first->def < n->def) {
        json_put_null(&x->w, key);
        return drop(x, node);
    }
    if (n->list) return write_items(x, node + 1, true, key);
    return n->repeated ? write_items(x, node, false, key) : write_one(x, node, key);
}

/* --- rows ------------------------------------------------------------------------------------- */

void parquet_rows_open(struct parquet_rows *r, const struct parquet *p, bool (*wanted)(const char *name), uint64_t most)
{
    *r = (struct parquet_rows){.p = p, .room = {.most = most}, .cursors = mem_alloc(p->n_columns * sizeof *r->cursors)};
    for (uint32_t i = 1; i < p->n_nodes; i = p->nodes[i].end)
        for (uint32_t k = i; k < p->nodes[i].end && wanted(p->nodes[i].name); k++) {
            const struct parquet_node *n = &p->nodes[k];
            if (n->leaf) r->cursors[n->column] = cursor_open(p, n->column, !n->blob, &r->room);
        }
}

void parquet_rows_close(struct parquet_rows *r)
{
    for (uint32_t i = 0; r->p && i < r->p->n_columns; i++) cursor_close(r->cursors[i]);
    mem_free(r->cursors);
    *r = (struct parquet_rows){0};
}

/* Whether all columns are at the beginning of a row; of the first row of a group they are. */
static int check_begin(const struct parquet_rows *r, struct error *e)
{
    for (uint32_t i = 0; i < r->p->n_columns; i++) {
        struct parquet_cursor *c = r->cursors[i];
        if (!c) continue;
        if (cursor_peek(c, e)) return e->code;
        if (c->ended || c->rep)
            return error_set(e, PL_USAGE, "column %s has more or fewer values than the other columns", c->node->path);
    }
    return PL_OK;
}

static int write_row(struct parquet_rows *r, struct text *out, struct error *e)
{
    struct writing x = {
        .p = r->p, .cursors = r->cursors, .row = r->row, .most = r->room.most, .w = {.out = out}, .e = e};
    if (check_begin(r, e)) return e->code;
    json_begin_map(&x.w, NULL);
    for (uint32_t i = 1; i < r->p->n_nodes; i = r->p->nodes[i].end)
        if (r->cursors[r->p->nodes[i].column] && write_node(&x, i, r->p->nodes[i].name)) return e->code;
    json_end(&x.w);
    return PL_OK;
}

/* Passes over the rows that are like the last one, in which no column has a value; returns their
 * number. */
static uint64_t pass_empty(struct parquet_rows *r)
{
    uint64_t n = r->p->groups[r->group].rows - r->group_row;
    for (uint32_t i = 0; i < r->p->n_columns; i++)
        if (r->cursors[i]) n = min_u64(n, cursor_empty(r->cursors[i]));
    for (uint32_t i = 0; i < r->p->n_columns && n; i++)
        if (r->cursors[i]) cursor_skip(r->cursors[i], n);
    return n;
}

int parquet_rows_next(struct parquet_rows *r, struct text *out, bool *more, struct error *e)
{
    out->n = 0;
    *more = r->row < r->p->rows;
    if (!*more) return PL_OK;
    while (r->group_row == r->p->groups[r->group].rows) r->group++, r->group_row = 0;
    if (!r->group_row)
        for (uint32_t i = 0; i < r->p->n_columns; i++)
            if (r->cursors[i]) cursor_start(r->cursors[i], r->group);
    if (write_row(r, out, e)) return error_prepend(e, "%s:%llu", r->p->path, (unsigned long long)r->row + 1);
    r->group_row++;
    r->times = 1 + pass_empty(r);
    r->group_row += r->times - 1;
    r->row += r->times;
    return parquet_check(r->p, e);
}

bool parquet_reference(const char *reference, char *path, size_t room, struct parquet_cell *out)
{
    unsigned long long row;
    unsigned column, item;
    int end = 0;
    if (strncmp(reference, PARQUET_REFERENCE, strlen(PARQUET_REFERENCE)) ||
        (size_t)snprintf(path, room, "%s", reference + strlen(PARQUET_REFERENCE)) >= room)
        return false;
    char *at = path + strlen(path);
    for (int parts = 0; at > path && parts < 3;)
        if (*--at == '/') parts++;
    if (sscanf(at, "/%llu/%u/%u%n", &row, &column, &item, &end) != 3 || at[end] || !row || !item) return false;
    *at = 0;
    *out = (struct parquet_cell){column, row - 1, item - 1};
    return true;
}
