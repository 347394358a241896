/*
 * parquet_cursor.c: see parquet_cursor.h.
 */
#include "io/parquet_cursor.h"

#include <string.h>

#include "base/dtype.h"

/* Bytes of a number; 0: the column has none. */
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

/* The levels of version 1 are in the stream before the values: they are copied. */
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

/* What comes before the values: the bits of indices; the length of booleans that are runs. */
static int begin_values(struct parquet_cursor *c, struct error *e)
{
    const int32_t encoding = c->page.page.encoding;
    const bool dictionary = encoding == PARQUET_PLAIN_DICTIONARY || encoding == PARQUET_RLE_DICTIONARY,
               runs = encoding == PARQUET_RLE && c->node->type == PARQUET_BOOLEAN;
    uint8_t head[4] = {0};
    c->n_bits = 0;
    if (!c->values || encoding == PARQUET_PLAIN) return PL_OK;
    if (!dictionary && !runs)
        return error_set(
            e, PL_USAGE,
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
