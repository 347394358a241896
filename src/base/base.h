/*
 * base.h: the common ground of all files: errors, checks, memory, vectors, text, sizes,
 * clocks.
 *
 * Three kinds of error, never mixed:
 *   CHECK            our own bug: prints the expression and aborts, in every build;
 *   struct error     the user's input or the environment: the callee fills it and
 *                    returns its code, callers prepend context, only main prints;
 *   sticky errors    graph builders record the first one (see graph.h).
 */
#pragma once

/* Every file needs these, and includes them through this header. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/codes.h"

struct error {
    int code;
    bool no_descriptors; /* too many files are open: the file that was to be opened has no fault */
    char text[2048];
};

/* Fills `e` with a code and a message; returns the code, so that a failing
 * function can end in `return error_set(...)`. */
int error_set(struct error *e, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Puts context before the message, "context: message"; returns the code. */
int error_prepend(struct error *e, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* TRY(call) returns the code of a call that failed. It suits functions that have nothing to
 * free. */
#define TRY(call)                  \
    do {                           \
        int try_rc = (call);       \
        if (try_rc) return try_rc; \
    } while (0)

__attribute__((noreturn)) void check_failed(const char *file, int line, const char *expr, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* CHECK(condition, "format", ...): an internal invariant, compiled into every build. */
#define CHECK(cond, ...)                                                      \
    do {                                                                      \
        if (!(cond)) check_failed(__FILE__, __LINE__, #cond, "" __VA_ARGS__); \
    } while (0)

/* Progress and warnings, on stderr. log_quiet(true) drops notes and keeps warnings. */
void log_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_quiet(bool quiet);
bool log_is_quiet(void);

/* Heap memory. No function returns NULL; mem_alloc zeroes. All heap allocations of the program
 * go through these functions, so mem_allocations() shows whether a step allocated. */
void *mem_alloc(size_t bytes);
void *mem_resize(void *p, size_t bytes);
void *mem_copy(const void *p, size_t bytes);
char *mem_string(const char *s);
void mem_free(void *p);
uint64_t mem_allocations(void);

/* Ends the process with a line that says what could not be allocated: for libraries that allocate
 * by themselves. */
__attribute__((noreturn)) void mem_exhausted(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Sets the function that ends the process then; it does not return. The default is abort. */
void mem_on_exhaustion(void (*end)(void));
/* Returns what mem_on_exhaustion set. A plug-in has its own copy of mem.c, and is given it. */
void (*mem_exhaustion(void))(void);

/* A pool for the bookkeeping of a running program. mem_pool_create allocates it once from the
 * heap. Between mem_pool_enter and mem_pool_leave every allocation above comes from the pool and
 * is not counted; mem_pool_leave frees all of them. An allocation that does not fit into the
 * pool comes from the heap and is counted. The pool is that of the thread which entered it, one at
 * a time: others take from the heap. */
void mem_pool_create(size_t bytes);
void mem_pool_enter(void);
void mem_pool_leave(void);
void mem_pool_destroy(void);

/* A bump allocator, for many small blocks that are freed together. */
struct bump {
    struct bump_chunk *chunk;
    struct bump_end *ends;
};
void *bump_alloc(struct bump *b, size_t bytes);
char *bump_string(struct bump *b, const char *s);
char *bump_format(struct bump *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Calls end(what) when the allocator is freed, before its memory goes. */
void bump_at_end(struct bump *b, void (*end)(void *), void *what);
void bump_free(struct bump *b);

/* A growable array: VEC(int) v = {0}; vec_push(&v, 3); v.at[0]; vec_free(&v). */
#define VEC(type)        \
    struct {             \
        type *at;        \
        uint32_t n, cap; \
    }
#define vec_push(v, x)                                                                                  \
    ((v)->n < (v)->cap ? (void)0 : vec_grow((void **)&(v)->at, &(v)->cap, (v)->n + 1, sizeof *(v)->at), \
     (v)->at[(v)->n++] = (x))
#define vec_free(v) (mem_free((v)->at), (v)->at = NULL, (v)->n = (v)->cap = 0)
void vec_grow(void **at, uint32_t *cap, uint32_t need, size_t size);

/* Growable text, for printers. It is NUL-terminated as soon as anything was printed. */
struct text {
    char *at;
    size_t n, cap;
};
void text_printf(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text_append(struct text *t, const char *bytes, size_t n);
void text_free(struct text *t);

/* Copies text for a terminal into out[room], cut to fit: control codes, which a file's name may
 * hold, become \n, \t and \x1b. Errors and log lines are escaped by themselves. */
void text_escape(char *out, size_t room, const char *text);
/* Prints a line to standard output, escaped. */
void print_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Parses a size into bytes: "8GiB", "500 MB", "123". KiB/MiB/GiB/TiB are 1024s, KB/MB/GB/TB 1000s.
 * Returns false when the text is not a size. */
bool size_parse(const char *s, uint64_t *bytes);
/* Formats bytes ("1.50 GiB") into the caller's buffer and returns it. */
char *size_print(uint64_t bytes, char out[32]);
/* Formats a count with commas, "41,943,040", and returns `out`. */
char *count_print(uint64_t n, char out[32]);
/* Formats a time for people: "250 us", "18 ms", "1.25 s", "2 min 5 s", "30 min", "2 h 5 min", "3 d
 * 4 h"; at most 3 significant digits or two units, never an exponent. */
char *duration_print(double seconds, char out[32]);
/* Does as duration_print, but with a sign: "+1.25 s", "-18 ms". */
char *duration_change(double seconds, char out[32]);

bool text_ends_with(const char *s, const char *ending);
/* Reports whether a file's name, or its path, has this ending in any case: ".png" of A.PNG. */
bool path_has_ending(const char *path, const char *ending);
/* Matches a shell-style pattern with * and ?, as used for parameter names. */
bool pattern_match(const char *pattern, const char *name);
/* Edit distance, for "did you mean"; two neighbours swapped are one edit. pattern_distance: the
 * distance from `name` to the nearest text that the pattern matches. */
int edit_distance(const char *a, const char *b);
int pattern_distance(const char *pattern, const char *name);
/* The name that is nearest to `to`, among those that closest_try is called with. If there are
 * very many long names, only the first ones are compared: the search takes less than a second. */
struct closest {
    const char *to, *found;
    int distance;
    uint64_t work;
};
void closest_try(struct closest *n, const char *name);

double clock_seconds(void);                     /* monotonic */
uint64_t hash_bytes(const void *p, size_t n, uint64_t seed);

#define COUNT(a) (sizeof(a) / sizeof *(a))
static inline uint64_t align_up(uint64_t x, uint64_t a) { return (x + a - 1) / a * a; }
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
