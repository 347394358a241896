/*
 * requests.h: what the commands eval, predict and tokenize ask for. First, scores of a model on
 * held-out data (infer/validate.h), as tables, JSON and files.
 */
#pragma once

#include "base/base.h"
#include "infer/everything.h"
#include "infer/many.h"
#include "infer/validate.h"

struct evaluation {
    const char *model;                      /* as it was given */
    const char *output;                     /* the file of the answers, JSON lines; NULL: none */
    struct answer_options answers;
    const char *csv, *overlays;             /* files of the scores of masks and of the worst masks; NULL: none */
    const char *images, *structures;        /* CSV files of scores at the image's own size; NULL: none */
    bool own_size;                          /* these scores are computed, without files too */
    const char *spacing;                    /* of their pixels, "X,Y" in mm; NULL: as the files say */
    struct own_size_options own;
    uint64_t worst;                         /* masks that are listed; UINT64_MAX: not given */
    const char *prompt;                     /* of videos: mask or box; NULL: mask */
    bool json;
};
/* Checks the options of masks, and reads the spacing. */
int evaluation_check(struct evaluation *o, struct error *e);
/* Scores masks, and the answers of a model that answers in words too; or what a model finds for a
 * query. */
int evaluate_masks(struct config *c, const struct evaluation *o, struct error *e);
/* Tracks the objects of videos, and prints J and F (video_scores.c). */
int evaluate_videos(struct config *c, const struct evaluation *o, struct error *e);
/* Answers the conversations of data.validation, scores the answers and prints the scores. */
int evaluate_answers(struct config *c, const struct evaluation *o, struct error *e);
/* Prints loss and perplexity on files of tokens, or on texts. */
int evaluate_tokens(struct config *c, const struct evaluation *o, struct error *e);

/* --- mask request ---------------------------------------------------------------------------- */

/* Masks of one image or of many, as a command asks for them: checked, predicted and
 * written.
 *
 *     OUT.png       the mask, one bit a pixel; with --everything an image of all masks
 *     OVERLAY.png   the mask and its prompt over the image
 *     FILE.json     COCO run lengths with score, box and area; with --everything SA-1B's format
 *
 * Prompts and masks are in pixels of the image as stored. A prompt's candidate with the best
 * predicted IoU is written, or all candidates.
 */
struct mask_request {
    /* of one image too: the paths, the prompt, the outputs, --batch and --side */
    struct many_options many;
    struct everything_options every; /* points 0: not asked for */
    struct names points;             /* as given, as the box is */
    const char *box, *question, *overlay;
    const char *data;                /* the run file of many.derive; NULL: none */
    bool all;                        /* every candidate, OUT-1.png, OUT-2.png, ..., instead of the best */
    uint64_t max_new;                /* tokens of an answer; 0: the default */
    const char *video, *labels;      /* a video, and a label image of the objects on `frame`; NULL: none */
    uint64_t frame;                  /* of the prompt; UINT64_MAX: not given */
    struct image image;              /* of a request of one image, at image_path */
    const char *image_path;
};

/* Predicts the masks, writes the files and prints what they are. PL_USAGE names options that do not
 * go together. */
int mask_request_run(struct mask_request *r, struct error *e);
/* Does that for a video (video_request.c). */
int video_request_run(struct mask_request *r, struct error *e);

/* --- token request --------------------------------------------------------------------------- */

/* The lines of a file as token ids, or ids as text; or a conversation as the model
 * sees it: text, ids, and labels, which are -100 where nothing is trained.
 *
 * A line ends at \n; \r belongs to the line. Lines are read one at a time, so that a file of any
 * size can be read.
 */
struct token_request {
    const char *model;             /* a folder, or a tokenizer's file */
    const char *file;              /* "-": the standard input */
    const char *template;          /* another than the folder's; NULL: none */
    bool chat, generation_prompt;  /* a conversation; up to where the model answers */
    bool decode, pieces, no_special, json;
};
/* Prints the tokens, or the text. PL_USAGE names options that do not go together. */
int token_request_run(const struct token_request *r, struct error *e);
