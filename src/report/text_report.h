/*
 * text_report.h: what files of conversations and texts hold, what cannot be used and why, lengths
 * and labels (batch/text_facts.h), as text and as JSON.
 */
#pragma once

#include "batch/text_facts.h"

/* `t`: the tokenizer; NULL: there is none, and no text is measured. */
void text_report_print(const struct text_facts *f, const struct text_measures *m, const struct tokenizer *t,
                       struct text *out);
void text_report_json(const struct text_facts *f, const struct text_measures *m, struct text *out);
