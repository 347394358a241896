/*
 * parquet_cell.c: see parquet_cell.h.
 */
#include "io/parquet_cell.h"

#include "io/parquet_page.h"

struct page_at {
    uint64_t at;
    uint64_t row;   /* rows that begin before the page */
    uint32_t group;
};

struct parquet_index {
    VEC(struct page_at) pages;
    uint64_t *dictionaries; /* [groups] position; 0: none */
};

/* --- the index -------------------------------------------------------------------------------- */

/* Counts the rows that begin in a page. */
static int count_rows(const struct parquet *p, uint32_t column, const struct parquet_chunk *c,
                      const struct parquet_page *page, uint64_t *rows, struct error *e)
{
    struct page_stream s;
    const uint8_t *at;
    uint64_t n;
    *rows = page->entries;
    if (!p->nodes[p->columns[column]].rep) return PL_OK;
    int rc = page_stream_open(&s, p, column, c, page, e);
    if (!rc) rc = page_stream_levels(&s, false, &at, &n, e);
    if (!rc) rc = hybrid_count(&s.levels, page->entries, 0, rows, e);
    page_stream_close(&s);
    return rc;
}

static int index_group(const struct parquet *p, uint32_t column, uint32_t g, struct parquet_index *x, struct error *e)
{
    const struct parquet_group *group = &p->groups[g];
    const struct parquet_chunk *c = &group->chunks[column];
    uint64_t at = c->at, row = group->first_row, entries = 0, rows;
    bool more;
    for (;;) {
        const uint64_t here = at;
        struct parquet_page page;
        if (page_next(p, c, &at, &page, &more, e)) return e->code;
        if (!more) break;
        if (page.dictionary) {
            x->dictionaries[g] = here;
            continue;
        }
        if (count_rows(p, column, c, &page, &rows, e)) return e->code;
        vec_push(&x->pages, ((struct page_at){here, row, g}));
        row += rows;
        entries += page.entries;
    }
    if (row == group->first_row + group->rows && entries == c->entries) return PL_OK;
    return error_set(e, PL_USAGE, "column %s: its pages have %llu rows, and its row group %llu",
                     p->nodes[p->columns[column]].path, (unsigned long long)(row - group->first_row),
                     (unsigned long long)group->rows);
}

int parquet_index(struct parquet *p, uint32_t column, struct error *e)
{
    if (!p->index) p->index = mem_alloc(p->n_columns * sizeof *p->index);
    struct parquet_index *x = &p->index[column];
    if (x->dictionaries) return PL_OK;
    x->dictionaries = mem_alloc((p->n_groups + 1) * sizeof *x->dictionaries);
    for (uint32_t g = 0; g < p->n_groups; g++)
        if (index_group(p, column, g, x, e)) return error_prepend(e, "%s", p->path);
    return mapped_check(&p->map, p->path, e);
}

void parquet_index_free(struct parquet *p)
{
    for (uint32_t i = 0; p->index && i < p->n_columns; i++) {
        vec_free(&p->index[i].pages);
        mem_free(p->index[i].dictionaries);
    }
    mem_free(p->index);
    p->index = NULL;
}

/* Returns the page in which a row begins. */
static uint32_t page_of(const struct parquet_index *x, uint64_t row)
{
    uint32_t low = 0, high = x->pages.n;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (x->pages.at[middle].row <= row) low = middle;
        else high = middle;
    }
    return low;
}

/* --- a cell ----------------------------------------------------------------------------------- */

/* Where the search for an item stands. */
struct search {
    uint64_t row;    /* wanted */
    uint64_t begun;  /* rows */
    uint64_t item;   /* to skip */
    bool over;       /* the next row has begun */
};

/* Looks for the item among n entries of one repetition level; returns its number, n: it is not
 * there. */
static uint64_t look(struct search *f, uint32_t level, uint64_t n)
{
    if (level) { /* further items of the row that has begun */
        const uint64_t at = f->begun == f->row + 1 ? min_u64(f->item, n) : n;
        if (f->begun == f->row + 1) f->item -= at;
        return at;
    }
    const uint64_t first = f->begun > f->row
                               ? 0
                               : f->row -
                                     f->begun; /* the first item of the wanted row, if it is not before these entries */
    const bool here = f->begun <= f->row && first < n;
    f->over = f->begun > f->row || (here && f->item && first + 1 < n);
    f->begun += here ? first + 1 : n;
    if (here && !f->item) return first;
    f->item -= here;
    return n;
}

/* Looks for the item among the entries of a page. *entry: its number; the page's entries: it is not
 * there. */
static int find_entry(struct page_stream *s, struct search *f, uint32_t *entry, struct error *e)
{
    const uint8_t *at;
    uint64_t n, found;
    uint32_t level = 0;
    if (page_stream_levels(s, false, &at, &n, e)) return e->code;
    for (*entry = 0; *entry < s->page.entries; *entry += (uint32_t)n) {
        n = s->page.entries - *entry;
        if (s->node->rep && hybrid_take(&s->levels, n, &level, &n, e)) return e->code;
        found = look(f, level, n);
        if (found < n) {
            *entry += (uint32_t)found;
            break;
        }
        if (f->over) n = s->page.entries - *entry;
    }
    /* the rest of the levels, which may be compressed with the values */
    return s->page.v2 ? PL_OK : codec_read(&s->codec, NULL, s->levels.left, e);
}

/* Counts the values before an entry; *there: it has one itself. Then the stream is at the
 * values. */
