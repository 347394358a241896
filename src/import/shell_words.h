/*
 * shell_words.h: the commands of a shell script as words, only for command_line.c.
 *
 *     GPUS=8                                  a value for the name GPUS
 *     torchrun --nproc_per_node $GPUS \       a command: torchrun, --nproc_per_node, 8, train.py, --use_amp
 *         train.py --use_amp
 *
 * Quotes, escapes, comments and ~/ are those of a shell. $NAME and ${NAME} have the value that the file gives them.
 * Everything else that a shell would compute, ${NAME:-default}, $(...), $1, a list, a variable of the environment,
 * stays as it is written: the word says what it lacks, and the reader of the command asks for it.
 */
#ifndef IMPORT_SHELL_WORDS_H
#define IMPORT_SHELL_WORDS_H

#include "import/import_rows.h"

struct word {
    const char *text;
    uint32_t line;
    const char *unknown; /* the variable or expression in it without a value; NULL: none */
};
typedef VEC(struct word) words;

struct shell {
    struct import *f;
    const char *name, *at;
    uint32_t line;
    struct value *variables; /* of the file: texts, in which names without a value are left */
    size_t expanded;         /* bytes that variables gave; bounded, because A=$A$A doubles on each line */
    struct error *e;
};

/* Reads the words of the next command, in place of those in `out`; none at the end of the file. Words live in
 * s->f->memory. */
int shell_command(struct shell *s, words *out);
/* Tells whether a word is NAME=... or NAME+=... */
bool shell_is_assignment(const char *word);
/* Returns the first variable in a text, whose value is not known; NULL: there is none. */
const char *shell_lacks(struct shell *s, const char *text);
/* Sets the variable. NAME=$1 leaves a value that NAME has. */
void shell_assign(struct shell *s, const struct word *w);

#endif
