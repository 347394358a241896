/*
 * shell_words.h: the commands of a shell script as words, only for command_line.c.
 *
 *     GPUS=8                                  a variable
 *     ARGS=(--use_amp --lr 1e-4)              a list
 *     torchrun --nproc_per_node $GPUS \       a command: torchrun, --nproc_per_node, 8, train.py, --use_amp, --lr, 1e-4
 *         train.py "${ARGS[@]}"
 *
 * Quotes, escapes, comments, ${NAME:-default} and ~/ are those of a shell. Nothing is executed: $(...) has no value.
 */
#ifndef IMPORT_SHELL_WORDS_H
#define IMPORT_SHELL_WORDS_H

#include "import/import_rows.h"

struct word {
    const char *text;
    uint32_t line;
    const char *unknown; /* a variable or expression in it that has no value here; NULL: none */
    bool list;           /* NAME=(...) */
};
typedef VEC(struct word) words;

struct shell {
    struct import *f;
    const char *name, *at;
    uint32_t line;
    struct value *variables; /* of the file; null: unknown */
    struct value *causes;    /* of variables that are unknown because of another one: its name */
    struct error *e;
    size_t expanded;         /* bytes that variables gave; their number is bounded, for A=$A$A doubles on each line */
};

/* The words of the next command, in place of those in `out`; none at the end of the file. Words live in s->f->memory. */
int shell_command(struct shell *s, words *out);
/* NAME=... or NAME+=... */
bool shell_is_assignment(const char *word);
/* Sets the variable. NAME=$1 leaves a default that NAME has. */
void shell_assign(struct shell *s, const struct word *w);

#endif
