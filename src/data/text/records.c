/*
 * records.c: see records.h.
 *
 *     buffer   | used | from ... the object so far ... n | room
 *
 * A refill moves the unused bytes to the beginning and doubles the buffer when an object fills it,
 * so the memory is that of the longest object, and r->most bounds it.
 */
#include "data/text/records.h"

#include <errno.h>
#include <unistd.h>

#include "data/text/conversation.h"
#include "data/text/tokens.h"
#include "io/file.h"
#include "io/json.h"
#include "io/parquet_rows.h"
#include "text/unicode.h"

enum { FIRST_ROOM = 1 << 16 };

static int fail(const struct records *r, uint64_t line, struct error *e, const char *what)
{
    return error_set(e, PL_USAGE, "%s:%llu: %s", r->path, (unsigned long long)line, what);
}

/* Refuses a file that holds something else, by its first bytes. */
static int refuse(const char *path, int fd, struct error *e)
{
    const char *what = not_tokens_utf16(fd) ? "text in UTF-16" : not_tokens_bytes(fd);
    if (!what) return PL_OK;
    if (strstr(what, "Arrow"))
        return error_set(e, PL_USAGE,
                         "%s: it holds %s, which is not read; convert it to Parquet with Python: import datasets; "
                         "datasets.Dataset.from_file(\"%s\").to_parquet(\"chats.parquet\")", path, what, path);
    return error_set(e, PL_USAGE,
        "%s: it holds %s; expected conversations as JSON: a list of objects, or one object a line, in UTF-8", path,
        what);
}

/* --- Parquet ------------------------------------------------------------------------------- */

struct record_table {
    struct parquet parquet;
    struct parquet_rows rows;
    struct text row;
};

/* Checks that the columns are those of a conversation. */
static int check_columns(const struct parquet *p, struct error *e)
{
    struct bump b = {0};
    struct value *sample = value_new(&b, VALUE_MAP);
    for (uint32_t i = 1; i < p->n_nodes; i = p->nodes[i].end)
        value_put(&b, sample, p->nodes[i].name, value_new(&b, VALUE_NULL));
    const bool known = conversation_format(sample);
    bump_free(&b);
    if (known) return PL_OK;
    struct text names = {0};
    parquet_print_columns(p, &names);
    error_set(e, PL_USAGE, "%s: its columns are %s; expected " CONVERSATION_KEYS, p->path, names.at);
    text_free(&names);
    return e->code;
}

static bool any_column(const char *name) { return name; }

static int open_table(struct records *r, struct error *e)
{
    struct record_table *t = mem_alloc(sizeof *t);
    int rc = parquet_open(&t->parquet, r->path, e);
    if (!rc && !r->any && (rc = check_columns(&t->parquet, e))) parquet_close(&t->parquet);
    if (rc) {
        mem_free(t);
        return rc;
    }
    parquet_rows_open(&t->rows, &t->parquet, r->any ? any_column : conversation_key, r->most);
    r->table = t;
    r->size = t->parquet.map.bytes;
    return PL_OK;
}

uint64_t records_rows(const char *path)
{
    struct parquet p;
    struct error ignored;
    if (!parquet_is(path) || parquet_open(&p, path, &ignored)) return UINT64_MAX;
    const uint64_t rows = p.rows;
    parquet_close(&p);
    return rows;
}

static void close_table(struct record_table *t)
{
    if (!t) return;
    parquet_rows_close(&t->rows);
    parquet_close(&t->parquet);
    text_free(&t->row);
    mem_free(t);
}

static int next_row(struct records *r, struct record *out, bool *more, struct error *e)
{
    struct record_table *t = r->table;
    if (parquet_rows_next(&t->rows, &t->row, more, e)) return e->code;
    *out = (struct record){t->row.at, t->row.n, t->rows.row + 1 - t->rows.times, t->rows.times};
    r->line = t->rows.row;
    r->bytes = (uint64_t)((double)r->size * (double)t->rows.row / (double)(t->parquet.rows + !t->parquet.rows));
    return PL_OK;
}

