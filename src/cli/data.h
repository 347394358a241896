/*
 * data.h: `plimsoll data SUBCOMMAND ...`: one file per subcommand (data_make.c, ...); their table
 * is in data_make.c.
 */
#pragma once

#include "cli/cli.h"
#include "io/file.h"

/* Each subcommand is a struct command; `usage` begins with "data SUBCOMMAND", `summary` may have
 * several lines and describes every option. */
extern const struct command data_make, data_prepare, data_inspect, data_verify, data_pack, data_tokenize;

/* Refuses an output that would be written as PNG under the name of another image format. */
int data_check_png(const char *option, const char *path, struct error *e);
/* Parses "WxH". */
bool data_parse_size(const char *s, uint32_t size[2]);

/* Reports whether the first path is a store of the embeddings of conversations' images; inspects it
 * or, with `check`, verifies it (data_embeddings.c). */
bool embeddings_alone(const struct names *paths);
int inspect_embeddings(const struct names *paths, bool check, bool json, struct error *e);
