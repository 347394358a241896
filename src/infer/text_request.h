/*
 * text_request.h: answers to prompts, one or those of a file, as a command asks for them: read,
 * planned, generated and printed.
 */
#pragma once

#include "infer/prompts.h"

/* A prompt as a command has it: one of the first four. */
struct given_prompt {
    const char *ids, *text, *chat, *file;
    struct names images, videos; /* once the prompt is read, all are in images, in its order */
    struct image_batch slots;    /* of its images: what the vision tower gets */
};

struct text_request {
    struct config *config;
    struct given_prompt given;
    uint64_t max_new, context, chunk, batch, seed; /* 0: not given */
    uint64_t top_k;                                /* UINT64_MAX: not given */
    double temperature, top_p, repetition_penalty; /* NaN: not given */
    struct names stops;
    bool json, dry_run, explain;
};
#define TEXT_REQUEST {.temperature = NAN, .top_p = NAN, .repetition_penalty = NAN, .top_k = UINT64_MAX}

/* Refuses options that do not go together. */
int text_request_check(const struct text_request *r, struct error *e);
/* Answers the prompts and prints the answers, or with dry_run the plan. */
int text_request_run(struct text_request *r, struct error *e);
