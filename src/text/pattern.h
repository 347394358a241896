/*
 * pattern.h: regular expressions on Oniguruma: those of tokenizer.json, with the meaning that the
 * `tokenizers` library gives them (Oniguruma is its own engine), and those of adapters, with the
 * meaning of Python's `re`. Only pattern.c knows the engine.
 */
#pragma once

#include "base/base.h"

struct pattern;

/* Compiles an expression for searches in UTF-8. PL_USAGE: the expression does not compile; the
 * message has the expression and the reason. */
int pattern_compile(struct pattern **out, const char *expression, struct error *e);
/* Frees a pattern; NULL is allowed. */
void pattern_free(struct pattern *p);

/* Memory and limits of a thread's searches. */
struct pattern_search;
struct pattern_search *pattern_search_new(void);
void pattern_search_free(struct pattern_search *s);

/* Begins a text of n bytes: all searches up to the next call together may take processor time in
 * proportion to n. */
void pattern_search_begin(struct pattern_search *s, size_t n);

/* Finds the first match in text[0, n) that begins at `from` or later: *begin and *end. Returns 1:
 * found, 0: none, -1: the engine gave up, because the expression backtracks without end, or the
 * time for the text is over. */
int pattern_find(const struct pattern *p, struct pattern_search *s, const char *text, size_t n, size_t from,
                 size_t *begin, size_t *end);

/* --- Python's `re` over the names of modules, which have no newline; characters are bytes --- */

struct python_pattern;

/* Compiles an expression into `memory`, with which it is freed. PL_USAGE: it is no regular
 * expression of Python, or one with a part that is not supported, such as \N; the message has the
 * reason. */
int python_compile(struct python_pattern **out, const char *expression, struct bump *memory, struct error *e);

enum python_answer { PYTHON_NO, PYTHON_YES, PYTHON_GAVE_UP };

/* Does as re.fullmatch and re.match. The number of steps is bounded: an expression that backtracks
 * without end gives PYTHON_GAVE_UP. Thread-safe. */
enum python_answer python_full_match(const struct python_pattern *p, const char *subject);
/* Does as re.match. `group` NULL: none; else *at gets the offset of this named group in the
 * subject, 0 without it. */
enum python_answer python_match(const struct python_pattern *p, const char *subject, const char *group, size_t *at);