/* --- files ---------------------------------------------------------------------------------- */

/* Opens a file that is not empty, and checks its first bytes. */
static int open_bytes(struct records *r, int (*check)(const char *path, int fd, struct error *e), struct error *e)
{
    r->fd = file_open(r->path, &r->size, e);
    if (r->fd < 0) return e->code;
    int rc = r->size ? check(r->path, r->fd, e) : error_set(e, PL_USAGE, "%s: the file is empty", r->path);
    if (rc) {
        close(r->fd);
        return rc;
    }
    r->buffer = mem_alloc(r->room = FIRST_ROOM);
    return PL_OK;
}

static int refuse_folder(const char *path, struct error *e)
{
    return error_set(e, PL_USAGE, "%s is a folder, not a regular file; for all files of a folder write FOLDER/*", path);
}

static int open_file(struct records *r, struct error *e)
{
    const char *path = r->path;
    if (dir_exists(path)) return refuse_folder(path, e);
    return parquet_is(path) ? open_table(r, e) : open_bytes(r, refuse, e);
}

int records_open(struct records *r, const char *path, uint64_t most, struct error *e)
{
    *r = (struct records){.path = path, .fd = -1, .line = 1, .most = most};
    return open_file(r, e);
}

int records_open_any(struct records *r, const char *path, uint64_t most, struct error *e)
{
    *r = (struct records){.path = path, .fd = -1, .line = 1, .most = most, .any = true};
    return open_file(r, e);
}

static int refuse_other(const char *path, int fd, struct error *e)
{
    const char *what = not_tokens_utf16(fd) ? "text in UTF-16" : not_tokens_bytes(fd);
    if (what && parquet_is(path))
        return error_set(e, PL_USAGE, "%s: it holds %s; to train on its columns set data.format: conversations", path,
                         what);
    if (what) return error_set(e, PL_USAGE, "%s: it holds %s; expected plain text in UTF-8", path, what);
    if (path_has_ending(path, ".json") || path_has_ending(path, ".jsonl") || path_has_ending(path, ".ndjson"))
        return error_set(e, PL_USAGE,
                         "%s: it holds JSON; for its conversations or texts set data.format: conversations. To train "
                         "on the JSON itself, rename the file to .txt",
                         path);
    return PL_OK;
}

int records_open_text(struct records *r, const char *path, struct error *e)
{
    *r = (struct records){.path = path, .fd = -1, .line = 1, .plain = true};
    return dir_exists(path) ? refuse_folder(path, e) : open_bytes(r, refuse_other, e);
}

void records_close(struct records *r)
{
    if (r->buffer) close(r->fd);
    close_table(r->table);
    mem_free(r->buffer);
    text_free(&r->object);
    *r = (struct records){0};
}

/* Reads more bytes behind those that are there; *end: there are no more. */
static int refill(struct records *r, bool *end, struct error *e)
{
    if (r->from) memmove(r->buffer, r->buffer + r->from, r->n - r->from);
    r->n -= r->from;
    r->from = 0;
    if (r->n == r->room) r->buffer = mem_resize(r->buffer, r->room = 2 * r->room);
    ssize_t got;
    do got = read(r->fd, r->buffer + r->n, r->room - r->n);
    while (got < 0 && errno == EINTR);
    if (got < 0) return file_error(r->path, "be read", e);
    r->n += (size_t)got;
    *end = !got;
    return PL_OK;
}

/* Uses n bytes of the buffer. */
static void use(struct records *r, size_t n)
{
    for (const char *p = r->buffer + r->from, *end = p + n; (p = memchr(p, '\n', (size_t)(end - p))); p++) r->line++;
    r->from += n;
    r->bytes += n;
}

/* Skips blanks and gives the next byte without using it; 0 and *end: there is none. A zero byte in
 * the file is returned as 1, which no caller expects. */
