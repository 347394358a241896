/*
 * answers.h: the section of a run's page with what the model answered: images, question, reference,
 * answer.
 */
#ifndef REPORT_ANSWERS_H
#define REPORT_ANSWERS_H

#include "base/base.h"

/* Appends the answers of the last evaluation, DIR/answers/step-N.jsonl, some of them. Nothing is
 * appended if there is none. Images are read where the run's configuration has them; one that is
 * not there is named. */
void answers_section(struct text *out, const char *dir);

#endif
