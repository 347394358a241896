/*
 * import.h: the configurations of other programs: --config-from.
 *
 *     struct import f = {0};
 *     import_read(&f, "recipe.yaml", &error)      each file; a file that it names is read too
 *     import_apply(&f, &config, &error)           after config_init, before RUN.yaml
 *     ... RUN.yaml, --set ...
 *     import_settle(&f, &config, &error)
 *     import_print(&f, &config, &text)            our key = value, from which key of theirs; what
 *                                                 has no effect
 *     import_free(&f)
 *
 * A file is a configuration of a program of import.def: Hugging Face TrainingArguments, TRL,
 * LLaMA-Factory, LLaVA, ms-swift, Axolotl, DeepSpeed, Accelerate; the flags or YAML of a training
 * script, or a shell script with the command line of one; or such values in Python's notation.
 * import.def has a row for each key that means something, ignored.def the others; which program a
 * file belongs to follows from its keys. The rules of several files:
 *
 *   - of two values for the same key the later file's counts;
 *   - a value of a DeepSpeed file must be that of the program that uses the file, or "auto";
 *   - the arguments of a script come before those of its launcher.
 *
 * Every error is PL_USAGE and names the file, the line and their key.
 */
#pragma once

#include "config/config.h"

/* A key of ours that was set, and the text that says from what. */
struct import_set {
    enum config_key key;
    const char *from;
};
/* A key of theirs without effect, and why. */
struct import_left {
    const char *key, *why;
};
/* A key of theirs that changes what is trained and has no key here, until `ours` is set. */
struct import_question {
    const char *file;
    uint32_t line;
    const char *key;
    const struct value *value; /* NULL: a variable of the shell, which every command asks for */
    enum config_key ours;
    const char *question;      /* of a variable: its name */
};
/* A file that was read: "recipe.yaml: TRL". */
struct import_file {
    const char *name;
    const char *program;
};

struct import {
    VEC(struct import_entry) entries; /* import_rows.h */
    VEC(struct import_set) set;
    VEC(struct import_left) left;
    VEC(struct import_question) questions;
    VEC(struct import_file) files;
    struct bump memory; /* owns all texts and values */
    const char *script; /* whose options a file has that names no program; NULL: its keys tell */
    unsigned programs;  /* a bit for each that was read */
    int depth;          /* of files that name files */
    int64_t ranks;      /* of this run, which are theirs unless a file says otherwise; 0 is 1 */
    bool asks;          /* a question without an answer is an error: the command decides what is trained */
    struct error *error; /* import_apply: the first error */
};

int import_read(struct import *f, const char *path, struct error *e);
/* A file's bytes; messages call it `name`, and files that it names are found from there. */
int import_read_text(struct import *f, const char *bytes, size_t n, const char *name, struct error *e);
int import_apply(struct import *f, struct config *c, struct error *e);
/* Drops what only works with other keys, when these are known: evaluation without validation data.
 * With f->asks an open question is PL_USAGE. */
int import_settle(struct import *f, struct config *c, struct error *e);
/* Drops what only training uses: data, the device, precision and 4-bit weights stay. */
void import_drop_training(struct config *c);
void import_print(const struct import *f, const struct config *c, struct text *out);
void import_free(struct import *f);