static int next_byte(struct records *r, char *out, bool *end, struct error *e)
{
    *end = false;
    for (;;) {
        size_t k = r->from;
        while (k < r->n && strchr(" \t\r\n", r->buffer[k]) && r->buffer[k]) k++;
        use(r, k - r->from);
        if (k < r->n) break;
        if (refill(r, end, e)) return e->code;
        if (*end) return PL_OK;
    }
    *out = r->buffer[r->from] ? r->buffer[r->from] : 1;
    return PL_OK;
}

/* --- plain text ------------------------------------------------------------------------------- */

/* Returns where to cut n bytes of text that goes on: behind the last empty line of its second
 * half, or else behind the last of "\n" or " ", or before the last character. */
static size_t cut_text(const char *text, size_t n)
{
    static const char *const ends[] = {"\n\n", "\n", " "};
    for (size_t i = 0; i < COUNT(ends); i++)
        for (size_t length = strlen(ends[i]), at = n; at >= n / 2 + length; at--)
            if (!memcmp(text + at - length, ends[i], length)) return at;
    size_t at = n - 1;
    while (at && ((unsigned char)text[at] & 0xc0) == 0x80) at--;
    return at ? at : n;
}

static int next_text(struct records *r, struct record *out, bool *more, struct error *e)
{
    bool end = false;
    while (r->n - r->from < TEXT_MOST + 1 && !end)
        if (refill(r, &end, e)) return e->code;
    if (!r->bytes && r->n - r->from >= 3 && !memcmp(r->buffer + r->from, "\xef\xbb\xbf", 3)) use(r, 3);
    const char *text = r->buffer + r->from;
    const size_t there = r->n - r->from, n = there > TEXT_MOST ? cut_text(text, TEXT_MOST) : there;
    const uint64_t line = r->line;
    if (!n) return PL_OK;
    const size_t valid = utf8_check(text, n);
    if (valid < n || memchr(text, 0, n))
        return error_set(e, PL_USAGE,
                         "%s: it is not text in UTF-8: byte %llu %s. Save it as UTF-8, or set data.format: bytes",
                         r->path, (unsigned long long)(r->bytes +
                                              (valid < n ? valid : (size_t)((const char *)memchr(text, 0, n) - text))),
                         valid < n ? "begins no character" : "is 0");
    struct json_writer w = {.out = &r->object};
    r->object.n = 0;
    json_begin_map(&w, NULL);
    json_put_bytes(&w, "text", text, n);
    json_end(&w);
    *out = (struct record){r->object.at, r->object.n, line, 1};
    *more = true;
    use(r, n);
    return PL_OK;
}

/* --- JSON ------------------------------------------------------------------------------------- */

/* The state of the scan within an object. */
struct extent {
    size_t at;     /* from the object's beginning */
    uint32_t depth;
    bool string;
    bool broken;   /* a line ended in it */
    bool filled;   /* its first line has more than {: one object a line */
};

/* Scans what the buffer has; true: the object is complete. In a file with one object a line, a
 * line that does not close its object ends where the next object begins: json_parse refuses it, and
 * the others can be used. */
static bool scan(const struct records *r, struct extent *x)
{
    const char *p = r->buffer + r->from;
    const size_t n = r->n - r->from;
    while (x->at < n) {
        const char c = p[x->at];
        if (c == '\n' && x->filled && !r->list) {
            if (x->at + 1 == n) return false; /* the next line is not there yet */
            if (p[x->at + 1] == '{') return true;
        }
        x->filled |= x->at && c != ' ' && c != '\t' && c != '\r' && c != '\n' && !x->broken;
        x->broken |= c == '\n';
        if (x->string && c == '\\') {
            if (x->at + 1 == n) return false; /* the escaped byte is not there yet */
            x->at += 2;
            continue;
        }
        x->at++;
        if (c == '"') x->string = !x->string;
        else if (x->string) continue;
        else if (c == '{' || c == '[') x->depth++;
        else if ((c == '}' || c == ']') && !--x->depth) return true;
    }
    return false;
}

