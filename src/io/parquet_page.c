/*
 * parquet_page.c: see parquet_page.h.
 */
#include "io/parquet_page.h"

#include <sys/mman.h>


enum { DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 };

/* --- headers ---------------------------------------------------------------------------------- */

struct header {
    int64_t kind, full, size, entries, encoding, def_encoding, rep_encoding, def_bytes, rep_bytes;
    bool compressed, details;
};

/* Reads the part that belongs to one kind of page; field numbers differ by kind. */
static void read_details(struct thrift *t, int64_t kind, struct header *h)
{
    for (struct thrift_field f = {0}; thrift_next(t, &f);) {
        const bool v2 = kind == DATA_PAGE_V2;
        int64_t *const to = f.id == 1                        ? &h->entries
                            : f.id == (v2 ? 4 : 2)           ? &h->encoding
                            : v2 && f.id == 5                ? &h->def_bytes
                            : v2 && f.id == 6                ? &h->rep_bytes
                            : kind == DATA_PAGE && f.id == 3 ? &h->def_encoding
                            : kind == DATA_PAGE && f.id == 4 ? &h->rep_encoding
                                                             : NULL;
        if (to && f.type == THRIFT_I32) *to = thrift_int(t);
        else {
            if (v2 && f.id == 7) h->compressed = f.type == THRIFT_TRUE;
            thrift_skip(t, f.type);
        }
    }
    h->details = true;
}

static void read_header(struct thrift *t, struct header *h)
{
    *h = (struct header){.kind = -1, .full = -1, .size = -1, .def_encoding = PARQUET_RLE, .rep_encoding = PARQUET_RLE,
                         .compressed = true};
    for (struct thrift_field f = {0}; thrift_next(t, &f);) {
        int64_t *const to = f.id == 1 ? &h->kind : f.id == 2 ? &h->full : f.id == 3 ? &h->size : NULL;
        const int64_t kind = f.id == 5 ? DATA_PAGE : f.id == 7 ? DICTIONARY_PAGE : f.id == 8 ? DATA_PAGE_V2 : -1;
        if (to && f.type == THRIFT_I32) *to = thrift_int(t);
        else if (kind >= 0 && kind == h->kind && f.type == THRIFT_STRUCT) read_details(t, kind, h);
        else thrift_skip(t, f.type);
    }
}

static bool is_sound(const struct header *h, uint64_t room)
{
    if (h->full < 0 || h->size < 0 || (uint64_t)h->size > room) return false;
    if (h->kind == INDEX_PAGE) return true;
    if (!h->details || h->entries < 0 || h->entries > INT32_MAX || h->full > INT32_MAX) return false;
    return h->def_bytes >= 0 && h->rep_bytes >= 0 && h->def_bytes <= INT32_MAX && h->rep_bytes <= INT32_MAX &&
           h->def_bytes + h->rep_bytes <= (h->full < h->size ? h->full : h->size);
}

/* Finds the next page of a chunk. The last one may lie behind the chunk's end: parquet-mr before
 * 1.2.9 left the header of the dictionary's page out of the size of the chunk. */
int page_next(const struct parquet *p, const struct parquet_chunk *c, uint64_t *at, struct parquet_page *out,
              bool *more, struct error *e)
{
    enum { LEFT_OUT = 100 };
    const uint64_t end = c->at + c->bytes, last = min_u64(end + LEFT_OUT, p->map.bytes - p->footer);
    struct header h = {.kind = INDEX_PAGE};
    const uint8_t *body = NULL;
    for (*more = *at < end; *more && h.kind == INDEX_PAGE; *more = *at < end || h.kind != INDEX_PAGE) {
        struct thrift t = {.at = (const uint8_t *)p->map.at + *at, .end = (const uint8_t *)p->map.at + last};
        read_header(&t, &h);
        if (t.bad || h.kind < DATA_PAGE || h.kind > DATA_PAGE_V2 || !is_sound(&h, (uint64_t)(t.end - t.at)))
            return error_set(e, PL_USAGE, "the header of the page at byte %llu is damaged", (unsigned long long)*at);
        body = t.at;
        *at = (uint64_t)(body - (const uint8_t *)p->map.at) + (uint64_t)h.size;
    }
    *out = (struct parquet_page){.dictionary = h.kind == DICTIONARY_PAGE, .v2 = h.kind == DATA_PAGE_V2,
                                 .compressed = h.compressed, .body = body, .size = (uint32_t)h.size,
                                 .full_size = (uint32_t)h.full, .entries = (uint32_t)h.entries,
                                 .rep_bytes = (uint32_t)h.rep_bytes, .def_bytes = (uint32_t)h.def_bytes,
                                 .encoding = (int32_t)h.encoding, .def_encoding = (int32_t)h.def_encoding,
                                 .rep_encoding = (int32_t)h.rep_encoding};
    return PL_OK;
}

