/*
 * parquet_rows.c: see parquet_rows.h.
 *
 * A node is written by looking at the next entry of the first leaf below it: its definition level
 * says whether the node is there, and after an item of a list its repetition level says whether
 * another one follows. Each way through a node takes at least one entry of every leaf below it.
 * That all leaves are at the beginning of a row is checked once a row.
 */
#include "io/parquet_rows.h"

#include "io/json.h"
#include "base/dtype.h"

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

/* Writes the reference to an image; *done: the node has one, and its entries are taken. */
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

/* Writes a node that is there, without what its repetition says. */
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

/* Writes the items of a repeated node. In a list that is annotated, a repeated group of one child
 * is a wrapper around the item. */
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

/* Checks that all columns are at the beginning of a row; at the first row of a group they are. */
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

/* ---- A cursor in a column ---- */

/* Returns the bytes of a number; 0: the column has none. */
static uint32_t fixed_bytes(const struct parquet_node *n)
{
    const enum parquet_type t = n->type;
    return n->half                                     ? 2
           : t == PARQUET_INT32 || t == PARQUET_FLOAT  ? 4
           : t == PARQUET_INT64 || t == PARQUET_DOUBLE ? 8
                                                       : 0;
}

static uint32_t little(const uint8_t l[4])
{
    return l[0] | (uint32_t)l[1] << 8 | (uint32_t)l[2] << 16 | (uint32_t)l[3] << 24;
}

struct parquet_cursor *cursor_open(const struct parquet *p, uint32_t column, bool values, struct parquet_room *room)
{
    struct parquet_cursor *c = mem_alloc(sizeof *c);
    c->p = p;
    c->room = room;
    c->column = column;
    c->node = &p->nodes[p->columns[column]];
    c->values = values && !c->node->decimal &&
                (c->node->type == PARQUET_BYTES || c->node->type == PARQUET_BOOLEAN || fixed_bytes(c->node));
    c->ended = true;
    return c;
}

/* Takes n more bytes of the room, for *held. */
static int take_room(struct parquet_cursor *c, uint64_t n, uint64_t *held, struct error *e)
{
    if (n > c->room->most - c->room->used)
        return error_set(e, PL_USAGE,
                         "its dictionary, levels or value take %llu bytes, and the other columns %llu; expected at "
                         "most %llu MiB for all columns (data.sample_memory)",
                         (unsigned long long)(n + *held), (unsigned long long)(c->room->used - *held),
                         (unsigned long long)(c->room->most >> 20));
    c->room->used += n;
    *held += n;
    return PL_OK;
}

static void give_room(struct parquet_cursor *c, uint64_t *held)
{
    c->room->used -= *held;
    *held = 0;
}

static void forget_page(struct parquet_cursor *c)
{
    page_stream_close(&c->page);
    give_room(c, &c->of_page);
    for (int k = 0; k < 2; k++) mem_free(c->level_bytes[k]), c->level_bytes[k] = NULL;
    c->left = 0;
}

static void forget_dictionary(struct parquet_cursor *c)
{
    mem_free(c->words);
    mem_free(c->starts);
    give_room(c, &c->of_dictionary);
    c->words = NULL, c->starts = NULL, c->n_words = 0;
}

static void forget_value(struct parquet_cursor *c)
{
    text_free(&c->bytes);
    give_room(c, &c->of_value);
}

void cursor_close(struct parquet_cursor *c)
{
    if (!c) return;
    forget_page(c);
    forget_dictionary(c);
    forget_value(c);
    mem_free(c);
}

void cursor_start(struct parquet_cursor *c, uint32_t group)
{
    forget_page(c);
    forget_dictionary(c);
    forget_value(c);
    c->chunk = &c->p->groups[group].chunks[c->column];
    c->at = c->chunk->at;
    c->ended = c->peeked = false;
    c->item = 0;
}

/* --- pages ------------------------------------------------------------------------------------ */

/* Begins to read a page, in the room that the codec's library needs. */
static int open_page(struct parquet_cursor *c, const struct parquet_page *page, struct error *e)
{
    return take_room(c, page_stream_memory(c->chunk, page), &c->of_page, e)
               ? e->code
               : page_stream_open(&c->page, c->p, c->column, c->chunk, page, e);
}

