/*
 * page.h: the planner for a page of a browser: the same C, compiled to WebAssembly.
 *
 *     page.js ─ text in memory ─ page.c ─ compare/, planning/, plan/ ...
 *        └──────────── standard output ──────┘
 *
 * A page has no files, no GPU and no threads. browser.c says so where a plan asks, json_tree.c
 * parses JSON without a library, and absent.txt lists what a plan never calls.
 */
#pragma once

#include "io/file.h"
#include "plan/plan.h"

/* Gives the planner a file, such as the config.json of a model; a second one of the same name
 * replaces it. Both texts are copied. */
void page_set_file(const char *path, const char *text);

/* Appends the memory map of a plan (map.c). */
void page_put_map(const struct plan *plan, const struct graph *g, struct text *out);