/* A file may be one long line: then the number of the sample is in the upper bits. */
enum { NUMBER = 32 };
uint64_t record_line(uint64_t line) { return line & (((uint64_t)1 << NUMBER) - 1); }

struct record_place record_place(uint64_t line)
{
    struct record_place out;
    const uint32_t number = (uint32_t)(line >> NUMBER);
    if (number) snprintf(out.text, sizeof out.text, "%u (sample %u)", (uint32_t)line, number);
    else snprintf(out.text, sizeof out.text, "%u", (uint32_t)line);
    return out;
}

static int too_long(const struct records *r, uint64_t line, struct error *e)
{
    return error_set(e, PL_USAGE,
                     "%s:%llu: the object that begins here is longer than %llu MiB (data.sample_memory); expected a "
                     "list of samples, or one sample a line",
                     r->path, (unsigned long long)line, (unsigned long long)(r->most >> 20));
}

static int read_object(struct records *r, struct record *out, struct error *e)
{
    struct extent x = {0};
    const uint64_t line = r->line;
    bool end = false;
    while (!scan(r, &x)) {
        if (x.at > r->most) return too_long(r, line, e);
        if (refill(r, &end, e)) return e->code;
        if (end)
            return fail(r, line, e,
                "the object that begins here does not end: the file is truncated, or a quote or a bracket is missing");
    }
    if (x.at > r->most) return too_long(r, line, e);
    r->objects++;
    *out = (struct record){r->buffer + r->from, x.at, line == r->last ? line | r->objects << NUMBER : line, 1};
    r->last = line;
    use(r, x.at);
    return PL_OK;
}

/* Reads the beginning of the file: a byte order mark, and whether it is a list. */
static int begin(struct records *r, struct error *e)
{
    bool end = false;
    char c = 0;
    while (r->n < 3 && !end)
        if (refill(r, &end, e)) return e->code;
    if (r->n >= 3 && !memcmp(r->buffer, "\xef\xbb\xbf", 3)) use(r, 3);
    if (next_byte(r, &c, &end, e)) return e->code;
    if (end) return fail(r, r->line, e, "the file holds nothing but blanks");
    if (c != '[' && c != '{')
        return fail(r, r->line, e,
                    "expected JSON: a list of objects, or one object a line; for plain text set data.format: text");
    r->list = c == '[';
    if (r->list) use(r, 1);
    r->begun = true;
    return PL_OK;
}

int records_next(struct records *r, struct record *out, bool *more, struct error *e)
{
    bool end = false, comma = false;
    char c = 0;
    *more = false;
    if (r->table) return next_row(r, out, more, e);
    if (r->plain) return next_text(r, out, more, e);
    if (!r->begun && begin(r, e)) return e->code;
    if (next_byte(r, &c, &end, e)) return e->code;
    if (r->list && r->after && c == ',' && !end) {
        use(r, 1);
        if (next_byte(r, &c, &end, e)) return e->code;
        r->after = false;
        comma = true;
    }
    if (end && r->list)
        return fail(r, r->line, e, "the list of samples does not end: the file is truncated, or ] is missing");
    if (end) return PL_OK;
    if (r->list && c == ']' && !comma) {
        use(r, 1);
        if (next_byte(r, &c, &end, e)) return e->code;
        r->list = false;
        return end ? PL_OK : fail(r, r->line, e, "unexpected text after the list of samples");
    }
    if (c != '{' || (r->list && r->after))
        return fail(r, r->line, e, r->list && r->after ? "expected a comma or ] after an object of the list"
                                        : "expected an object, {...}");
    *more = true;
    r->after = true;
    return read_object(r, out, e);
}

char records_peek(const char *path)
{
    char head[512];
    size_t n = file_peek(path, head, sizeof head - 1), at = n >= 3 && !memcmp(head, "\xef\xbb\xbf", 3) ? 3 : 0;
    head[n] = 0;
    at += strspn(head + at, " \t\r\n");
    return head[at] == '[' || head[at] == '{' ? head[at] : 0;
}