static int find_words(struct parquet_cursor *c, uint64_t bytes, struct error *e)
{
    uint64_t at = 0;
    if (take_room(c, c->n_words * sizeof *c->starts, &c->of_dictionary, e)) return e->code;
    c->starts = mem_alloc(((size_t)c->n_words + 1) * sizeof *c->starts);
    for (uint32_t i = 0; i < c->n_words; i++) {
        if (bytes - at < 4 || little(c->words + at) > bytes - at - 4)
            return error_set(e, PL_USAGE, "its dictionary is damaged");
        c->starts[i] = (uint32_t)at;
        at += 4 + (uint64_t)little(c->words + at);
    }
    return PL_OK;
}

static int read_dictionary(struct parquet_cursor *c, const struct parquet_page *page, struct error *e)
{
    const uint32_t least = c->node->type == PARQUET_BYTES ? 4 : fixed_bytes(c->node);
    forget_dictionary(c);
    if (!c->values) return PL_OK;
    if (!least || page->entries > page->full_size / least) return error_set(e, PL_USAGE, "its dictionary is damaged");
    if (take_room(c, page->full_size, &c->of_dictionary, e)) return e->code;
    int rc = open_page(c, page, e);
    c->words = mem_alloc(page->full_size + 1ull);
    if (!rc) rc = codec_read(&c->page.codec, c->words, page->full_size, e);
    forget_page(c);
    c->n_words = page->entries;
    return rc || c->node->type != PARQUET_BYTES ? rc : find_words(c, page->full_size, e);
}

/* Copies the levels of version 1, which are in the stream before the values. */
static int read_levels(struct parquet_cursor *c, bool def, struct error *e)
{
    const uint8_t *at;
    uint64_t n;
    if (page_stream_levels(&c->page, def, &at, &n, e)) return e->code;
    if (!at && n) {
        if (take_room(c, n, &c->of_page, e)) return e->code;
        at = c->level_bytes[def] = mem_alloc(n);
        if (codec_read(&c->page.codec, c->level_bytes[def], n, e)) return e->code;
    }
    hybrid_open(&c->levels[def], at, NULL, n, bits_for(def ? c->node->def : c->node->rep));
    return PL_OK;
}

/* Reads what comes before the values: the bits of indices; the length of booleans that are runs. */
static int begin_values(struct parquet_cursor *c, struct error *e)
{
    const int32_t encoding = c->page.page.encoding;
    const bool dictionary = encoding == PARQUET_PLAIN_DICTIONARY || encoding == PARQUET_RLE_DICTIONARY,
               runs = encoding == PARQUET_RLE && c->node->type == PARQUET_BOOLEAN;
    uint8_t head[4] = {0};
    c->n_bits = 0;
    if (!c->values || encoding == PARQUET_PLAIN) return PL_OK;
    if (!dictionary && !runs)
        return error_set(e, PL_USAGE,
            "its values are encoded as %s, which is not read: write it again with pyarrow's usual encodings",
            parquet_encoding(encoding));
    /* no entry has a value */
    if (!c->page.codec.left) return hybrid_open(&c->index, NULL, &c->page.codec, 0, 0), PL_OK;
    if (codec_read(&c->page.codec, head, runs ? 4 : 1, e)) return e->code;
    if (dictionary && head[0] > 32) return error_set(e, PL_USAGE, "its indices have %u bits", head[0]);
    hybrid_open(&c->index, NULL, &c->page.codec, c->page.codec.left, runs ? 1 : head[0]);
    return PL_OK;
}

static int next_page(struct parquet_cursor *c, struct error *e)
{
    struct parquet_page page;
    bool more;
    while (!c->left) {
        forget_page(c);
        if (page_next(c->p, c->chunk, &c->at, &page, &more, e)) return e->code;
        c->ended = !more;
        if (!more) return PL_OK;
        if (page.dictionary) {
            if (read_dictionary(c, &page, e)) return e->code;
            continue;
        }
        if (open_page(c, &page, e) || read_levels(c, false, e) || read_levels(c, true, e) || begin_values(c, e))
            return e->code;
        c->left = page.entries;
    }
    return PL_OK;
}

/* --- entries ---------------------------------------------------------------------------------- */

/* Makes room for the value, of n bytes. */
static int begin_bytes(struct parquet_cursor *c, uint64_t n, struct error *e)
{
    c->bytes.n = 0;
    return n > c->of_value ? take_room(c, n - c->of_value, &c->of_value, e) : PL_OK;
}

static int about(const struct parquet_cursor *c, struct error *e)
{
    return error_prepend(e, "column %s", c->node->path);
}

