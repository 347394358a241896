/*
 * data.h: `plimsoll data WHAT ...`: one file per WHAT (data_make.c, ...), a table of them
 * in data.c, and the options they parse.
 */
#ifndef CLI_DATA_H
#define CLI_DATA_H

#include "cli/cli.h"
#include "io/file.h"

/* Each is a command of its own; `usage` begins with "data WHAT", `summary` may have several
 * lines and explains every option. */
extern const struct command data_make, data_prepare, data_inspect, data_verify, data_pack;

/* An option of such a command. */
enum data_kind { DATA_SWITCH, DATA_TEXT, DATA_COUNT, DATA_POSITIVE, DATA_SIZE, DATA_REAL, DATA_LIST };
struct data_option {
    const char *name;
    enum data_kind kind;
    void *to; /* bool, const char *, uint64_t (POSITIVE: a 0 there means that it was not given), uint32_t[2] of width and height (WxH), double,
                 struct names: may be given again and again */
};
/* Parses argv by the table; what is no option goes to `paths` (heap copies), or is an error
 * when that is NULL. *help: the usage was asked for and printed, nothing else is to be done. */
int data_options(const struct command *c, const struct data_option *table, size_t n, int argc, char **argv, struct names *paths, bool *help,
                 struct error *e);
/* "WxH" */
bool data_parse_size(const char *s, uint32_t size[2]);

#endif
