/*
 * data.h: `plimsoll data SUBCOMMAND ...`: one file per subcommand (data_make.c, ...); their table
 * is in data_make.c.
 */
#ifndef CLI_DATA_H
#define CLI_DATA_H

#include "cli/cli.h"
#include "io/file.h"

/* Each subcommand is a struct command; `usage` begins with "data SUBCOMMAND", `summary` may have
 * several lines and describes every option. */
extern const struct command data_make, data_prepare, data_inspect, data_verify, data_pack, data_tokenize;

/* An option of a subcommand. */
enum data_kind { DATA_SWITCH, DATA_TEXT, DATA_COUNT, DATA_POSITIVE, DATA_SIZE, DATA_REAL, DATA_LIST };
struct data_option {
    const char *name;
    enum data_kind kind;
    void *
        to; /* points to a bool, const char *, uint64_t (DATA_POSITIVE: 0 means not given), uint32_t[2] of width and height (WxH), double,
                 or struct names (DATA_LIST: each use of the option appends a name) */
};
/* Parses argv by the table. Arguments that are not options go to `paths` (heap copies), or are
 * an error when `paths` is NULL. *help: --help was given and printed; the caller returns. */
int data_options(const struct command *c, const struct data_option *table, size_t n, int argc, char **argv,
                 struct names *paths, bool *help, struct error *e);
/* Refuses an output that would be written as PNG under the name of another image format. */
int data_check_png(const char *option, const char *path, struct error *e);
/* Inspects conversations (data_inspect_text.c): the files of `paths`, or of the configuration
 * `run`. */
struct inspect_text {
    const struct names *paths, *set; /* set: KEY=VALUE */
    const char *run;                 /* NULL: none */
    const char *model;               /* a folder, a tokenizer.json or a tokenizer.model; NULL: the configuration's */
    const char *images;              /* data.images; NULL: the configuration's */
    uint64_t samples;                /* to show */
    bool json;
};
int inspect_text(const struct inspect_text *o, struct error *e);
/* Parses "WxH". */
bool data_parse_size(const char *s, uint32_t size[2]);

/* Reports whether the first path is a store of the embeddings of conversations' images; inspects it
 * or, with `check`, verifies it (data_inspect.c). */
bool embeddings_alone(const struct names *paths);
int inspect_embeddings(const struct names *paths, bool check, bool json, struct error *e);

#endif
