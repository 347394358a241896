/*
 * parquet.c: see parquet.h. The footer becomes arrays. Every number in it is checked here: offsets
 * against the file, counts against each other, so that readers of pages need not.
 */
#include "io/parquet.h"

#include <fcntl.h>

#include "io/file.h"
#include "io/parquet_cell.h"
#include "io/parquet_page.h"

enum { DEPTH = 32, NODES_MOST = 1 << 16, LEVELS_MOST = 64 };

/* Numbers of the format. */
enum { CONVERTED_UTF8 = 0, CONVERTED_LIST = 3, CONVERTED_ENUM = 4, CONVERTED_DECIMAL = 5, CONVERTED_JSON = 19 };
enum {
    LOGICAL_STRING = 1,
    LOGICAL_LIST = 3,
    LOGICAL_ENUM = 4,
    LOGICAL_DECIMAL = 5,
    LOGICAL_JSON = 12,
    LOGICAL_FLOAT16 = 15
};
enum { REQUIRED, OPTIONAL, REPEATED };

static int damaged(struct error *e, const char *what)
{
    return error_set(e, PL_USAGE, "its footer is damaged: %s", what);
}

/* --- the schema ------------------------------------------------------------------------------- */

struct element {
    struct parquet_node node;
    int64_t type, width, repetition, children;
};

static void read_logical(struct thrift *t, struct parquet_node *n)
{
    for (struct thrift_field f = {0}; thrift_next(t, &f); thrift_skip(t, f.type)) {
        n->text |= f.id == LOGICAL_STRING || f.id == LOGICAL_ENUM || f.id == LOGICAL_JSON;
        n->list |= f.id == LOGICAL_LIST;
        n->decimal |= f.id == LOGICAL_DECIMAL;
        n->half |= f.id == LOGICAL_FLOAT16;
    }
}

static void read_element(struct thrift *t, struct bump *b, struct element *out)
{
    *out = (struct element){.type = -1, .node = {.name = ""}};
    for (struct thrift_field f = {0}; thrift_next(t, &f);) {
        size_t n;
        if (f.id == 1 && f.type == THRIFT_I32) out->type = thrift_int(t);
        else if (f.id == 2 && f.type == THRIFT_I32) out->width = thrift_int(t);
        else if (f.id == 3 && f.type == THRIFT_I32) out->repetition = thrift_int(t);
        else if (f.id == 4 && f.type == THRIFT_BINARY) {
            const char *name = thrift_bytes(t, &n);
            out->node.name = bump_format(b, "%.*s", (int)min_u64(n, 256), name);
        } else if (f.id == 5 && f.type == THRIFT_I32) out->children = thrift_int(t);
        else if (f.id == 6 && f.type == THRIFT_I32) {
            const int64_t c = thrift_int(t);
            out->node.text |= c == CONVERTED_UTF8 || c == CONVERTED_ENUM || c == CONVERTED_JSON;
            out->node.list |= c == CONVERTED_LIST;
            out->node.decimal |= c == CONVERTED_DECIMAL;
        } else if (f.id == 10 && f.type == THRIFT_STRUCT) read_logical(t, &out->node);
        else thrift_skip(t, f.type);
    }
}

/* Reads node number p->n_nodes and all below it. */
static int read_tree(struct parquet *p, struct thrift *t, uint32_t total, const struct parquet_node *above, int depth,
                     struct error *e)
{
    struct element x;
    if (p->n_nodes == total || !depth) return damaged(e, "its schema has more or deeper columns than it states");
    read_element(t, &p->memory, &x);
    if (t->bad) return damaged(e, "its schema cannot be read");
    const uint32_t at = p->n_nodes++;
    struct parquet_node *n = &p->nodes[at];
    *n = x.node;
    n->column = p->n_columns;
    n->repeated = above && x.repetition == REPEATED;
    n->optional = above && x.repetition == OPTIONAL;
    n->rep = (uint8_t)((above ? above->rep : 0) + n->repeated);
    n->def = (uint8_t)((above ? above->def : 0) + (n->repeated || n->optional));
    n->path = !above || !above->path ? n->name : bump_format(&p->memory, "%s.%s", above->path, n->name);
    if (!above) n->path = NULL; /* names begin below the root */
    n->leaf = above && x.children <= 0;
    if (n->def > LEVELS_MOST) return damaged(e, "its schema is too deep");
    if (n->leaf && (x.type < 0 || x.type >= PARQUET_TYPES)) return damaged(e, "a column has an unknown type");
    if (n->leaf) n->type = (enum parquet_type)x.type, p->columns[p->n_columns++] = at;
    n->decimal &= n->leaf;
    n->text &= n->leaf && n->type == PARQUET_BYTES;
    n->blob = n->leaf && n->type == PARQUET_BYTES && !n->text && !n->decimal;
    n->half &= n->leaf && n->type == PARQUET_FIXED && x.width == 2;
    for (int64_t i = 0; i < x.children; i++)
        if (read_tree(p, t, total, &p->nodes[at], depth - 1, e)) return e->code;
    n->end = p->n_nodes;
    n->list &= !n->leaf && x.children == 1 && p->nodes[at + 1].repeated;
    return PL_OK;
}

