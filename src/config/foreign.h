/*
 * foreign.h: the configurations of other programs: --config-from.
 *
 *     struct foreign f = {0};
 *     foreign_read(&f, "recipe.yaml", &error)      each file; a file that it names is read too
 *     foreign_apply(&f, &config, &error)           after config_init, before RUN.yaml
 *     ... RUN.yaml, --set ...
 *     foreign_settle(&f, &config, &error)
 *     foreign_print(&f, &config, &text)            our key = value, from which key of theirs; what has no effect
 *     foreign_free(&f)
 *
 * A file is a configuration of a program of foreign.def: Hugging Face TrainingArguments, TRL, LLaMA-Factory, LLaVA,
 * ms-swift, Axolotl, DeepSpeed, Accelerate; the flags or YAML of a training script, or a shell script with the command
 * line of one; or such values in Python's notation. foreign.def has a row for each key that means something,
 * foreign_ignored.def the others; which program a file belongs to follows from its keys. The rules of several files:
 *
 *   - of two values for the same key the later file's counts;
 *   - a value of a DeepSpeed file must be that of the program that uses the file, or "auto";
 *   - the arguments of a script come before those of its launcher.
 *
 * Every error is PL_USAGE and names the file, the line and their key.
 */
#ifndef CONFIG_FOREIGN_H
#define CONFIG_FOREIGN_H

#include "config/config.h"

/* A key of ours that was set, and the text that says from what. */
struct foreign_set {
    enum config_key key;
    const char *from;
};
/* A key of theirs without effect, and why. */
struct foreign_left {
    const char *key, *why;
};
/* A key of theirs that changes what is trained and has no key here, until `ours` is set. */
struct foreign_question {
    const char *file;
    uint32_t line;
    const char *key;
    const struct value *value;
    enum config_key ours;
    const char *question;
};
/* A file that was read: "recipe.yaml: TRL". */
struct foreign_file {
    const char *name;
    const char *program;
};

struct foreign {
    VEC(struct foreign_entry) entries; /* foreign_rows.h */
    VEC(struct foreign_set) set;
    VEC(struct foreign_left) left;
    VEC(struct foreign_question) questions;
    VEC(struct foreign_file) files;
    struct bump memory; /* owns all texts and values */
    const char *script; /* whose options a file of options alone has; NULL: its keys tell */
    unsigned programs;  /* a bit for each that was read */
    int depth;          /* of files that name files */
    int64_t ranks;      /* of this run, which are theirs unless a file says otherwise; 0 is 1 */
    bool asks;          /* a question without an answer is an error: the command decides what is trained */
    struct error *error; /* foreign_apply: the first error */
};

int foreign_read(struct foreign *f, const char *path, struct error *e);
/* A file's bytes; messages call it `name`, and files that it names are found from there. */
int foreign_read_text(struct foreign *f, const char *bytes, size_t n, const char *name, struct error *e);
int foreign_apply(struct foreign *f, struct config *c, struct error *e);
/* Drops what only works with other keys, when these are known: evaluation without validation data. With f->asks an open
 * question is PL_USAGE. */
int foreign_settle(struct foreign *f, struct config *c, struct error *e);
/* Drops what only training uses: data, the device, precision and 4-bit weights stay. */
void foreign_drop_training(struct config *c);
void foreign_print(const struct foreign *f, const struct config *c, struct text *out);
void foreign_free(struct foreign *f);

#endif
