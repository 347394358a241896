/*
 * table.h: values with keys, written once and shown as text, as JSON and as HTML.
 *
 *     facts     a JSON map: PRINT_FACTS(2, FACT("steps", n), FACT_IF(host, "host_bytes", host));
 *     a table   rows of values under columns: a JSON list of maps, aligned text, an HTML table
 *
 * A value keeps its C type, which decides how JSON shows it; the column's format decides how text
 * and HTML do.
 */
#pragma once

#include "io/json.h"

struct fact;
struct report_table;

enum cell_kind {
    CELL_NONE,   /* left out */
    CELL_NULL, CELL_TEXT, CELL_INT, CELL_UINT, CELL_NUMBER, CELL_BOOL,
    CELL_MAP, CELL_TABLE, CELL_NUMBERS, CELL_INTS,
    CELL_CALL,   /* a function writes it */
};
struct cell {
    enum cell_kind kind;
    union {
        const char *text;
        int64_t i;
        uint64_t u;
        double x;
        bool b;
        const void *of;   /* struct fact[], struct report_table, double[], int64_t[], or what `call` gets */
    };
    size_t n;             /* of a map or a list of numbers */
    void (*call)(struct json_writer *w, const void *of);
};
static inline struct cell cell_text(const char *x) { return (struct cell){x ? CELL_TEXT : CELL_NULL, .text = x}; }
static inline struct cell cell_int(int64_t x) { return (struct cell){CELL_INT, .i = x}; }
static inline struct cell cell_uint(uint64_t x) { return (struct cell){CELL_UINT, .u = x}; }
static inline struct cell cell_number(double x) { return (struct cell){CELL_NUMBER, .x = x}; }
static inline struct cell cell_bool(bool x) { return (struct cell){CELL_BOOL, .b = x}; }
static inline struct cell cell_ints(const int64_t *x, size_t n) { return (struct cell){CELL_INTS, .of = x, .n = n}; }

/* A value by its type. A comparison is an int in C: cast it to bool. */
#define CELL(x)                                                                                              \
    _Generic((x), bool: cell_bool, double: cell_number, float: cell_number, char *: cell_text,               \
        const char *: cell_text, int: cell_int, long: cell_int, long long: cell_int, unsigned: cell_uint,    \
        unsigned long: cell_uint, unsigned long long: cell_uint)(x)
#define CELL_IF(have, x) ((have) ? CELL(x) : (struct cell){0})

struct fact {
    const char *key;      /* NULL: of a value that writes its keys itself */
    struct cell value;
};
#define FACT_COUNT(...) (sizeof((const struct fact[]){__VA_ARGS__}) / sizeof(struct fact))
#define FACT(key, x) {key, CELL(x)}
#define FACT_IF(have, key, x) {key, CELL_IF(have, x)}
/* A map of facts, a list of rows, a list of doubles. */
#define FACT_MAP(key, ...) {key, {CELL_MAP, .of = (const struct fact[]){__VA_ARGS__}, .n = FACT_COUNT(__VA_ARGS__)}}
#define FACT_TABLE(key, t) {key, {CELL_TABLE, .of = (t)}}
#define FACT_TABLE_IF(have, key, t) {key, {(have) ? CELL_TABLE : CELL_NONE, .of = (t)}}
#define FACT_NUMBERS(key, x, count) {key, {CELL_NUMBERS, .of = (x), .n = (count)}}
/* Facts that function(writer, of) writes. */
#define FACT_CALL(function, x) {NULL, {CELL_CALL, .of = (x), .call = (function)}}
#define FACT_CALL_IF(have, function, x) {NULL, {(have) ? CELL_CALL : CELL_NONE, .of = (x), .call = (function)}}

/* Writes facts as members of the open map. */
void facts_put(struct json_writer *w, const struct fact *facts, size_t n);
#define PUT_FACTS(w, ...) facts_put(w, (const struct fact[]){__VA_ARGS__}, FACT_COUNT(__VA_ARGS__))
/* Prints facts on standard output as one JSON map and a newline; indent 0: on one line. */
void facts_print(int indent, const struct fact *facts, size_t n);
#define PRINT_FACTS(indent, ...) facts_print(indent, (const struct fact[]){__VA_ARGS__}, FACT_COUNT(__VA_ARGS__))

struct report_column {
    const char *key;      /* NULL: not in JSON */
    const char *title;    /* NULL: in JSON only */
    /* NULL: as it is, aligned left; "" as it is; "bytes"; "time"; "count", with commas; or a format
     * of printf for a double, which is multiplied by `scale` (0: 1) */
    const char *format;
    double scale;
};
struct report_row {
    struct cell *cells;
    const char *note;     /* text in place of all cells but the first; NULL: none */
    bool text_only;       /* not in JSON, and not counted: a sum below the others */
};
struct report_table {
    const struct report_column *columns;
    uint32_t n_columns;
    VEC(struct report_row) rows;
    struct bump memory;
};
#define REPORT_TABLE(list) {.columns = (list), .n_columns = COUNT(list)}

/* Adds a row with a copy of its texts and returns it, for a note. Cells that are not given are
 * CELL_NONE. */
struct report_row *table_add(struct report_table *t, const struct cell *cells, size_t n);
#define TABLE_ADD(t, ...) \
    table_add(t, (const struct cell[]){__VA_ARGS__}, sizeof((const struct cell[]){__VA_ARGS__}) / sizeof(struct cell))
/* Sets the note of a row to a copy. */
void table_note(struct report_table *t, struct report_row *r, const char *note);
void table_free(struct report_table *t);

/* Prints the titles, unless all are "", and the first `most` rows (0: all), aligned, each after
 * `indent` blanks. */
void table_print(const struct report_table *t, int indent, uint32_t most, struct text *out);
/* Writes the rows as a list of maps. */
void table_json(const struct report_table *t, struct json_writer *w, const char *key);
/* Writes the first `most` rows as an HTML table of a CSS class, which may be "". */
void table_html(const struct report_table *t, const char *class, uint32_t most, struct text *out);

/* Appends text with HTML's special characters escaped. */
void html_escape(struct text *out, const char *s);