static int read_schema(struct parquet *p, struct thrift *t, struct error *e)
{
    enum thrift_type type;
    const uint32_t n = thrift_list(t, &type);
    if (type != THRIFT_STRUCT || !n || n > NODES_MOST || p->nodes) return damaged(e, "it has no schema");
    p->nodes = bump_alloc(&p->memory, n * sizeof *p->nodes);
    p->columns = bump_alloc(&p->memory, n * sizeof *p->columns);
    if (read_tree(p, t, n, NULL, DEPTH, e)) return e->code;
    return p->n_nodes == n && p->n_columns ? PL_OK : damaged(e, "its schema has fewer columns than it states");
}

/* --- row groups ------------------------------------------------------------------------------- */

struct chunk_facts {
    int64_t codec, entries, bytes, data, dictionary;
    bool elsewhere, read;
};

static void read_column(struct thrift *t, struct chunk_facts *out)
{
    for (struct thrift_field f = {0}; thrift_next(t, &f);) {
        int64_t *const to = f.id == 4    ? &out->codec
                            : f.id == 5  ? &out->entries
                            : f.id == 7  ? &out->bytes
                            : f.id == 9  ? &out->data
                            : f.id == 11 ? &out->dictionary
                                         : NULL;
        if (to && (f.type == THRIFT_I32 || f.type == THRIFT_I64)) *to = thrift_int(t);
        else thrift_skip(t, f.type);
    }
    out->read = true;
}

static int read_chunk(struct thrift *t, uint64_t limit, struct parquet_chunk *to, struct error *e)
{
    struct chunk_facts x = {0};
    for (struct thrift_field f = {0}; thrift_next(t, &f);) {
        if (f.id == 3 && f.type == THRIFT_STRUCT) read_column(t, &x);
        else {
            x.elsewhere |= f.id == 1;
            thrift_skip(t, f.type);
        }
    }
    if (t->bad || !x.read) return damaged(e, "a column's position cannot be read");
    if (x.elsewhere) return error_set(e, PL_USAGE, "a column is in another file, which is not read");
    const int64_t at = !x.entries ? 4 : x.dictionary > 0 && x.dictionary < x.data ? x.dictionary : x.data;
    if (!x.entries) x.bytes = 0; /* a position of nothing may be any number */
    if (at < 4 || x.bytes < 0 || x.entries < 0 || (uint64_t)at > limit || (uint64_t)x.bytes > limit - (uint64_t)at)
        return error_set(e, PL_USAGE,
            "a column would be at byte %lld with %lld bytes, which is outside of the file: it is cut or damaged",
            (long long)at, (long long)x.bytes);
    *to = (struct parquet_chunk){(uint64_t)at, (uint64_t)x.bytes, (uint64_t)x.entries, (int32_t)x.codec};
    return PL_OK;
}

static int read_group(struct parquet *p, struct thrift *t, uint64_t limit, struct parquet_group *to, struct error *e)
{
    int64_t rows = -1;
    for (struct thrift_field f = {0}; thrift_next(t, &f);) {
        if (f.id == 1 && f.type == THRIFT_LIST && !to->chunks) {
            enum thrift_type type;
            const uint32_t n = thrift_list(t, &type);
            if (n != p->n_columns || type != THRIFT_STRUCT)
                return damaged(e, "a row group has more or fewer columns than the schema");
            to->chunks = bump_alloc(&p->memory, n * sizeof *to->chunks);
            for (uint32_t i = 0; i < n; i++)
                if (read_chunk(t, limit, &to->chunks[i], e)) return e->code;
        } else if (f.id == 3 && f.type == THRIFT_I64) rows = thrift_int(t);
        else thrift_skip(t, f.type);
    }
    if (t->bad || !to->chunks || rows < 0) return damaged(e, "a row group cannot be read");
    for (uint32_t i = 0; i < p->n_columns; i++)
        if (to->chunks[i].entries < (uint64_t)rows ||
            (!p->nodes[p->columns[i]].rep && to->chunks[i].entries != (uint64_t)rows))
            return damaged(e, "a column has more or fewer values than rows");
    to->first_row = p->rows;
    to->rows = (uint64_t)rows;
    p->rows += to->rows;
    return p->rows < UINT32_MAX ? PL_OK : damaged(e, "it claims more than 4 billion rows");
}

