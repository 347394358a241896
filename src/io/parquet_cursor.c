/*
 * parquet_cursor.c: see parquet_cursor.h.
 */
#include "io/parquet_cursor.h"

#include <string.h>

enum { DICTIONARY_MOST = 256 << 20 };

static uint32_t fixed_bytes(enum parquet_type t) { return t == PARQUET_INT32 || t == PARQUET_FLOAT ? 4 : t == PARQUET_INT64 || t == PARQUET_DOUBLE ? 8 : 0; }

static uint32_t little(const uint8_t l[4]) { return l[0] | (uint32_t)l[1] << 8 | (uint32_t)l[2] << 16 | (uint32_t)l[3] << 24; }

struct parquet_cursor *cursor_open(const struct parquet *p, uint32_t column, bool values)
{
    struct parquet_cursor *c = mem_alloc(sizeof *c);
    c->p = p;
    c->column = column;
    c->node = &p->nodes[p->columns[column]];
    c->values = values && (c->node->type == PARQUET_BYTES || c->node->type == PARQUET_BOOLEAN || fixed_bytes(c->node->type));
    c->ended = true;
    return c;
}

static void forget_page(struct parquet_cursor *c)
{
    page_stream_close(&c->page);
    for (int k = 0; k < 2; k++) mem_free(c->level_bytes[k]), c->level_bytes[k] = NULL;
    c->left = 0;
}

static void forget_dictionary(struct parquet_cursor *c)
{
    mem_free(c->words);
    mem_free(c->starts);
    c->words = NULL, c->starts = NULL, c->n_words = 0;
}

void cursor_close(struct parquet_cursor *c)
{
    if (!c) return;
    forget_page(c);
    forget_dictionary(c);
    text_free(&c->bytes);
    mem_free(c);
}

void cursor_start(struct parquet_cursor *c, uint32_t group)
{
    forget_page(c);
    forget_dictionary(c);
    c->chunk = &c->p->groups[group].chunks[c->column];
    c->at = c->chunk->at;
    c->ended = c->peeked = false;
    c->item = 0;
}

/* --- pages --------------------------------------------------------------------------------------------- */

static int find_words(struct parquet_cursor *c, uint64_t bytes, struct error *e)
{
    uint64_t at = 0;
    c->starts = mem_alloc(((size_t)c->n_words + 1) * sizeof *c->starts);
    for (uint32_t i = 0; i < c->n_words; i++) {
        if (bytes - at < 4 || little(c->words + at) > bytes - at - 4) return error_set(e, PL_USAGE, "its dictionary is damaged");
        c->starts[i] = (uint32_t)at;
        at += 4 + (uint64_t)little(c->words + at);
    }
    return PL_OK;
}

static int read_dictionary(struct parquet_cursor *c, const struct parquet_page *page, struct error *e)
{
    const uint32_t least = c->node->type == PARQUET_BYTES ? 4 : fixed_bytes(c->node->type);
    forget_dictionary(c);
    if (!c->values) return PL_OK;
    if (page->full_size > DICTIONARY_MOST) return error_set(e, PL_USAGE, "a dictionary has %u bytes; expected at most %d", page->full_size, DICTIONARY_MOST);
    if (!least || page->entries > page->full_size / least) return error_set(e, PL_USAGE, "its dictionary is damaged");
    int rc = page_stream_open(&c->page, c->p, c->column, c->chunk, page, e);
    c->words = mem_alloc(page->full_size + 1ull);
    if (!rc) rc = codec_read(&c->page.codec, c->words, page->full_size, e);
    page_stream_close(&c->page);
    c->n_words = page->entries;
    return rc || c->node->type != PARQUET_BYTES ? rc : find_words(c, page->full_size, e);
}

/* The levels of version 1 are in the stream before the values: they are copied. */
static int read_levels(struct parquet_cursor *c, bool def, struct error *e)
{
    const uint8_t *at;
    uint64_t n;
    if (page_stream_levels(&c->page, def, &at, &n, e)) return e->code;
    if (!at && n) {
        at = c->level_bytes[def] = mem_alloc(n);
        if (codec_read(&c->page.codec, c->level_bytes[def], n, e)) return e->code;
    }
    hybrid_open(&c->levels[def], at, NULL, n, bits_for(def ? c->node->def : c->node->rep));
    return PL_OK;
}

/* What comes before the values: the bits of indices; the length of booleans that are runs. */
static int begin_values(struct parquet_cursor *c, struct error *e)
{
    const int32_t encoding = c->page.page.encoding;
    const bool dictionary = encoding == PARQUET_PLAIN_DICTIONARY || encoding == PARQUET_RLE_DICTIONARY, runs = encoding == PARQUET_RLE && c->node->type == PARQUET_BOOLEAN;
    uint8_t head[4] = {0};
    c->n_bits = 0;
    if (!c->values || encoding == PARQUET_PLAIN) return PL_OK;
    if (!dictionary && !runs) return error_set(e, PL_USAGE, "its encoding has the number %d, which is not read: write it again with pyarrow's usual one", encoding);
    if (!c->page.codec.left) return hybrid_open(&c->index, NULL, &c->page.codec, 0, 0), PL_OK; /* no entry has a value */
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
        if (page_stream_open(&c->page, c->p, c->column, c->chunk, &page, e) || read_levels(c, false, e) || read_levels(c, true, e) || begin_values(c, e)) return e->code;
        c->left = page.entries;
    }
    return PL_OK;
}

/* --- entries --------------------------------------------------------------------------------------------- */

static int about(const struct parquet_cursor *c, struct error *e) { return error_prepend(e, "column %s", c->node->path); }

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
    default: memcpy(&c->number, at, 8);
    }
}

static int take_word(struct parquet_cursor *c, struct error *e)
{
    uint32_t i;
    if (hybrid_next(&c->index, &i, e)) return e->code;
    if (i >= c->n_words) return error_set(e, PL_USAGE, "an index is beyond the dictionary");
    if (c->node->type != PARQUET_BYTES) set_number(c, c->words + (size_t)i * fixed_bytes(c->node->type));
    else text_append(&c->bytes, (const char *)c->words + c->starts[i] + 4, little(c->words + c->starts[i]));
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
    if (n > c->page.codec.left || n > PARQUET_VALUE_MOST) return error_set(e, PL_USAGE, "a value claims %u bytes, which is more than its page has or than is read as text", n);
    char *room = mem_alloc(n + 1ull);
    int rc = codec_read(&c->page.codec, room, n, e);
    if (!rc) text_append(&c->bytes, room, n);
    page_stream_release(&c->page, codec_at(&c->page.codec));
    mem_free(room);
    return rc;
}

static int take_value(struct parquet_cursor *c, struct error *e)
{
    uint8_t fixed[8];
    c->bytes.n = 0;
    if (c->node->type == PARQUET_BOOLEAN) return take_boolean(c, e);
    if (c->page.page.encoding != PARQUET_PLAIN) return take_word(c, e);
    if (c->node->type == PARQUET_BYTES) return take_bytes(c, e);
    if (codec_read(&c->page.codec, fixed, fixed_bytes(c->node->type), e)) return e->code;
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