int cursor_peek(struct parquet_cursor *c, struct error *e)
{
    if (c->peeked || c->ended) return PL_OK;
    c->rep = c->def = 0;
    if (next_page(c, e)) return about(c, e);
    if (c->ended) return PL_OK;
    if (c->node->rep && hybrid_next(&c->levels[0], &c->rep, e)) return about(c, e);
    if (c->node->def && hybrid_next(&c->levels[1], &c->def, e)) return about(c, e);
    if (!c->rep) c->item = 0;
    c->peeked = true;
    return PL_OK;
}

static void set_number(struct parquet_cursor *c, const uint8_t *at)
{
    int32_t w;
    float f;
    switch (c->node->type) {
    case PARQUET_INT32: memcpy(&w, at, 4), c->whole = w; break;
    case PARQUET_INT64: memcpy(&c->whole, at, 8); break;
    case PARQUET_FLOAT: memcpy(&f, at, 4), c->number = (double)f; break;
    case PARQUET_FIXED: c->number = (double)f16_to_f32((uint16_t)(at[0] | at[1] << 8)); break;
    default: memcpy(&c->number, at, 8);
    }
}

static int take_word(struct parquet_cursor *c, struct error *e)
{
    uint32_t i;
    if (hybrid_next(&c->index, &i, e)) return e->code;
    if (i >= c->n_words) return error_set(e, PL_USAGE, "an index is beyond the dictionary");
    if (c->node->type != PARQUET_BYTES) return set_number(c, c->words + (size_t)i * fixed_bytes(c->node)), PL_OK;
    const uint8_t *word = c->words + c->starts[i];
    if (begin_bytes(c, little(word), e)) return e->code;
    text_append(&c->bytes, (const char *)word + 4, little(word));
    return PL_OK;
}

static int take_boolean(struct parquet_cursor *c, struct error *e)
{
    uint32_t bit = 0;
    uint8_t b;
    if (c->page.page.encoding == PARQUET_RLE) {
        if (hybrid_next(&c->index, &bit, e)) return e->code;
    } else {
        if (!c->n_bits) {
            if (codec_read(&c->page.codec, &b, 1, e)) return e->code;
            c->bits = b, c->n_bits = 8;
        }
        bit = c->bits & 1;
        c->bits >>= 1;
        c->n_bits--;
    }
    c->whole = bit;
    return PL_OK;
}

static int take_bytes(struct parquet_cursor *c, struct error *e)
{
    uint8_t l[4];
    if (codec_read(&c->page.codec, l, 4, e)) return e->code;
    const uint32_t n = little(l);
    if (n > c->page.codec.left)
        return error_set(e, PL_USAGE, "a value claims %u bytes, which is more than its page has", n);
    if (begin_bytes(c, n, e)) return e->code;
    if (c->bytes.cap <= n) c->bytes.at = mem_resize(c->bytes.at, c->bytes.cap = n + 1ull);
    if (codec_read(&c->page.codec, c->bytes.at, n, e)) return e->code;
    c->bytes.at[c->bytes.n = n] = 0;
    page_stream_release(&c->page, codec_at(&c->page.codec));
    return PL_OK;
}

static int take_value(struct parquet_cursor *c, struct error *e)
{
    uint8_t fixed[8];
    if (c->node->type == PARQUET_BOOLEAN) return take_boolean(c, e);
    if (c->page.page.encoding != PARQUET_PLAIN) return take_word(c, e);
    if (c->node->type == PARQUET_BYTES) return take_bytes(c, e);
    if (codec_read(&c->page.codec, fixed, fixed_bytes(c->node), e)) return e->code;
    set_number(c, fixed);
    return PL_OK;
}

int cursor_take(struct parquet_cursor *c, bool *there, struct error *e)
{
    if (cursor_peek(c, e)) return e->code;
    if (c->ended) return error_set(e, PL_USAGE, "it has fewer values than its row group"), about(c, e);
    *there = c->def == c->node->def;
    c->left--;
    c->item++;
    c->peeked = false;
    return *there && c->values && take_value(c, e) ? about(c, e) : PL_OK;
}

uint64_t cursor_empty(const struct parquet_cursor *c)
{
    if (c->peeked || c->ended || c->rep || c->def == c->node->def) return 0;
    uint64_t n = c->left;
    for (int k = 0; k < 2; k++)
        if (k || c->node->rep) n = c->levels[k].packed ? 0 : min_u64(n, c->levels[k].run);
    return n;
}

void cursor_skip(struct parquet_cursor *c, uint64_t n)
{
    for (int k = 0; k < 2; k++)
        if (k || c->node->rep) c->levels[k].run -= n;
    c->left -= (uint32_t)n;
}