static int read_groups(struct parquet *p, struct thrift *t, uint64_t limit, struct error *e)
{
    enum thrift_type type;
    const uint32_t n = thrift_list(t, &type);
    if (!p->nodes || p->groups || (n && type != THRIFT_STRUCT)) return damaged(e, "its row groups cannot be read");
    p->groups = bump_alloc(&p->memory, (n + 1) * sizeof *p->groups);
    for (; p->n_groups < n; p->n_groups++)
        if (read_group(p, t, limit, &p->groups[p->n_groups], e)) return e->code;
    return PL_OK;
}

/* --- the file --------------------------------------------------------------------------------- */

static int read_footer(struct parquet *p, struct error *e)
{
    const uint8_t *file = (const uint8_t *)p->map.at;
    const uint64_t size = p->map.bytes;
    if (size < 4 || memcmp(file, "PAR1", 4))
        return error_set(e, PL_USAGE, "it is not a Parquet table: it does not begin with PAR1");
    if (!memcmp(file + size - 4, "PARE", 4)) return error_set(e, PL_USAGE, "the table is encrypted, which is not read");
    if (size < 12 || memcmp(file + size - 4, "PAR1", 4))
        return error_set(e, PL_USAGE,
                         "the table does not end with PAR1: the file is cut, or its download was not completed");
    const uint8_t *l = file + size - 8;
    const uint64_t n = l[0] | (uint64_t)l[1] << 8 | (uint64_t)l[2] << 16 | (uint64_t)l[3] << 24;
    if (n > size - 12) return damaged(e, "it is longer than the file");
    struct thrift t = {.at = l - n, .end = l};
    p->footer = n + 8;
    for (struct thrift_field f = {0}; thrift_next(&t, &f);) {
        int rc = PL_OK;
        if (f.id == 2 && f.type == THRIFT_LIST) rc = read_schema(p, &t, e);
        else if (f.id == 4 && f.type == THRIFT_LIST) rc = read_groups(p, &t, size - 8 - n, e);
        else thrift_skip(&t, f.type);
        if (rc) return rc;
    }
    return t.bad || !p->nodes || !p->groups ? damaged(e, "it cannot be read") : PL_OK;
}

bool parquet_is(const char *path)
{
    char head[4];
    return file_peek(path, head, sizeof head) == sizeof head && !memcmp(head, "PAR1", sizeof head);
}

int parquet_open(struct parquet *p, const char *path, struct error *e)
{
    *p = (struct parquet){0};
    TRY(file_map(&p->map, path, e));
    if (!p->map.bytes) return error_set(e, PL_USAGE, "%s: the file is empty", path);
    p->path = mem_string(path);
    int rc = read_footer(p, e) ? error_prepend(e, "%s", path) : parquet_check(p, e);
    if (rc) parquet_close(p);
    return rc;
}

void parquet_close(struct parquet *p)
{
    parquet_index_free(p);
    mapped_close(&p->map);
    bump_free(&p->memory);
    mem_free(p->path);
    *p = (struct parquet){0};
}

int parquet_check(const struct parquet *p, struct error *e) { return mapped_check(&p->map, p->path, e); }

/* --- columns ---------------------------------------------------------------------------------- */

uint32_t parquet_find(const struct parquet *p, const char *name)
{
    for (uint32_t i = 1; i < p->n_nodes; i = p->nodes[i].end)
        if (!strcmp(p->nodes[i].name, name)) return i;
    return 0;
}

void parquet_print_columns(const struct parquet *p, struct text *out)
{
    uint32_t n = 0;
    for (uint32_t i = 1; i < p->n_nodes && n < 20; i = p->nodes[i].end)
        text_printf(out, "%s%.60s", n++ ? ", " : "", p->nodes[i].name);
}

int64_t parquet_image_leaf(const struct parquet *p, uint32_t node, bool *many)
{
    const struct parquet_node *n = &p->nodes[node];
    *many = false;
    if (n->list) { /* list { repeated { element } } */
        *many = true;
        node++;
        if (!p->nodes[node].leaf && p->nodes[node].end > node + 1 && p->nodes[node + 1].end == p->nodes[node].end)
            node++;
        n = &p->nodes[node];
    }
    if (n->leaf) return n->blob ? (int64_t)n->column : -1;
    for (uint32_t i = node + 1; i < n->end; i = p->nodes[i].end)
        if (p->nodes[i].blob && !strcmp(p->nodes[i].name, "bytes")) return p->nodes[i].column;
    return -1;
}
