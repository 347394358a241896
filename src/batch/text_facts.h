/*
 * text_facts.h: statistics of a configuration's conversations or texts, for inspection.
 *
 * Lengths come from a token store, which is made in a temporary file with the code that training
 * uses. Without a tokenizer the files are read as far as that is possible.
 */
#pragma once

#include "data/text/records.h"
#include "batch/text_source.h"

struct text_facts {
    struct sample_report report;
    /* of samples that can be read; turns are messages */
    uint64_t counted, turns, most_turns, with_system, with_tools, with_media;
    const char *format;        /* of the first sample */
};
/* Reads all files of data.train. */
int text_count(struct text_facts *f, const struct config *c, struct error *e);

struct text_measures {
    bool tokens;               /* the members below are filled */
    uint64_t samples, median, p95, longest, total, labels; /* samples: those with tokens; labels: of the rows */
    struct conversations set;
    bool rows;                 /* `set` is open */
    char no_rows[1024];        /* why it is not */
    uint64_t missing;          /* samples with an image that is not there, or that may not be read; the first one: */
    char first_missing[400];
};
/* Tokenizes all files of data.train and measures them; *report says what cannot be used. The caller
 * closes m->set if m->rows. */
int text_measure(struct text_measures *m, const struct config *c, const struct text_source *s,
                 struct sample_report *report, struct error *e);

/* Opens a file of conversations, or of plain text, as the configuration says. */
int text_open_records(const struct config *c, const char *path, struct records *r, struct error *e);

/* Shows the first n samples of data.train as the model reads them, with the tokens that have labels
 * marked. */
int text_show_samples(const struct config *c, const struct text_source *s, uint64_t n, struct text *out,
                      struct error *e);