/* --- runs ------------------------------------------------------------------------------------- */

static int ended(struct error *e) { return error_set(e, PL_USAGE, "its levels or indices end too early"); }

static int take_byte(struct hybrid *h, uint8_t *out, struct error *e)
{
    if (!h->left) return ended(e);
    h->left--;
    if (h->from) return codec_read(h->from, out, 1, e);
    *out = *h->at++;
    return PL_OK;
}

void hybrid_open(struct hybrid *h, const uint8_t *at, struct codec *from, uint64_t n, uint32_t bits)
{
    *h = (struct hybrid){.at = at, .from = from, .left = n, .bits = bits};
}

static int next_run(struct hybrid *h, struct error *e)
{
    uint64_t head = 0;
    uint8_t b = 128;
    for (int shift = 0; b & 128; shift += 7) {
        if (shift > 28) return ended(e);
        if (take_byte(h, &b, e)) return e->code;
        head |= (uint64_t)(b & 127) << shift;
    }
    h->packed = head & 1;
    h->run = h->packed ? (head >> 1) * 8 : head >> 1;
    h->held = h->n_held = h->value = 0;
    for (uint32_t i = 0; i < h->bits && !h->packed; i += 8) {
        if (take_byte(h, &b, e)) return e->code;
        h->value |= (uint32_t)b << i;
    }
    return PL_OK;
}

int hybrid_take(struct hybrid *h, uint64_t most, uint32_t *out, uint64_t *n, struct error *e)
{
    while (!h->run)
        if (next_run(h, e)) return e->code;
    *n = h->packed ? 1 : min_u64(most, h->run);
    h->run -= *n;
    while (h->packed && h->n_held < h->bits) {
        uint8_t b;
        if (take_byte(h, &b, e)) return e->code;
        h->held |= (uint64_t)b << h->n_held;
        h->n_held += 8;
    }
    if (h->packed) {
        h->value = (uint32_t)(h->held & ((1ull << h->bits) - 1));
        h->held >>= h->bits;
        h->n_held -= h->bits;
    }
    *out = h->value;
    return PL_OK;
}

int hybrid_next(struct hybrid *h, uint32_t *out, struct error *e)
{
    uint64_t one;
    return hybrid_take(h, 1, out, &one, e);
}

int hybrid_count(struct hybrid *h, uint64_t n, uint32_t value, uint64_t *found, struct error *e)
{
    uint64_t k;
    uint32_t x;
    for (*found = 0; n; n -= k) {
        if (hybrid_take(h, n, &x, &k, e)) return e->code;
        *found += x == value ? k : 0;
    }
    return PL_OK;
}

/* --- a page ----------------------------------------------------------------------------------- */