static int count_values(struct page_stream *s, uint32_t entry, uint32_t *before, bool *there, struct error *e)
{
    const uint8_t *at;
    uint64_t n, found = entry;
    uint32_t level = 0;
    *before = 0, *there = false;
    if (page_stream_levels(s, true, &at, &n, e)) return e->code;
    if (s->node->def &&
        (hybrid_count(&s->levels, entry, s->node->def, &found, e) || hybrid_next(&s->levels, &level, e)))
        return e->code;
    *before = (uint32_t)found;
    *there = level == s->node->def;
    return s->page.v2 ? PL_OK : codec_read(&s->codec, NULL, s->levels.left, e);
}

/* Skips values of length and bytes, and reads the next one. */
static int read_plain(struct page_stream *s, uint64_t skip, void *to, size_t room, size_t *n, struct error *e)
{
    struct codec *c = &s->codec;
    for (uint64_t i = 0;; i++) {
        uint8_t l[4];
        if (codec_read(c, l, 4, e)) return e->code;
        *n = l[0] | (size_t)l[1] << 8 | (size_t)l[2] << 16 | (size_t)l[3] << 24;
        if (*n > c->left) return error_set(e, PL_USAGE, "a value is longer than its page");
        if (i < skip) {
            if (codec_read(c, NULL, *n, e)) return e->code;
            page_stream_release(s, codec_at(c));
            continue;
        }
        if (!to) return PL_OK;
        if (*n > room) return error_set(e, PL_NOFIT, "it has %zu bytes; expected at most %zu", *n, room);
        return codec_read(c, to, *n, e);
    }
}

static int read_index(struct codec *c, uint32_t before, uint32_t *index, struct error *e)
{
    struct hybrid h;
    uint64_t ignored;
    uint8_t bits;
    if (codec_read(c, &bits, 1, e)) return e->code;
    if (bits > 32) return error_set(e, PL_USAGE, "its indices have %u bits", bits);
    hybrid_open(&h, NULL, c, c->left, bits);
    return hybrid_count(&h, before, 0, &ignored, e) ? e->code : hybrid_next(&h, index, e);
}

/* Reads a value. The stream is at the values of a page; it is used again for its dictionary. */
static int read_value(struct page_stream *s, const struct parquet *p, uint32_t column, uint32_t group, uint32_t before,
                      void *to, size_t room, size_t *n, struct error *e)
{
    const struct parquet_chunk *c = &p->groups[group].chunks[column];
    const int32_t encoding = s->page.encoding;
    uint64_t at = p->index[column].dictionaries[group];
    struct parquet_page page;
    uint32_t index;
    bool more;
    if (encoding == PARQUET_PLAIN) return read_plain(s, before, to, room, n, e);
    if (encoding != PARQUET_PLAIN_DICTIONARY && encoding != PARQUET_RLE_DICTIONARY)
        return error_set(e, PL_USAGE,
                         "its values are encoded as %s, which is not read: write it again with column_encoding PLAIN",
                         parquet_encoding(encoding));
    if (!at) return error_set(e, PL_USAGE, "it has no dictionary");
    if (read_index(&s->codec, before, &index, e)) return e->code;
    page_stream_close(s);
    if (page_next(p, c, &at, &page, &more, e)) return e->code;
    if (index >= page.entries) return error_set(e, PL_USAGE, "an index is beyond the dictionary");
    return page_stream_open(s, p, column, c, &page, e) ? e->code : read_plain(s, index, to, room, n, e);
}

static int read_cell(const struct parquet *p, struct parquet_cell at, struct page_stream *s, void *to, size_t room,
                     size_t *n, enum cell_state *state, struct error *e)
{
    const struct parquet_index *x = &p->index[at.column];
    const uint32_t first = page_of(x, at.row);
    struct search f = {.row = at.row, .begun = x->pages.n ? x->pages.at[first].row : 0, .item = at.item};
    *state = CELL_NONE;
    for (uint32_t k = first; k < x->pages.n && !f.over; k++) {
        const uint32_t group = x->pages.at[k].group;
        const struct parquet_chunk *c = &p->groups[group].chunks[at.column];
        struct parquet_page page;
        uint64_t from = x->pages.at[k].at;
        uint32_t entry = 0, before;
        bool more, there;
        if (page_next(p, c, &from, &page, &more, e) || page_stream_open(s, p, at.column, c, &page, e) ||
            find_entry(s, &f, &entry, e))
            return e->code;
        if (entry < page.entries) {
            if (count_values(s, entry, &before, &there, e)) return e->code;
            *state = there ? CELL_THERE : CELL_NULL;
            return there ? read_value(s, p, at.column, group, before, to, room, n, e) : PL_OK;
        }
        page_stream_close(s);
    }
    return PL_OK;
}

int parquet_cell(const struct parquet *p, struct parquet_cell at, void *to, size_t room, size_t *n,
                 enum cell_state *state, struct error *e)
{
    struct page_stream s;
    s.open = false;
    *n = 0;
    CHECK(p->index && p->index[at.column].dictionaries, "column %u is indexed", at.column);
    int rc = at.row < p->rows ? read_cell(p, at, &s, to, room, n, state, e)
                              : error_set(e, PL_USAGE, "it has no row %llu", (unsigned long long)at.row + 1);
    page_stream_close(&s);
    if (!rc) rc = mapped_check(&p->map, p->path, e);
    else if (rc != PL_NOFIT)
        error_prepend(e, "%s, row %llu, column %s", p->path, (unsigned long long)at.row + 1,
                      p->nodes[p->columns[at.column]].path);
    return rc;
}
