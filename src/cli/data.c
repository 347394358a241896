/*
 * data.c: `plimsoll data`: dispatches to the subcommand and parses the options of all of them.
 */
#include "cli/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct command *const commands[] = {&data_make,   &data_prepare, &data_inspect,
                                                 &data_verify, &data_pack,    &data_tokenize};

/* ---- options ---- */

int data_check_png(const char *option, const char *path, struct error *e)
{
    static const char *const others[] = {".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"};
    const char *dot = path ? strrchr(path, '.') : NULL;
    for (size_t i = 0; i < COUNT(others) && dot; i++)
        if (!strcasecmp(dot, others[i]))
            return error_set(e, PL_USAGE, "%s %s: images are written as PNG; give a name that ends in .png", option,
                             path);
    return PL_OK;
}

bool data_parse_size(const char *s, uint32_t size[2])
{
    char *end;
    unsigned long w = strtoul(s, &end, 10), h;
    if (end == s || *s < '0' || *s > '9' || (*end != 'x' && *end != 'X')) return false;
    s = end + 1;
    h = strtoul(s, &end, 10);
    if (end == s || *s < '0' || *s > '9' || *end || !w || !h || w > 1000000 || h > 1000000) return false;
    size[0] = (uint32_t)w;
    size[1] = (uint32_t)h;
    return true;
}

static bool parse_count(const char *s, uint64_t *to)
{
    char *end;
    if (*s < '0' || *s > '9') return false;
    *to = strtoull(s, &end, 10);
    return !*end;
}

static bool parse_real(const char *s, double *to)
{
    char *end;
    *to = strtod(s, &end);
    return end != s && !*end && isfinite(*to);
}

static int parse_value(const struct data_option *o, const char *value, struct error *e)
{
    if (o->kind == DATA_TEXT) *(const char **)o->to = value;
    else if (o->kind == DATA_COUNT && !parse_count(value, o->to))
        return error_set(e, PL_USAGE, "%s %s: expected a whole number", o->name, value);
    else if (o->kind == DATA_POSITIVE && (!parse_count(value, o->to) || !*(uint64_t *)o->to))
        return error_set(e, PL_USAGE, "%s %s: expected a whole number above 0", o->name, value);
    else if (o->kind == DATA_SIZE && !data_parse_size(value, o->to))
        return error_set(e, PL_USAGE, "%s %s: expected WIDTHxHEIGHT in pixels, such as 1024x768", o->name, value);
    else if (o->kind == DATA_REAL && !parse_real(value, o->to))
        return error_set(e, PL_USAGE, "%s %s: expected a number", o->name, value);
    else if (o->kind == DATA_LIST) vec_push((struct names *)o->to, mem_string(value));
    return PL_OK;
}

static int unknown_option(const struct data_option *table, size_t n, const char *arg, struct error *e)
{
    const char *nearest = NULL;
    int best = 4;
    for (size_t i = 0; i < n; i++)
        if (edit_distance(arg, table[i].name) < best) best = edit_distance(arg, table[i].name), nearest = table[i].name;
    return error_set(e, PL_USAGE, "unknown option %s%s%s%s --help lists them", arg, nearest ? "; did you mean " : ";",
                     nearest ? nearest : "", nearest ? "?" : "");
}

static int parse_option(const struct data_option *table, size_t n, int argc, char **argv, int *i, struct error *e)
{
    const char *arg = argv[*i], *equals = strchr(arg, '=');
    size_t length = equals ? (size_t)(equals - arg) : strlen(arg);
    const struct data_option *o = NULL;
    for (size_t k = 0; k < n; k++)
        if (strlen(table[k].name) == length && !strncmp(table[k].name, arg, length)) o = &table[k];
    if (!o) return unknown_option(table, n, arg, e);
    if (o->kind == DATA_SWITCH) {
        if (equals) return error_set(e, PL_USAGE, "%s takes no value", o->name);
        *(bool *)o->to = true;
        return PL_OK;
    }
    const char *value = equals ? equals + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    return value ? parse_value(o, value, e) : error_set(e, PL_USAGE, "%s needs a value", arg);
}

int data_options(const struct command *c, const struct data_option *table, size_t n, int argc, char **argv,
                 struct names *paths, bool *help, struct error *e)
{
    *help = false;
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            printf("usage: plimsoll %s\n\n%s\n", c->usage, c->summary);
            *help = true;
            return PL_OK;
        }
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1]) {
            if (parse_option(table, n, argc, argv, &i, e)) return e->code;
        } else if (paths) {
            vec_push(paths, mem_string(argv[i]));
        } else {
            return error_set(e, PL_USAGE, "unexpected argument %s", argv[i]);
        }
    }
    return PL_OK;
}

/* ---- dispatch ---- */

static void usage(FILE *out)
{
    fprintf(out, "usage:\n");
    for (size_t i = 0; i < COUNT(commands); i++) fprintf(out, "  plimsoll %s\n", commands[i]->usage);
    fprintf(out, "\n`plimsoll data SUBCOMMAND --help` describes a subcommand.\n");
}

static int data(int argc, char **argv, struct error *e)
{
    if (argc && (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h"))) {
        usage(stdout);
        return PL_OK;
    }
    for (size_t i = 0; i < COUNT(commands) && argc; i++)
        if (!strcmp(argv[0], commands[i]->name)) {
            int rc = commands[i]->run(argc - 1, argv + 1, e);
            return rc ? error_prepend(e, "%s", commands[i]->name) : PL_OK;
        }
    struct text known = {0};
    for (size_t i = 0; i < COUNT(commands); i++)
        text_printf(&known, "%s%s", i == 0 ? "" : i + 1 < COUNT(commands) ? ", " : " or ", commands[i]->name);
    const char *nearest = argc ? nearest_command(argv[0], commands, COUNT(commands)) : NULL;
    if (nearest)
        error_set(e, PL_USAGE, "unknown subcommand %s; did you mean `data %s`? --help describes all", argv[0], nearest);
    else if (argc) error_set(e, PL_USAGE, "data %s: expected %s; --help describes them", argv[0], known.at);
    else error_set(e, PL_USAGE, "no subcommand is given: expected %s; --help describes them", known.at);
    text_free(&known);
    return PL_USAGE;
}

const struct command command_data = {
    "data", "data make | prepare | inspect | verify | pack | tokenize ...",
    "Makes, repairs, inspects, verifies and packs datasets of images with masks; inspects and tokenizes conversations.",
    data};