const char *parquet_encoding(int32_t encoding)
{
    static const char *const names[] = {
        "PLAIN",          "GROUP_VAR_INT",       "PLAIN_DICTIONARY",        "RLE",
        "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
        "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
    return encoding >= 0 && (size_t)encoding < COUNT(names) ? names[encoding] : "an unknown encoding";
}

static int codec_of(int32_t number, enum codec_kind *out, struct error *e)
{
    static const struct {
        const char *name;
        int kind; /* -1: it is not read */
    } codecs[] = {{"none", CODEC_NONE}, {"snappy", CODEC_SNAPPY}, {"gzip", CODEC_GZIP}, {"LZO", -1}, {"brotli", -1},
                  {"LZ4", -1},          {"zstd", CODEC_ZSTD},     {"LZ4_RAW", -1}};
    const bool known = number >= 0 && (size_t)number < COUNT(codecs);
    if (!known || codecs[number].kind < 0)
        return error_set(e, PL_USAGE,
            "it is compressed with %s, which is not read: write it again with compression snappy, zstd or gzip",
            known ? codecs[number].name : "an unknown method");
    *out = (enum codec_kind)codecs[number].kind;
    return PL_OK;
}

/* Finds the codec of a page and the bytes before what it decodes. */
static int page_codec(const struct parquet_chunk *c, const struct parquet_page *page, enum codec_kind *kind,
                      uint32_t *levels, struct error *e)
{
    *levels = page->v2 ? page->rep_bytes + page->def_bytes : 0;
    if (codec_of(c->codec, kind, e)) return e->code;
    if (page->v2 && (!page->compressed || page->full_size == *levels)) *kind = CODEC_NONE;
    return PL_OK;
}

uint64_t page_stream_memory(const struct parquet_chunk *c, const struct parquet_page *page)
{
    enum codec_kind kind = CODEC_NONE;
    uint32_t levels;
    struct error ignored;
    return page_codec(c, page, &kind, &levels, &ignored)
               ? 0
               : codec_memory(kind, page->body + levels, page->size - levels, page->full_size);
}

int page_stream_open(struct page_stream *s, const struct parquet *p, uint32_t column, const struct parquet_chunk *c,
                     const struct parquet_page *page, struct error *e)
{
    enum codec_kind kind = CODEC_NONE;
    uint32_t levels;
    s->page = *page;
    s->node = &p->nodes[p->columns[column]];
    s->open = false;
    const bool def = s->node->def && page->def_encoding != PARQUET_RLE,
               rep = s->node->rep && page->rep_encoding != PARQUET_RLE;
    if (def || rep)
        return error_set(e, PL_USAGE, "its %s levels are encoded as %s; only RLE is read: write it again with pyarrow",
                         def ? "definition" : "repetition",
                         parquet_encoding(def ? page->def_encoding : page->rep_encoding));
    if (page_codec(c, page, &kind, &levels, e)) return e->code;
    if (codec_open(&s->codec, kind, page->body + levels, page->size - levels, page->full_size - levels, e))
        return e->code;
    s->open = true;
    s->released = page->body;
    return PL_OK;
}

void page_stream_release(struct page_stream *s, const uint8_t *end)
{
    enum { LARGE = 1 << 21, PAGE = 1 << 16 }; /* PAGE: a multiple of any system's */
    const uintptr_t from = align_up((uintptr_t)s->released, PAGE), to = (uintptr_t)end / PAGE * PAGE;
    if ((uint64_t)(end - s->released) < LARGE || to <= from) return;
    madvise((void *)from, to - from, MADV_DONTNEED);
    s->released = end;
}

void page_stream_close(struct page_stream *s)
{
    if (!s->open) return;
    page_stream_release(s, codec_at(&s->codec));
    codec_close(&s->codec);
    s->open = false;
}

int page_stream_levels(struct page_stream *s, bool def, const uint8_t **at, uint64_t *n, struct error *e)
{
    const uint32_t most = def ? s->node->def : s->node->rep;
    uint8_t l[4];
    *at = NULL;
    *n = 0;
    if (s->page.v2) {
        *at = s->page.body + (def ? s->page.rep_bytes : 0);
        *n = def ? s->page.def_bytes : s->page.rep_bytes;
    } else if (most) {
        if (codec_read(&s->codec, l, 4, e)) return e->code;
        *n = l[0] | (uint64_t)l[1] << 8 | (uint64_t)l[2] << 16 | (uint64_t)l[3] << 24;
        if (*n > s->codec.left) return ended(e);
    }
    hybrid_open(&s->levels, *at, s->page.v2 ? NULL : &s->codec, *n, bits_for(most));
    return PL_OK;
}

/* ---- Thrift ---- */

enum { DEPTH = 32 };

static uint8_t byte(struct thrift *t)
{
    if (t->at < t->end && !t->bad) return *t->at++;
    t->bad = true;
    return 0;
}

static void pass(struct thrift *t, uint64_t n)
{
    if (n > (uint64_t)(t->end - t->at)) t->bad = true;
    else t->at += n;
}

static uint64_t thrift_varint(struct thrift *t)
{
    uint64_t x = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        const uint8_t b = byte(t);
        x |= (uint64_t)(b & 127) << shift;
        if (!(b & 128)) return t->bad ? 0 : x;
    }
    t->bad = true;
    return 0;
}

int64_t thrift_int(struct thrift *t)
{
    const uint64_t x = thrift_varint(t);
    return (int64_t)(x >> 1) ^ -(int64_t)(x & 1);
}

/* Reads a field's head: a byte with the distance of its number from the last one, or 0 and the
 * number follows; and its type. */
bool thrift_next(struct thrift *t, struct thrift_field *f)
{
    const uint8_t b = byte(t);
    f->type = b & 15;
    if (t->bad || f->type == THRIFT_STOP) return false;
    if (f->type > THRIFT_STRUCT) t->bad = true;
    f->id = b >> 4 ? f->id + (b >> 4) : thrift_int(t);
    if (f->id < 0 || f->id > INT16_MAX) t->bad = true;
    return !t->bad;
}

const char *thrift_bytes(struct thrift *t, size_t *n)
{
    const uint64_t length = thrift_varint(t);
    const uint8_t *at = t->at;
    pass(t, length);
    *n = t->bad ? 0 : (size_t)length;
    return (const char *)at;
}

uint32_t thrift_list(struct thrift *t, enum thrift_type *type)
{
    const uint8_t b = byte(t);
    const uint64_t n = b >> 4 == 15 ? thrift_varint(t) : b >> 4;
    *type = b & 15;
    if (*type > THRIFT_STRUCT || n > (uint64_t)(t->end - t->at)) t->bad = true;
    return t->bad ? 0 : (uint32_t)n;
}

static void skip(struct thrift *t, enum thrift_type type, int depth);

/* Skips the elements of a list, a set or a map; booleans take a byte there. */
static void skip_elements(struct thrift *t, uint64_t n, enum thrift_type a, enum thrift_type b, int depth)
{
    for (uint64_t i = 0; i < n && !t->bad; i++) {
        if (a == THRIFT_TRUE || a == THRIFT_FALSE) pass(t, 1);
        else skip(t, a, depth);
        if (b == THRIFT_TRUE || b == THRIFT_FALSE) pass(t, 1);
        else if (b) skip(t, b, depth);
    }
}

static void skip_map(struct thrift *t, int depth)
{
    const uint64_t n = thrift_varint(t);
    const uint8_t types = n ? byte(t) : 0;
    if (n > (uint64_t)(t->end - t->at) || (types & 15) > THRIFT_STRUCT || types >> 4 > THRIFT_STRUCT) t->bad = true;
    else skip_elements(t, n, types >> 4, types & 15, depth);
}

static void skip(struct thrift *t, enum thrift_type type, int depth)
{
    enum thrift_type element;
    size_t n;
    if (!depth) t->bad = true;
    if (t->bad) return;
    switch (type) {
    case THRIFT_TRUE: case THRIFT_FALSE: break;
    case THRIFT_I8: pass(t, 1); break;
    case THRIFT_I16: case THRIFT_I32: case THRIFT_I64: thrift_varint(t); break;
    case THRIFT_DOUBLE: pass(t, 8); break;
    case THRIFT_BINARY: thrift_bytes(t, &n); break;
    case THRIFT_LIST:
    case THRIFT_SET:
        n = thrift_list(t, &element);
        skip_elements(t, n, element, THRIFT_STOP, depth - 1);
        break;
    case THRIFT_MAP: skip_map(t, depth - 1); break;
    case THRIFT_STRUCT:
        for (struct thrift_field f = {0}; thrift_next(t, &f);) skip(t, f.type, depth - 1);
        break;
    default: t->bad = true;
    }
}

void thrift_skip(struct thrift *t, enum thrift_type type) { skip(t, type, DEPTH); }
